"""The command line of the host program."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Sequence

from tooling.errors import InputError, ToolkitError
from tooling.host import actions, operation, report, unit
from tooling.host.docker import Docker
from tooling.host.events import RESULT, Events, moment
from tooling.host.gpus import Smi
from tooling.host.host import DEFAULT_ROOT, DONE, FAILED, Host
from tooling.host.reading import NAME, read_request
from tooling.host.reconcile import reconcile
from tooling.host.state import Group, groups
from tooling.host.swap import CONFIRMED
from tooling.host.way_back import as_toolkit_error

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Something that an operation does to a host.
    Deed = Callable[[Host], dict[str, Any]]

#: Version of requests, events and commands; grows when an older operator would be misled.
PROTOCOL = 1
_NUMBER = 1 << 30
_OPERATIONS = ("deploy", "rollback", "start", "stop", "reconcile", "repair")
#: Their standard output is events, the last of which is the result.
_FOLLOWED = (*_OPERATIONS, "follow")


def parser() -> argparse.ArgumentParser:
    """The options and commands."""
    top = argparse.ArgumentParser(
        prog="blackwell-host",
        description="Deploy, roll back and reconcile the inference stacks of this host.",
        epilog="Exit codes: 0 done; 1 failed, what served before serves; 2 wrong input; 3 another operation "
        "runs; 4 nothing serves and it should; 5 the state is damaged.",
    )
    _common(top, root=str(DEFAULT_ROOT), group="", json=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        hidden = argparse.SUPPRESS
        _common(made, root=hidden, group=hidden, json=hidden)
        return made

    add("deploy", "bring up the release of a request").add_argument(
        "--request", default="-", help="file with the JSON document (standard input by default)"
    )
    back = add("rollback", "bring back a generation that served")
    back.add_argument(
        "generation", nargs="?", type=int, default=0, help="the one before the last deploy by default"
    )
    add("start", "start the current generation after a stop")
    add("stop", "stop it, over reboots too, until start, rollback or deploy")
    add("reconcile", "make exactly the committed generation run, after a crash or a boot")
    add("repair", "write a lost commit point anew").add_argument("generation", type=int)
    add("status", "what is to serve, and what does")
    add("history", "what was done here")
    add("doctor", "is this host ready for the next swap and for the way back")
    add("version", "of this program")
    add("follow", "the events of an operation, to its end").add_argument("operation", nargs="?", default="")
    confirming = add("confirm", "let a swap that waits for it be committed")
    confirming.add_argument("operation")
    confirming.add_argument("--reject", action="store_true", help="take it back instead")
    add("install-unit", "have systemd reconcile at boot").add_argument("--print", action="store_true")
    return top


def _common(to: argparse.ArgumentParser, **defaults: Any) -> None:
    to.add_argument("--root", default=defaults["root"], help=f"state directory ({DEFAULT_ROOT})")
    to.add_argument("--group", default=defaults["group"], help="group of GPUs (default)")
    to.add_argument("--json", action="store_true", default=defaults["json"], help="JSON; events one a line")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command; a known failure is one message and an exit code.

    Returns:
        The exit code.
    """
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except ToolkitError as error:
        if options.json and options.command in _FOLLOWED:
            facts = {"error": error.as_record(), "exit_code": operation.exit_code(error), "result": None}
            event = {
                "time": moment(),
                "operation": "",
                "step": RESULT,
                "state": "failed",
                "message": error.what,
            }
            sys.stdout.write(json.dumps({**event, "data": facts}, ensure_ascii=False) + "\n")
        elif options.json:
            _print({"error": error.as_record()})
        sys.stderr.write(f"error: {error}\n")
        return operation.exit_code(error)
    except BrokenPipeError:
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("no longer following; the operation goes on by itself (`follow` shows it again)\n")
        return FAILED


def _run(options: argparse.Namespace) -> int:
    command: str = options.command
    if command == "reconcile" and not options.group:
        return _reconcile_all(options)
    if command in _OPERATIONS:
        return _operate(options)
    reading: dict[str, Callable[[argparse.Namespace], int]] = {
        "status": _status,
        "history": _history,
        "doctor": _doctor,
        "version": _version,
        "follow": lambda given: _follow(
            _group(given), given.operation or operation.latest(_group(given)), given
        ),
        "confirm": _confirm,
        "install-unit": _install_unit,
    }
    return reading[command](options)


def _group(options: argparse.Namespace) -> Group:
    name = options.group or "default"
    if not re.fullmatch(NAME, name):
        raise InputError(f"{name!r} is no name of a group", fix="lower-case letters, digits, dots, dashes")
    return Group(Path(options.root), name)


def _host(group: Group, events: Optional[Events] = None) -> Host:
    return Host(group, Docker(), Smi(), events or Events(Path("/dev/null"), ""))


def _operate(options: argparse.Namespace) -> int:
    """Start the operation, and follow it as long as somebody looks."""
    group, command = _group(options), options.command
    deed: Deed
    if command == "deploy":
        source = "standard input" if options.request == "-" else options.request
        request = read_request(_read(options.request), source)
        if options.group and options.group != request.group:
            raise InputError(f"the request is for group {request.group}, --group says {options.group}")
        group = Group(group.root, request.group)
        deed = lambda host: actions.deploy(host, request)  # noqa: E731
    elif command in ("rollback", "repair"):
        number = options.generation
        if not 0 <= number < _NUMBER:
            raise InputError(f"{number} is no generation", fix="see `history`")
        act = actions.rollback if command == "rollback" else actions.repair
        deed = lambda host: act(host, number)  # noqa: E731
    else:
        deed = {"start": actions.start, "stop": actions.stop, "reconcile": reconcile}[command]
    group = Group(group.root.resolve(), group.name)
    return _follow(group, operation.begin(group, lambda begun: _work(group, command, begun, deed)), options)


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the request cannot be read: {error}", where=path) from error


def _follow(group: Group, begun: str, options: argparse.Namespace) -> int:
    code = FAILED
    for event in operation.events(group, begun):
        if options.json:
            sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
        else:
            mark = "FAILED " if event["state"] == "failed" else ""
            sys.stdout.write(f"{event['time'][11:23]} {event['step']}: {mark}{event['message']}\n")
            for line in event["data"].get("error", {}).get("details", ()) if event["step"] == RESULT else ():
                sys.stdout.write(f"    {line}\n")
            fix = event["data"].get("error", {}).get("fix") if event["step"] == RESULT else None
            if fix:
                sys.stdout.write(f"  to do: {fix}\n")
        sys.stdout.flush()
        if event["step"] == RESULT:
            code = int(event["data"]["exit_code"])
    return code


def _work(group: Group, command: str, begun: str, deed: Deed) -> int:
    """What the operation's own process does."""
    events = operation.events_of(group, begun)
    events.start("operation", f"{command} (operation {begun})", command=command)
    host = _host(group, events)
    try:
        result = actions.run_locked(host, lambda: deed(host), name=command)
    except Exception as error:  # noqa: BLE001  # whoever follows must hear of it
        return operation.conclude(events, command, None, as_toolkit_error(error))
    return operation.conclude(events, command, result, None)


def _reconcile_all(options: argparse.Namespace) -> int:
    """All groups at once: a boot must not load one model after the other."""
    names = list(groups(Path(options.root)))
    if not names:
        # At the first boot of a host that is not in use yet this is right, and no failure of the unit.
        sys.stderr.write(f"nothing was ever deployed here ({options.root}): nothing is to run\n")
        return DONE
    base = [*operation.program(), "--root", options.root, *(["--json"] if options.json else [])]
    children = [subprocess.Popen([*base, "--group", name, "reconcile"]) for name in names]
    return max(child.wait() for child in children)


def _status(options: argparse.Namespace) -> int:
    names = [_group(options).name] if options.group else list(groups(Path(options.root))) or ["default"]
    documents = [report.status(_host(Group(Path(options.root), name))) for name in names]
    good = all(
        not one["faults"] and (one["wanted"] != "running" or (one["serving"] and one["ready"]))
        for one in documents
    )
    if options.json:
        _print({"groups": documents})
        return DONE if good else FAILED
    for one in documents:
        now = one["current"]
        line = "nothing was deployed" if now is None else f"generation {now['generation']} {now['release']}"
        state = "answers" if one["ready"] else "runs" if one["serving"] else "does not run"
        sys.stdout.write(f"{one['group']}: {line}" + (f", wanted {one['wanted']}, {state}\n" if now else "\n"))
        for fault in one["faults"]:
            sys.stdout.write(f"  FAULT {fault}\n")
        for earlier in one["earlier"]:
            marks = [
                "served" if earlier["served"] else "never served",
                "image present" if earlier["image_present"] else "image GONE",
                "pinned" if earlier["pinned"] else "not pinned",
            ]
            sys.stdout.write(f"  {earlier['generation']:>4} {earlier['release']} ({', '.join(marks)})\n")
    return DONE if good else FAILED


def _history(options: argparse.Namespace) -> int:
    lines, unreadable = _group(options).history()
    if options.json:
        _print({"history": lines, "unreadable": unreadable})
        return DONE
    for line in lines:
        rest = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("time", "action"))
        sys.stdout.write(f"{line.get('time')} {line.get('action')}: {rest}\n")
    if unreadable:
        sys.stdout.write(f"{unreadable} lines cannot be read\n")
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    found = report.doctor(_host(_group(options)))
    good = all(one["ok"] for one in found)
    if options.json:
        _print({"ok": good, "checks": found})
        return DONE if good else FAILED
    for one in found:
        mark = "FAIL" if not one["ok"] else "note" if one["warning"] else "ok"
        sys.stdout.write(f"{mark:>4} {one['check']}: {one['seen']}\n")
        if one["fix"] and mark != "ok":
            sys.stdout.write(f"       to do: {one['fix']}\n")
    return DONE if good else FAILED


def _version(options: argparse.Namespace) -> int:
    file = Path(sys.argv[0]).resolve()
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".pyz" else ""
    document = {"protocol": PROTOCOL, "sha256": digest, "python": sys.version.split()[0]}
    if options.json:
        _print(document)
    else:
        sys.stdout.write(f"protocol {PROTOCOL}, sha256 {digest or 'none (not installed)'}\n")
    return DONE


def _confirm(options: argparse.Namespace) -> int:
    operation.confirm(_group(options), options.operation, CONFIRMED, good=not options.reject)
    return DONE


def _install_unit(options: argparse.Namespace) -> int:
    command = [*operation.program(), "--root", str(Path(options.root).resolve())]
    if options.print:
        sys.stdout.write(unit.unit_text(command))
        return DONE
    _print(unit.install(command))
    return DONE


def _print(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()

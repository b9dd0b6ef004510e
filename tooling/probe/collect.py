"""The edges: run the collector here or over ssh, run the probe in an image."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from tooling.errors import CommandError, EngineError, InputError
from tooling.paths import checkout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: Seconds: the collector's own limits on nvidia-smi and cuInit add up to less.
COLLECT_LIMIT_S, PROBE_LIMIT_S, CONNECT_LIMIT_S = 240.0, 1800.0, 15
#: Exit codes of collector and probe that come with a document.
WITH_DOCUMENT = {0, 1, 3}
_SSH_FAILED, _NOT_FOUND, _DOCKER_FAILED = 255, 127, 125
#: What the engines take for their workspace; the memory ladder tries it as one piece. MiB.
WORKSPACE_MIB = 512
#: NCCL pins host memory. A host that is a container itself may not be able to grant it.
MEMLOCK = ("--ulimit", "memlock=-1")
_NOT_GRANTED = re.compile(r"error setting rlimit.*operation not permitted", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9_.@:\[\]%-]+")
_TAIL = 8
_LISTEN_S = 5.0


def collector_path() -> Path:
    """The collector's file in the checkout."""
    return checkout() / "images" / "runtime" / "probe_collector.py"


def ssh_command(host: str, *, config: Path | None = None, python: str = "python3") -> list[str]:
    """The command that runs a script from stdin on a host, with the user's own ssh settings.

    Raises:
        InputError: The host's name could be read as an option or holds characters that no host has.
    """
    if host.startswith("-") or not _HOST.fullmatch(host):
        raise InputError(f"{host!r} is no host", where="--host", fix="write user@host as for ssh")
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_LIMIT_S}", "-T"]
    if config is not None:
        options = ["-F", str(config), *options]
    return ["ssh", *options, "--", host, python, "-"]


def probe_command(image: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs the probe in an image with all GPUs and the grants that an engine gets.

    Raises:
        InputError: The reference could be read as an option.
    """
    if not image or image.startswith("-"):
        raise InputError(f"{image!r} is no image", fix="write a reference, best by digest")
    grants = ["--gpus", "all", "--ipc=host", *MEMLOCK, "--ulimit", "stack=67108864"]
    return ["docker", "run", "--rm", *grants, "--network=none", image, "probe", "--json", *options]


def collect(host: str = "", *, ssh_config: Path | None = None) -> str:
    """Run the collector here, or on another host over ssh; nothing is written there.

    Args:
        host: `user@host`, or nothing for this machine.
        ssh_config: An ssh configuration in place of the user's own.

    Returns:
        Its JSON.

    Raises:
        CommandError: The host cannot be reached, has no usable python3, or did not answer in time.
    """
    script = collector_path().read_text(encoding="utf-8")
    argv = ssh_command(host, config=ssh_config) if host else [sys.executable, "-"]
    code, out, err = _capture(argv, script, COLLECT_LIMIT_S)
    if code in WITH_DOCUMENT and out.lstrip().startswith("{"):
        return out
    where, tail = host or "this host", err.strip().splitlines()[-_TAIL:]
    if host and code == _SSH_FAILED:
        raise CommandError(
            "ssh could not connect", where=host, details=tail,
            fix="check that `ssh " + host + " true` works without a question",
        )  # fmt: skip
    if code == _NOT_FOUND or "not found" in err:
        raise CommandError(
            "the host has no python3", where=where, details=tail, fix="install python3 (3.8 or newer)"
        )
    if "SyntaxError" in err or "not defined" in err:
        raise CommandError(
            "the host's python3 is too old", where=where, details=tail, fix="install Python 3.8 or newer there"
        )
    raise CommandError(f"the collector failed with exit code {code}", where=where, details=tail)


def run_probe(image: str, options: Sequence[str], say: Callable[[str], None]) -> str:
    """Run the probe in a container; its progress goes to `say`.

    Where the host cannot lift the limit of locked memory it runs under the limit that there is, which its
    document then holds.

    Raises:
        EngineError: Docker could not start the container with GPUs.
        CommandError: The probe gave no document.
    """
    argv = probe_command(image, options)
    code, out, err = _capture(argv, "", PROBE_LIMIT_S, say)
    if code and _NOT_GRANTED.search(err):
        say("this host cannot lift the limit of locked memory: probing under the limit that there is")
        under_limit = [word for word in argv if word != MEMLOCK[1]]
        under_limit.remove(MEMLOCK[0])
        code, out, err = _capture(under_limit, "", PROBE_LIMIT_S, say)
    start = out.find("{")
    if code in WITH_DOCUMENT and start >= 0:
        return out[start:]
    tail = err.strip().splitlines()[-_TAIL:]
    if re.search(
        r"could not select device driver|nvidia-container|unresolvable CDI|unknown or invalid runtime", err
    ):
        raise EngineError(
            "Docker cannot give GPUs to containers here", where=image, details=tail,
            fix="install the NVIDIA container toolkit and run `nvidia-ctk runtime configure`; then run "
            "the doctor",
        )  # fmt: skip
    if code == _DOCKER_FAILED:
        raise EngineError("Docker did not start the container", where=image, details=tail)
    raise CommandError(f"the probe gave no document, exit code {code}", where=image, details=tail)


def _capture(
    argv: Sequence[str], stdin: str, limit_s: float, say: Callable[[str], None] | None = None
) -> tuple[int, str, str]:
    """Run a program with text on stdin, under a limit; stopped together with its children."""
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            encoding="utf-8", errors="replace", process_group=0,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise CommandError(f"program {argv[0]!r} is not installed", fix=f"install {argv[0]}") from error
    # communicate() would keep it to the end, and a probe is minutes of silence then.
    said, child.stderr = child.stderr, None
    assert said is not None  # noqa: S101  # PIPE was asked for
    lines: list[str] = []
    listener = threading.Thread(target=_listen, args=(said, lines, say), daemon=True)
    listener.start()
    try:
        out, _ = child.communicate(stdin, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{argv[0]} did not end within {limit_s:g} s", where=" ".join(argv[:8])) from error
    finally:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        # A grandchild that has left the group may hold the pipe open.
        listener.join(_LISTEN_S)
    return child.returncode, out, "".join(lines)


def _listen(stream: IO[str], lines: list[str], say: Callable[[str], None] | None) -> None:
    """Keep what a program says on stderr, and pass it on while it runs."""
    with stream:
        for line in stream:
            lines.append(line)
            if say is not None:
                say(line.rstrip())


def with_host_facts(probed: str, collected: str) -> str:
    """The probe's document with what only the host may see: kernel log, engine, who holds the GPUs.

    Args:
        probed: Document of the probe inside the container.
        collected: Document of the collector on the container's host.
    """
    inside: dict[str, Any] = json.loads(probed)
    outside: dict[str, Any] = json.loads(collected)
    facts = inside["host"]
    facts["engine"] = outside["engine"]
    if not facts["kernel_log"].get("readable"):
        facts["kernel_log"] = outside["kernel_log"]
    facts["nvidia"]["holders"] = outside["nvidia"]["holders"]
    facts["disks"] = outside["disks"]
    # In a container of ours that runs in an LXC only the inner one shows.
    facts["system"]["outer_container"] = outside["system"].get("container", "")
    return json.dumps(inside)

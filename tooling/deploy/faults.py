"""What a host's own words mean for a deploy: the data in `data/faults.yaml`, and rules over Docker facts."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import Field

from tooling.errors import ToolkitError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


class HostFault(ToolkitError):  # noqa: N818  # named as what it is on the host
    """A host is not in a state in which a deploy may begin or go on.

    Attributes:
        fault: Id of the cause in `data/faults.yaml`; `unknown` when its words are not known.
    """

    fault: str = "unknown"


class FaultKind(Record):
    """One cause with its wordings, see the head of the data file."""

    id: str
    patterns: tuple[str, ...] = Field(min_length=1)
    verdict: Literal["refuse", "fail"]
    what: str
    fix: str
    says: tuple[str, ...] = Field(min_length=1)
    not_: tuple[str, ...] = Field(default=(), alias="not")


class Diagnosis(Record):
    """A cause that was recognised.

    Attributes:
        id: Of the cause.
        verdict: `refuse`: nothing was touched; `fail`: something is broken.
        what: One sentence.
        fix: What to do.
        line: The words that it rests on.
    """

    id: str
    verdict: Literal["refuse", "fail"]
    what: str
    fix: str
    line: str


@cache
def fault_kinds() -> tuple[FaultKind, ...]:
    """Every known cause, the special ones first."""
    text = (resources.files("tooling.deploy") / "data" / "faults.yaml").read_text(encoding="utf-8")
    return tuple(FaultKind.model_validate(entry) for entry in yaml.safe_load(text))


def diagnose(text: str) -> tuple[Diagnosis, ...]:
    """Every cause that a text speaks of, in the order of the data file; a line counts for one cause only."""
    found: list[Diagnosis] = []
    taken: set[int] = set()
    for kind in fault_kinds():
        for pattern in kind.patterns:
            match = re.search(pattern, text, re.IGNORECASE)
            if match is None:
                continue
            line = text.count("\n", 0, match.start())
            if line in taken:
                continue
            taken.add(line)
            groups = {name: value or "not told" for name, value in match.groupdict().items()}
            names = set(re.findall(r"\{(\w+)\}", kind.what)) - set(groups)
            what = kind.what.format(**groups, **dict.fromkeys(names, "not told"))
            words = text.splitlines()[line].strip()
            found.append(Diagnosis(id=kind.id, verdict=kind.verdict, what=what, fix=kind.fix, line=words))
            break
    return tuple(found)


def host_fault(host: str, code: int, text: str) -> HostFault:
    """The error for a command that failed on a host.

    Args:
        host: Name of the host, for the message.
        code: Exit code.
        text: What was printed to stderr, and to stdout when that is empty.
    """
    tail = [line for line in text.strip().splitlines() if line.strip()][-6:]
    known = diagnose(text)
    if not known:
        return HostFault(
            f"the host's command failed with exit code {code}", where=host, details=tail,
            fix="read its words; run the doctor on this host",
        )  # fmt: skip
    first = known[0]
    error = HostFault(first.what, where=host, details=tail, fix=first.fix)
    error.fault = first.id
    return error


class Exit(Record):
    """One end of a container, as the engine's events or the container's state tell it.

    Attributes:
        code: Exit code.
        serving: Whether it had answered a request before.
    """

    code: int
    serving: bool = False


def restart_advice(exits: Sequence[Exit], *, policy: str, unified_memory: bool) -> Diagnosis | None:
    """What repeated ends of one container mean; None when it never ended by itself.

    A start that fails before it ever served will fail again: nothing about it changes by trying. Each try can
    leave driver memory behind, and on unified memory that takes the whole host down.

    Args:
        exits: In their order.
        policy: Restart policy of the container.
        unified_memory: GPU and host share one memory (GB10 and the like).
    """
    failed = [each for each in exits if each.code != 0 and not each.serving]
    if not failed:
        return None
    again = f", and policy {policy!r} repeats it" if policy not in {"", "no"} else ""
    memory = " Read MemAvailable, not only what CUDA calls free: memory is shared." if unified_memory else ""
    return Diagnosis(
        id="restart-loop" if len(failed) > 1 or again else "failed-start",
        verdict="fail",
        what=f"the engine ended with exit code {failed[0].code} before it served, {len(failed)} times{again}",
        fix="stop after the first such end and go back to the previous generation; no restart policy before a"
        " generation is committed." + memory,
        line=f"exit codes: {', '.join(str(each.code) for each in exits[:10])}",
    )


def image_advice(*, running: str, wanted: str, registry: str = "", name: str = "") -> Diagnosis | None:
    """Whether the running code is the wanted one, by digests alone; a tag or an exit code says nothing.

    Args:
        running: Digest or id of the running container's image.
        wanted: The same kind of digest, of what was asked for.
        registry: What the tag names in the registry now; empty when it was not asked.
        name: Tag or release, for the message only.

    Returns:
        None when the running image is the wanted one (a tag that moved since is another matter, and no fault).
    """
    if not running or not wanted:
        return Diagnosis(
            id="image-unknown", verdict="fail", what="which image runs cannot be said: a digest is missing",
            fix="ask the engine (docker inspect) and the registry for digests; never report from the tag",
            line=f"running {running or 'unknown'}, wanted {wanted or 'unknown'}",
        )  # fmt: skip
    if running == wanted:
        return None
    stale = f", while {name or 'the tag'} names {registry} now" if registry and registry != running else ""
    return Diagnosis(
        id="other-image-runs",
        verdict="fail",
        what=f"the running image is {running[:19]} and not {wanted[:19]}: the swap kept or reused an older one",
        fix="deploy by digest; compare running, wanted and registry digest after every swap",
        line=f"running {running}, wanted {wanted}{stale}",
    )

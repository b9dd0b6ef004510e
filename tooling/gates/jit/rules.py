"""The gate `jit`: a kernel that is compiled while requests wait is a pause of up to minutes, or a crash."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tooling.gates.jit.records import Phase
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from tooling.gates.jit.records import CacheChange, JitObservation

GATE = "jit"
#: Looks at the processes while serving below which nothing was watched.
_LEAST_LOOKS = 20
#: A compiler can well end within such a gap, seconds.
_LARGEST_GAP_S = 2.0
_SHOWN = 8
_MISSED = (
    "compilers inside the engine's own process (NVRTC, LLVM) show in the caches only; "
    "one that ends between two looks, likewise"
)


def jit_gate(observation: JitObservation, *, started: str) -> GateResult:
    """Judge one watched boot.

    While serving nothing may compile, in a cold boot neither: what it compiles then, a request waits for. At
    boot a cold cache may be filled; a warm one must serve. A lock or a log in a cache is no compilation.

    Args:
        observation: What was seen.
        started: Start of the watch, ISO 8601.
    """
    checks = [
        _watched(observation),
        _silent(observation, Phase.SERVING, "nothing-compiled-while-serving"),
        _boot(observation),
    ]
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=tuple(checks),
        limitations=(_MISSED,),
        configuration_sha256=sha256_of({"looks": _LEAST_LOOKS, "gap_s": _LARGEST_GAP_S}),
        started=started,
        ended=now(),
    )


def _watched(observation: JitObservation) -> Check:
    looks = observation.looks.get(Phase.SERVING, 0)
    enough = looks >= _LEAST_LOOKS and observation.longest_gap_s <= _LARGEST_GAP_S and bool(observation.caches)
    lines = [f"{name}: {path}" for name, path in observation.caches.items()]
    return Check(
        name="watched",
        verdict=Verdict.PASS if enough else Verdict.INCONCLUSIVE,
        seen=f"{looks} looks at the processes while serving, at most {observation.longest_gap_s:.2f} s apart; "
        f"{len(observation.caches)} caches compared",
        value=looks,
        unit="looks",
        threshold=_LEAST_LOOKS,
        details=tuple(lines),
    )


def _silent(observation: JitObservation, phase: Phase, name: str) -> Check:
    lines = _lines(observation, phase)
    count = _count(observation, phase)
    return Check(
        name=name,
        verdict=Verdict.FAIL if count else Verdict.PASS,
        seen=_sentence(observation, phase),
        value=count,
        unit="compilers and files",
        threshold=0,
        details=lines,
    )


def _boot(observation: JitObservation) -> Check:
    if observation.warm:
        return _silent(observation, Phase.BOOT, "warm-boot-compiles-nothing")
    # What a cold boot compiles is news and no fault; the release's cache policy decides on it.
    return Check(
        name="cold-boot",
        verdict=Verdict.PASS,
        seen=_sentence(observation, Phase.BOOT),
        value=_count(observation, Phase.BOOT),
        unit="compilers and files",
        details=_lines(observation, Phase.BOOT),
    )


def _count(observation: JitObservation, phase: Phase) -> int:
    runs = sum(run.phase is phase for run in observation.compilers)
    return runs + sum(change.code for change in observation.changes if change.phase is phase)


def _sentence(observation: JitObservation, phase: Phase) -> str:
    runs = sum(run.phase is phase for run in observation.compilers)
    files = sum(change.code for change in observation.changes if change.phase is phase)
    idle = sum(change.bookkeeping for change in observation.changes if change.phase is phase)
    seconds = observation.seconds.get(phase, 0.0)
    apart = f" (and {idle} without code)" if idle else ""
    return f"{runs} compiler processes and {files} new cache files{apart} in {seconds:.0f} s of {phase}"


def _lines(observation: JitObservation, phase: Phase) -> tuple[str, ...]:
    programs = Counter(run.program for run in observation.compilers if run.phase is phase)
    lines = [f"{count} x {program}" for program, count in programs.most_common(_SHOWN)]
    lines += [
        f"{change.cache}: {change.files} files, {change.bytes} bytes, {_named(change)}"
        for change in observation.changes
        if change.phase is phase
    ]
    return tuple(lines)


def _named(change: CacheChange) -> str:
    """Which kernels, else one of the files."""
    if not change.kernels:
        return f"e.g. {change.examples[0]}" if change.examples else "unnamed"
    more = len(change.kernels) - _SHOWN
    return ", ".join(change.kernels[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

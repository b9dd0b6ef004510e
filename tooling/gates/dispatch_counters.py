"""Gate `dispatch`: did the kernels that a stack asks for really run? Read from the plugin's counter files.

The files are written by `images/kernels/blackwell_kernels/sglang_plugin/counters.py`, one a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from tooling.errors import InputError
from tooling.gates.records import Check, Evidence, GateResult, Verdict, worst
from tooling.records import Record, now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

GATE = "dispatch"
#: Feature -> kinds of launches that its kernels count on the device, replays of CUDA graphs included.
DEVICE_KINDS: Mapping[str, tuple[str, ...]] = {
    "allreduce-rmsnorm": ("all_reduce_residual_rmsnorm_unrounded", "all_reduce_residual_rmsnorm_rounded"),
    "allreduce": ("all_reduce", "all_reduce_add"),
}
#: Features that are counted where Python calls them: a captured call counts once, its replays do not.
HOST_COUNTED = ("topk", "indexer")
FEATURES = (*DEVICE_KINDS, *HOST_COUNTED)


class Tally(Record):
    """What became of one feature in one process; see `Tally` of the plugin."""

    state: str
    reason: str
    calls: int = Field(ge=0)
    shapes: dict[str, int]
    fallbacks: dict[str, int]
    fallback_shapes: dict[str, int]


class CounterFile(Record):
    """One counter file.

    Attributes:
        format: Version of the format.
        package: Version of blackwell-kernels.
        engine: Engine and version.
        strict: Whether the process would have ended had a feature not been had.
        rank: Rank of the process; None where no group was made.
        pid: Process id inside the container.
        written: Seconds since 1970.
        features: Tallies of what was asked for.
        launches: By group, rounds by `<path>.<kind>` as the device counted them.
        errors: Groups that could not be read.
    """

    format: Literal[1]
    package: str
    engine: str
    strict: bool
    rank: int | None
    pid: int
    written: float
    features: dict[str, Tally]
    launches: dict[str, dict[str, int]]
    errors: dict[str, str] = Field(default_factory=dict)

    def rounds(self, feature: str) -> int:
        """Launches of a feature's kernels in this process, all groups together."""
        if feature in HOST_COUNTED:
            return self.features[feature].calls if feature in self.features else 0
        total = 0
        for counts in self.launches.values():
            for name, count in counts.items():
                path, _, kind = name.partition(".")
                if path != "calls" and kind in DEVICE_KINDS[feature]:
                    total += count
        return total


def parse_counters(documents: Mapping[str, bytes | str]) -> tuple[CounterFile, ...]:
    """Counter files by their names.

    Raises:
        InputError: One is not what the plugin writes.
    """
    found = []
    for name, text in documents.items():
        try:
            found.append(CounterFile.model_validate_json(text))
        except ValidationError as error:
            raise InputError(
                f"{name} is no counter file of blackwell_kernels",
                details=str(error).splitlines()[:6],
                fix="use the gate of the release that built the image",
            ) from error
    return tuple(found)


def read_counters(folder: Path) -> tuple[CounterFile, ...]:
    """All counter files of a folder, in the order of their names; none where the folder is not there."""
    paths = sorted(folder.glob("counters-*.json"))
    return parse_counters({str(path): path.read_bytes() for path in paths})


def dispatch_check(
    feature: str, before: Sequence[CounterFile], after: Sequence[CounterFile], *, ranks: int
) -> Check:
    """Whether a requested feature ran under the load on every rank.

    Args:
        feature: One of `FEATURES`.
        before: Counters when the engine was ready: its start-up measures with the same kernels.
        after: Counters after the load.
        ranks: Processes that must have run it.
    """
    name = f"dispatch: {feature}"
    files = [file for file in after if feature in file.features]
    details = tuple(_lines(feature, files))
    if not files:
        seen = "no process of the engine says that the plugin was loaded and asked for it"
        return Check(name=name, verdict=Verdict.FAIL, seen=seen, value=0, threshold=ranks, unit="ranks")
    earlier = {file.pid: file.rounds(feature) for file in before}
    by_process = {file.pid: file.rounds(feature) - _base(feature, earlier, file.pid) for file in files}
    launches = sum(by_process.values())
    ran = sum(count > 0 for count in by_process.values())
    fallbacks = sum(sum(file.features[feature].fallbacks.values()) for file in files)
    what = "calls" if feature in HOST_COUNTED else "launches"
    seen = f"{launches} {what} on {ran} of {ranks} ranks, {fallbacks} calls went the engine's own way"
    verdict = Verdict.PASS if ran >= ranks and launches > 0 else Verdict.FAIL
    if verdict is Verdict.PASS and feature not in HOST_COUNTED and not before:
        verdict = Verdict.INCONCLUSIVE
        seen += "; counters were not read before the load, so launches of the start-up are among them"
    if verdict is Verdict.FAIL:
        reasons = sorted({_why(file.features[feature]) for file in files} - {""})
        seen += f": {'; '.join(reasons)}" if reasons else ""
    return Check(
        name=name, verdict=verdict, seen=seen, value=ran, threshold=ranks, unit="ranks", details=details
    )


def _base(feature: str, earlier: Mapping[int, int], pid: int) -> int:
    """What is not of the load; host calls are captures, made before the engine was ready."""
    return 0 if feature in HOST_COUNTED else earlier.get(pid, 0)


def _why(tally: Tally) -> str:
    return f"{tally.state}: {tally.reason}" if tally.state == "DISABLED" else ""


def _lines(feature: str, files: Iterable[CounterFile]) -> Iterable[str]:
    """One line a process that did or refused something, with the shapes."""
    for file in files:
        tally = file.features[feature]
        if tally.calls:
            yield f"process {file.pid}, rank {file.rank}: ran {_counts(tally.shapes)}"
        if tally.fallbacks:
            yield (
                f"process {file.pid}, rank {file.rank}: fell back, {_counts(tally.fallbacks)}; "
                f"shapes {_counts(tally.fallback_shapes)}"
            )
        for group, error in file.errors.items():
            yield f"process {file.pid}: {group} cannot be read: {error}"


def _counts(table: Mapping[str, int], most: int = 8) -> str:
    """The most frequent entries of a table, in words."""
    ordered = sorted(table.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{key} ({count})" for key, count in ordered[:most])
    return shown + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def dispatch_gate(
    requested: Iterable[str],
    before: Sequence[CounterFile],
    after: Sequence[CounterFile],
    *,
    ranks: int,
    started: str,
    evidence: Sequence[Evidence] = (),
) -> GateResult:
    """The gate `dispatch`.

    Args:
        requested: Features that the boot asked for, at least one.
        before: Counters when the engine was ready.
        after: Counters after the load.
        ranks: Ranks of the engine.
        started: Start of the reading, ISO 8601.
        evidence: The files.

    Raises:
        InputError: Nothing, or something unknown, is requested.
    """
    names = sorted(set(requested))
    unknown = [name for name in names if name not in FEATURES]
    if unknown or not names:
        raise InputError(
            f"unknown feature {unknown[0]!r}" if unknown else "no feature is requested: nothing to prove",
            where="gate dispatch",
            fix=f"known are: {', '.join(FEATURES)}",
        )
    checks = tuple(dispatch_check(name, before, after, ranks=ranks) for name in names)
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=checks,
        limitations=tuple(
            f"{name} is counted where Python calls it: replays of CUDA graphs are not seen"
            for name in names
            if name in HOST_COUNTED
        ),
        configuration_sha256=sha256_of({"requested": names, "ranks": ranks}),
        started=started,
        ended=now(),
        evidence=tuple(evidence),
    )

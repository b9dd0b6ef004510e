"""From the files that runs on a GPU leave to one record."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.kernels.records import Comparison, KernelEvidence, Machine, Spread, StepResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VERDICTS = {"pass": Verdict.PASS, "fail": Verdict.FAIL}
#: Ratios aimed at, world 4: up to so many rows.
_GOALS = ((64, 0.75), (256, 0.9))
_GOAL_WORLD = 4
#: Top-k of 64K columns and more against the one-kernel-a-row peers.
_LONG, _LONG_GOAL, _GOAL = 65_536, 0.5, 1.0
#: With hyper-connections, up to so many rows; the Triton kernels are to be as fast as their peers.
_MHC_ROWS, _MHC_GOAL = 32, 0.7
_OURS = ("_one_shot", "_two_shot")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TOPK_PEERS = ("flashinfer", "flashinfer deterministic", "torch.topk alone")


def evidence_of(runs: Mapping[str, Mapping[str, Any]]) -> KernelEvidence:
    """One record of several runs on one kind of machine; of a step that ran more than once the last one counts.

    Args:
        runs: By name of the file, what `run.py` wrote there, in the order of time.

    Raises:
        InputError: No run, no step, other machines, or a file that is none of ours.
    """
    if not runs:
        raise InputError("no run to make a record of", fix="name the kernels.json of a run")
    steps: dict[str, StepResult] = {}
    raw: dict[str, Any] = {}
    machine: Machine | None = None
    clocks: dict[str, str] = {}
    limitations: dict[str, None] = {}
    for name, run in runs.items():
        try:
            seen, when = _machine(run["machine"]), str(run["machine"]["time"])
            if machine is not None and seen != machine:
                raise InputError(
                    f"the runs are of different machines: {seen.gpus[0]}, torch {seen.torch}, "
                    f"driver {seen.driver} here",
                    where=name,
                    fix="make one record for each",
                )
            machine = seen
            clocks[when] = _values(run.get("machine_after", run["machine"]))["clocks.sm"]
            for step, result in run["steps"].items():
                steps[step] = _step(result, when)
                # A step that was stopped has printed whole rows; its verdict says that more were meant.
                raw[step] = result.get("found", result.get("rows_until_then", ()))
            limitations |= dict.fromkeys(run["limitations"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"this is no run of the kernels' checks: {error!r}", where=name) from error
    if machine is None or not steps:
        raise InputError("the runs have no step", where=", ".join(runs))
    try:
        return KernelEvidence(
            machine=machine,
            clocks=clocks,
            steps=steps,
            all_reduce=(
                *(_all_reduce(row) for step in sorted(raw) if step.startswith("times_w") for row in raw[step]),
                *(_all_reduce(_pair(row)) for row in raw.get("pair_times", ())),
            ),
            topk=tuple(_topk(row) for row in raw.get("topk_times", ())),
            mhc=tuple(_mhc(row) for row in raw.get("mhc_times", ())),
            **{
                kernel: tuple(
                    _portable(row) for row in raw.get("portable_times", ()) if row["kernel"] == kernel
                )
                for kernel in ("indexer", "attention")
            },
            limitations=(*limitations, *_not_passed(steps)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a table cannot be read: {error!r}", where=", ".join(runs)) from error


def _values(machine: Mapping[str, Any]) -> dict[str, str]:
    (first, *_) = machine["gpus"]["values"]
    return dict(zip(machine["gpus"]["fields"], (value.strip() for value in first.split(",")), strict=True))


def _machine(machine: Mapping[str, Any]) -> Machine:
    values = _values(machine)
    return Machine(
        gpus=tuple(line.partition(",")[0] for line in machine["gpus"]["values"]),
        driver=values["driver_version"],
        torch=machine["torch"],
        capability=machine["capability"],
        sm_clock_max=values["clocks.max.sm"],
        memory_clock=values["clocks.mem"],
        power_limit=values["power.limit"],
        links=tuple(_ESCAPE.sub("", line) for line in takewhile(str.strip, machine["links"])),
    )


def _step(result: Mapping[str, Any], when: str) -> StepResult:
    found = result.get("found", {})
    counted = found if isinstance(found, dict) else {"shapes": len(found)}
    return StepResult(
        verdict=_VERDICTS.get(result["verdict"], Verdict.INCONCLUSIVE),
        time=when,
        seconds=result.get("seconds", 0.0),
        found=counted,
        why=str(result.get("why", "")),
    )


def _all_reduce(row: Mapping[str, Any]) -> Comparison:
    ours, peers = _spreads(row["ours"]), _spreads(row["peers"])
    goals = [goal for rows, goal in _GOALS if row["rows"] <= rows and row["world"] == _GOAL_WORLD]
    return Comparison(
        shape={name: row[name] for name in ("world", "hidden", "rows")},
        ours=ours,
        ours_again=_spreads(row["ours_again"]),
        peers=peers,
        ratio=_ratio(ours, peers),
        goal=goals[0] if goals else None,
    )


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of several GPUs, whose table has ours and the peers side by side."""
    ours = {name: spread for name, spread in row["times"].items() if name.endswith(_OURS)}
    peers = {name: spread for name, spread in row["times"].items() if name not in ours}
    return {**row, "ours": ours, "peers": peers, "ours_again": {}}


def _topk(row: Mapping[str, Any]) -> Comparison:
    peers = _spreads({name: row[name] for name in _TOPK_PEERS})
    ours = _spreads({"ours": row["ours"]})
    return Comparison(
        shape={name: row[name] for name in ("rows", "columns", "k")},
        ours=ours,
        peers=peers,
        ratio=_ratio(ours, peers),
        goal=_LONG_GOAL if row["columns"] == _LONG else _GOAL,
    )


def _mhc(row: Mapping[str, Any]) -> Comparison:
    ours, peers = _spreads(row["ours"]), _spreads(row["peers"])
    return Comparison(
        shape={name: row[name] for name in ("world", "hidden", "rows")},
        ours=ours,
        peers=peers,
        ratio=_ratio(ours, peers),
        goal=_MHC_GOAL if row["rows"] <= _MHC_ROWS else None,
    )


def _portable(row: Mapping[str, Any]) -> Comparison:
    ours, peers = _spreads(row["ours"]), _spreads(row["peers"])
    shape = {name: row[name] for name in ("rows", "columns")}
    return Comparison(shape=shape, ours=ours, peers=peers, ratio=_ratio(ours, peers), goal=_GOAL)


def _spreads(times: Mapping[str, Any]) -> dict[str, Spread]:
    return {name: Spread.model_validate(spread) for name, spread in times.items()}


def _ratio(ours: Mapping[str, Spread], peers: Mapping[str, Spread]) -> float:
    best, rival = (min(spread.median for spread in times.values()) for times in (ours, peers))
    return round(best / rival, 3)


def _not_passed(steps: Mapping[str, StepResult]) -> Iterator[str]:
    for name, step in steps.items():
        if step.verdict is not Verdict.PASS:
            yield f"{name}: {step.verdict.value}, {step.why}"


def bench_command(image: str, checkout: str, out: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs the checks and times of this checkout in an image, on this machine's GPUs.

    Args:
        image: The image; it brings torch, the compiler and the peers' sources.
        checkout: This checkout, mounted for reading.
        out: Folder for the results.
        options: Of `run.py`, e.g. `--gpus 2`.

    Raises:
        InputError: The reference could be read as an option.
    """
    if not image or image.startswith("-"):
        raise InputError(f"{image!r} is no image", fix="write a reference, best by digest")
    mounts = [f"{checkout}/images/kernels:/bench/images/kernels:ro"]
    mounts += [f"{checkout}/tests/gpu/kernels:/bench/tests/gpu/kernels:ro", f"{out}:/out"]
    volumes = [word for mount in mounts for word in ("-v", mount)]
    grants = ["--gpus", "all", "--ipc=host", "--network=none", "--ulimit", "memlock=-1", "--user", "0"]
    script = ["--entrypoint", "/opt/stack/bin/python", image, "/bench/tests/gpu/kernels/run.py"]
    return ["docker", "run", "--rm", *grants, *volumes, *script, "--out", "/out", *options]

"""Which path takes which number of rows: chosen by measurement, kept by topology. Pure functions and one file.

No threshold is built in: on one PCIe box stores over the bus are faster than loads, on another twenty times
slower, and where one-shot loses to two-shot depends on the switch between the GPUs.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blackwell_kernels.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: In the order of the kernels' own numbers.
PATHS = ("push_one_shot", "push_two_shot", "pull_one_shot", "pull_two_shot")
ONE_SHOT = (0, 2)
_FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """What to use for one hidden size.

    Attributes:
        limits: (rows, path number), ascending: the first entry with `rows >=` the call's rows counts.
    """

    limits: tuple[tuple[int, int], ...]

    def path(self, rows: int) -> int:
        """The path for a number of rows.

        Raises:
            KernelError: More rows than were planned for.
        """
        for limit, path in self.limits:
            if rows <= limit:
                return path
        raise KernelError(f"{rows} rows are more than the {self.limits[-1][0]} that were planned")


def measured_rows(rows: int) -> tuple[int, ...]:
    """Numbers of rows to measure: powers of two, and the largest itself."""
    steps = [1 << step for step in range(rows.bit_length()) if 1 << step < rows]
    return (*steps, rows)


def choose(times: Mapping[tuple[int, int], float]) -> Plan:
    """The fastest path at each measured number of rows.

    Args:
        times: (rows, path number) -> seconds a round of the slowest rank. Paths that do not take so many rows
            are absent.

    Raises:
        KernelError: Nothing was measured, or a time is not a positive number.
    """
    if not times:
        raise KernelError("no path was measured")
    if not all(0 < seconds < float("inf") for seconds in times.values()):
        raise KernelError(f"measured times are not positive: {sorted(times.values())[:3]}")
    limits = []
    for rows in sorted({rows for rows, _ in times}):
        best = min((seconds, path) for (measured, path), seconds in times.items() if measured == rows)
        limits.append((rows, best[1]))
    return Plan(tuple(limits))


def slowest(times_by_rank: Sequence[Mapping[tuple[int, int], float]]) -> dict[tuple[int, int], float]:
    """Per measurement the time of the slowest rank: a collective is as fast as that."""
    return {key: max(times[key] for times in times_by_rank) for key in times_by_rank[0]}


def topology_key(facts: Mapping[str, object]) -> str:
    """A name for a topology: equal facts (devices, links, versions, sizes), equal name."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def plan_folder() -> Path:
    """Where measured plans are kept for the next start."""
    named = os.environ.get("BLACKWELL_KERNELS_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-kernels"


def write_plans(
    path: Path,
    facts: Mapping[str, object],
    plans: Mapping[int, Plan],
    times: Mapping[int, Mapping[tuple[int, int], float]],
) -> None:
    """Keep plans with the times that they rest on, so that a person can judge them."""
    record = {
        "format": _FORMAT,
        "facts": facts,
        "plans": {str(hidden): [list(limit) for limit in plan.limits] for hidden, plan in plans.items()},
        "microseconds": {
            str(hidden): {
                f"{rows} rows, {PATHS[number]}": round(seconds * 1e6, 3)
                for (rows, number), seconds in sorted(table.items())
            }
            for hidden, table in times.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(record, indent=1), encoding="utf-8")
    draft.replace(path)


def read_plans(text: str, hidden_sizes: Sequence[int]) -> dict[int, Plan] | None:
    """Plans from a kept file; None when it is damaged, of another format, or lacks a size."""
    try:
        record = json.loads(text)
        if record["format"] != _FORMAT:
            return None
        plans = {
            hidden: Plan(tuple((int(rows), int(path)) for rows, path in record["plans"][str(hidden)]))
            for hidden in hidden_sizes
        }
    except (ValueError, KeyError, TypeError):
        return None
    sound = all(
        plan.limits
        and list(plan.limits) == sorted(set(plan.limits))
        and all(rows > 0 and 0 <= path < len(PATHS) for rows, path in plan.limits)
        for plan in plans.values()
    )
    return plans if sound else None

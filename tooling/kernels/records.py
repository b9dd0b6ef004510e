"""Records of what runs of the kernels' GPU checks showed."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tooling.gates.records import Verdict
from tooling.records import Record


class Spread(Record):
    """Microseconds of one round, over the replays of a graph."""

    median: float = Field(gt=0)
    quartile_1: float
    quartile_3: float
    least: float
    most: float


class Machine(Record):
    """What was measured on.

    Attributes:
        gpus: Names.
        driver: Version of the driver.
        torch: Version of torch.
        capability: Compute capability.
        sm_clock_max: Highest clock of the multiprocessors, as the driver says it.
        memory_clock: Clock of the memory.
        power_limit: Power limit.
        links: Table of the links between the GPUs, empty for one GPU.
    """

    gpus: tuple[str, ...] = Field(min_length=1)
    driver: str
    torch: str
    capability: str
    sm_clock_max: str
    memory_clock: str
    power_limit: str
    links: tuple[str, ...] = ()


class Comparison(Record):
    """One shape: all of our variants, all peers, and the ratio of the best ones.

    Attributes:
        shape: Numbers that name it, e.g. world, hidden, rows.
        ours: By variant.
        ours_again: The same at the end of the shape: what the machine changes by itself.
        peers: By peer and setting.
        ratio: Median of our best by that of the best peer.
        goal: Ratio that was aimed at; None where none was set.
    """

    shape: dict[str, int]
    ours: dict[str, Spread] = Field(min_length=1)
    ours_again: dict[str, Spread] = Field(default_factory=dict)
    peers: dict[str, Spread] = Field(min_length=1)
    ratio: float = Field(gt=0)
    goal: float | None = None

    @property
    def met(self) -> bool:
        """Whether the goal, if there is one, was reached."""
        return self.goal is None or self.ratio <= self.goal


class StepResult(Record):
    """One step of a run.

    Attributes:
        verdict: Whether it passed.
        time: When its run began, UTC.
        seconds: How long it took.
        found: What it counted; times are in the tables.
        why: The reason of another verdict than pass.
    """

    verdict: Verdict
    time: str
    seconds: float = 0.0
    found: dict[str, Any] = Field(default_factory=dict)
    why: str = ""


class KernelEvidence(Record):
    """What is known of the kernels on one kind of machine.

    Attributes:
        schema_version: Version of this record's shape.
        machine: What was measured on.
        clocks: Clock of the multiprocessors when a run ended, by the time of the run.
        steps: By name.
        all_reduce: All-reduce, residual and RMSNorm against an all-reduce and a fused add and norm.
        topk: Top-k with page transform.
        mhc: All-reduce with hyper-connections against an all-reduce and the boundary that follows it.
        indexer: Logits of the indexer in Triton.
        attention: Sparse attention in Triton, 16 heads.
        limitations: What was not shown.
    """

    schema_version: int = 1
    machine: Machine
    clocks: dict[str, str] = Field(default_factory=dict)
    steps: dict[str, StepResult] = Field(min_length=1)
    all_reduce: tuple[Comparison, ...] = ()
    topk: tuple[Comparison, ...] = ()
    mhc: tuple[Comparison, ...] = ()
    indexer: tuple[Comparison, ...] = ()
    attention: tuple[Comparison, ...] = ()
    limitations: tuple[str, ...] = Field(min_length=1)

    @property
    def missed(self) -> tuple[Comparison, ...]:
        """Shapes whose goal was not reached."""
        tables = (self.all_reduce, self.topk, self.mhc, self.indexer, self.attention)
        return tuple(one for table in tables for one in table if not one.met)

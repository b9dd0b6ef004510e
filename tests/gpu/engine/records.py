"""Records of a run on a GPU machine: which machine, which engine, and what each stage saw."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tests.gpu.engine.assemble import Assembled
from tooling.gates.records import GateResult
from tooling.gates.throughput.plan import Throughput
from tooling.records import Record


class Machine(Record):
    """The machine that every number of the run belongs to.

    Attributes:
        gpus: Name, memory and power limit of each GPU.
        driver: Version of the driver.
        cuda: CUDA version that the driver offers.
        clocks: SM and memory clock, now and at most, MHz; of the first GPU.
        cpu: Model name of the processor.
        cores: Processors that this process may use.
        kernel: Release of the kernel.
        python: Version.
        packages: Versions of what decides about kernels (torch, triton, ...).
    """

    gpus: tuple[str, ...]
    driver: str
    cuda: str
    clocks: dict[str, int]
    cpu: str
    cores: int
    kernel: str
    python: str
    packages: dict[str, str]


class Status(StrEnum):
    """Whether a stage showed what it was to show."""

    AS_EXPECTED = "as-expected"
    UNEXPECTED = "unexpected"
    ERROR = "error"  # it could not be done
    SKIPPED = "skipped"  # no time was left


class Expectation(Record):
    """One thing that had to come out.

    Attributes:
        what: The expectation, a sentence.
        met: Whether it came out so.
        seen: What came out.
    """

    what: str
    met: bool
    seen: str


class Stage(Record):
    """One stage.

    Attributes:
        name: Which.
        status: Derived from the expectations by whoever ran it.
        started_s: Seconds since the run began.
        seconds: How long it took.
        expectations: What had to come out, at least one unless it failed or was skipped.
        gates: Results of our gates.
        throughput: What was measured, by engine.
        figures: Further numbers, with the unit in the name.
        notes: Lines for people.
    """

    name: str
    status: Status
    started_s: float
    seconds: float
    expectations: tuple[Expectation, ...] = ()
    gates: dict[str, GateResult] = Field(default_factory=dict)
    throughput: dict[str, Throughput] = Field(default_factory=dict)
    figures: dict[str, float | str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class EngineRun(Record):
    """The whole run; written anew after every stage.

    Attributes:
        schema_version: Version of this record's shape.
        rehearsal: The engine was another one, on a CPU: nothing here is evidence.
        machine: Where.
        environment: What was carried.
        arguments: Serve arguments of the healthy engine.
        stages: In the order in which they ran.
        limitations: What holds for all of it, one sentence each.
        started: ISO 8601, UTC.
        ended: ISO 8601, UTC.
    """

    schema_version: int = 1
    rehearsal: bool
    machine: Machine
    environment: Assembled | None
    arguments: tuple[str, ...]
    stages: tuple[Stage, ...]
    limitations: tuple[str, ...]
    started: str
    ended: str

"""The facts that judgement rests on: data files, read once and checked."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter, field_validator

from tooling.paths import checkout
from tooling.records import Record

DATA = Path(__file__).parent / "data"


class Xid(Record):
    """One Xid number."""

    state: Literal["application", "info", "reset", "hardware"]
    meaning: str


class KernelLine(Record):
    """A kind of line of the kernel log."""

    id: str
    pattern: str
    fails: bool
    meaning: str
    to_do: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        re.compile(value)
        return value


class BadToolkit(Record):
    """Versions of the container toolkit that break containers."""

    versions: tuple[str, ...]
    good: str
    what: str
    source: str


class ContainerNeeds(Record):
    """Bytes that an engine needs."""

    shm_bytes: int
    memlock_bytes: int


class PeerLimits(Record):
    """Bounds on measured peer paths."""

    collapsed_write: float
    low_pcie_gbps: float


class Requirements(Record):
    """`requirements.yaml`."""

    cuda_major_driver: dict[str, str]
    cuda_minor_driver: dict[str, str]
    capability_driver: dict[str, str]
    open_modules_only: tuple[str, ...]
    forward_compatibility: str
    container: ContainerNeeds
    toolkit_known_bad: tuple[BadToolkit, ...]
    peer: PeerLimits
    one_shot_bytes: int


class Code(Record):
    """A CUresult or errno: its name, what it means here, and per kind of host where that differs."""

    name: str
    meaning: str
    to_do: str = ""
    vm: str = ""
    lxc: str = ""
    container: str = ""

    def on(self, kind: str) -> str:
        """The meaning on a kind of host: `vm`, `lxc`, `container` or another."""
        special = {"vm": self.vm, "lxc": self.lxc, "container": self.container}.get(kind, "")
        return f"{self.meaning}; {special}" if special else self.meaning


class Codes(Record):
    """`images/runtime/probe_codes.json`: the same table that the image prints from."""

    format: Literal[1]
    results: dict[int, Code]
    errno: dict[int, Code]


def _yaml(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


@functools.cache
def xids() -> dict[int, Xid]:
    """Meanings of Xid numbers."""
    return TypeAdapter(dict[int, Xid]).validate_python(_yaml("xid.yaml"))


@functools.cache
def kernel_lines() -> tuple[KernelLine, ...]:
    """Kinds of lines in a kernel log."""
    return TypeAdapter(tuple[KernelLine, ...]).validate_python(_yaml("kernel-log.yaml"))


@functools.cache
def requirements() -> Requirements:
    """What CUDA and parts ask of drivers and containers."""
    return Requirements.model_validate(_yaml("requirements.yaml"))


@functools.cache
def codes() -> Codes:
    """Meanings of the driver's answers."""
    path = checkout() / "images" / "runtime" / "probe_codes.json"
    return Codes.model_validate(json.loads(path.read_text(encoding="utf-8")))


def at_least(have: str, want: str) -> bool | None:
    """Whether a dotted version reaches another; None where one cannot be read."""
    try:
        return Version(have) >= Version(want)
    except InvalidVersion:
        return None


def cuda_name(level: int) -> str:
    """`12.8` of the CUDA level 12080: 1000 x major + 10 x minor."""
    return f"{level // 1000}.{level % 1000 // 10}"

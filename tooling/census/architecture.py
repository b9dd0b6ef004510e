"""Which device code runs on which device: the one place that knows the rules of suffixes, families and PTX.

Sources: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific
Architecture Features"; the tables behind them are in `data/architectures.yaml`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import yaml

from tooling.errors import InputError
from tooling.records import Record

_DOTTED = re.compile(r"(\d+)\.(\d)([af]?)")
_PACKED = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)")


#: sm_20; below it a number without dot is a major version whose minor version was forgotten.
_FIRST_ARCHITECTURE = 20


class Architecture(NamedTuple):
    """A compute capability and its suffix: `12.0`, `12.0a` (arch-specific) or `12.0f` (family-specific)."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def capability(self) -> str:
        """The device's own number, without suffix."""
        return f"{self.major}.{self.minor}"


class PtxRelease(Record):
    """A version of the PTX ISA, the CUDA release it came with, and the least driver that compiles it."""

    version: str
    cuda: str
    driver: str


class _Tables(Record):
    tegra: frozenset[str]
    families: dict[str, frozenset[str]]
    ptx_isa: tuple[PtxRelease, ...]


@cache
def _tables() -> _Tables:
    text = files("tooling.census").joinpath("data/architectures.yaml").read_text("utf-8")
    return _Tables.model_validate(yaml.safe_load(text))


def parse_architecture(text: str) -> Architecture:
    """Read `12.0a`, `sm_120a`, `compute_120a` or `120a`.

    Raises:
        InputError: It is none of them.
    """
    text = text.strip()
    if match := _DOTTED.fullmatch(text):
        return Architecture(int(match[1]), int(match[2]), match[3])
    if (match := _PACKED.fullmatch(text)) and int(match[1]) >= _FIRST_ARCHITECTURE:
        return Architecture(int(match[1][:-1]), int(match[1][-1]), match[2])
    raise InputError(f"{text!r} is not a GPU architecture", fix="write it like 12.0, 12.0a, 12.0f or sm_120a")


def runs_on(kind: str, code: Architecture, device: Architecture) -> bool:
    """Whether device code for one architecture runs on a device, given a driver new enough.

    Args:
        kind: `sass` or `ptx`; any other kind of entry runs nowhere.
        code: What the code was compiled for.
        device: The GPU; its suffix, if any, is ignored since a device has none.
    """
    if kind not in ("sass", "ptx"):
        return False
    if code.suffix == "a":
        return code.capability == device.capability
    if code.suffix == "f":
        return device.capability in _tables().families.get(code.capability, {code.capability})
    if kind == "ptx":
        return code[:2] <= device[:2]
    return code.capability == device.capability or _carries_over(code, device)


def _carries_over(code: Architecture, device: Architecture) -> bool:
    """Machine code runs on later minor versions of its major version, but not between desktop and Tegra."""
    tegra = _tables().tegra
    return (
        code.major == device.major
        and code.minor < device.minor
        and code.capability not in tegra
        and device.capability not in tegra
    )


def ptx_release(isa: str) -> PtxRelease | None:
    """What is known of a PTX ISA version; None when it is newer (or older) than the table."""
    return next((release for release in _tables().ptx_isa if release.version == isa), None)


def version_key(version: str) -> tuple[int, ...]:
    """A driver or PTX ISA version as something that sorts.

    Raises:
        InputError: There is no number in it.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version))
    if not numbers:
        raise InputError(f"{version!r} is not a version", fix="write it like 580.65.06")
    return numbers

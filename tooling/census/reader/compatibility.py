"""Which device code runs on which device: the one place that knows the rules of suffixes, families and PTX.

Sources: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific
Architecture Features"; the tables behind them are in `compatibility.json`.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import NamedTuple

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


class _Table(NamedTuple):
    tegra: frozenset[str]
    families: dict[str, frozenset[str]]


@cache
def _table() -> _Table:
    path = os.path.join(os.path.dirname(__file__), "compatibility.json")  # noqa: PTH118, PTH120  # pathlib is slow to import
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        data = json.load(file)
    families = data["families"]["devices"]
    return _Table(
        frozenset(data["tegra"]["capabilities"]),
        {name: frozenset(devices) for name, devices in families.items()},
    )


def parse(text: str) -> Architecture:
    """Read `12.0a`, `sm_120a`, `compute_120a` or `120a`.

    Raises:
        ValueError: It is none of them.
    """
    text = text.strip()
    if match := _DOTTED.fullmatch(text):
        return Architecture(int(match[1]), int(match[2]), match[3])
    if (match := _PACKED.fullmatch(text)) and int(match[1]) >= _FIRST_ARCHITECTURE:
        return Architecture(int(match[1][:-1]), int(match[1][-1]), match[2])
    raise ValueError(f"{text!r} is not a GPU architecture")


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
        return device.capability in _table().families.get(code.capability, {code.capability})
    if kind == "ptx":
        return code[:2] <= device[:2]
    return code.capability == device.capability or _carries_over(code, device)


def _carries_over(code: Architecture, device: Architecture) -> bool:
    """Machine code runs on later minor versions of its major version, but not between desktop and Tegra."""
    tegra = _table().tegra
    return (
        code.major == device.major
        and code.minor < device.minor
        and code.capability not in tegra
        and device.capability not in tegra
    )

"""Architectures and PTX releases for the host side; what runs where is the reader's `compatibility`.

Images get that module and its table along with the reader, so that there is one of them.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import yaml

from tooling.census.reader.compatibility import Architecture, parse, runs_on
from tooling.errors import InputError
from tooling.records import Record

__all__ = ["Architecture", "PtxRelease", "parse_architecture", "ptx_release", "runs_on", "version_key"]


class PtxRelease(Record):
    """A version of the PTX ISA, the CUDA release it came with, and the least driver that compiles it."""

    version: str
    cuda: str
    driver: str


class _Tables(Record):
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
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(str(error), fix="write it like 12.0, 12.0a, 12.0f or sm_120a") from error


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

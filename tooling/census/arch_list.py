"""A requested list of architectures (TORCH_CUDA_ARCH_LIST) against what was really compiled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.architecture import Architecture, parse_architecture, runs_on
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.census.records import Library

#: Names that torch.utils.cpp_extension accepts for several architectures each.
_NAMED = {
    "Maxwell": ("5.0", "5.2"),
    "Pascal": ("6.0", "6.1"),
    "Volta": ("7.0",),
    "Turing": ("7.5",),
    "Ampere": ("8.0", "8.6"),
    "Ada": ("8.9",),
    "Hopper": ("9.0",),
}
#: Names that torch resolves by looking at the machine or at its own build.
_UNRESOLVABLE = frozenset({"all", "common", "auto", "native"})
_TOKEN = re.compile(r"\b(sm|compute|lto)_(\d{2,3}[af]?)\b|\bPTX\b")


class Code(NamedTuple):
    """Machine code (`sass`) or PTX (`ptx`) for one architecture."""

    kind: str
    arch: Architecture

    def __str__(self) -> str:
        return f"{self.arch}+PTX" if self.kind == "ptx" else str(self.arch)


class Loss(NamedTuple):
    """A requested piece of code that is not there, and what is there instead."""

    code: Code
    reason: str


def parse_arch_list(text: str) -> tuple[Code, ...]:
    """What a TORCH_CUDA_ARCH_LIST asks for: `12.0a;12.1+PTX` is SASS 12.0a, SASS 12.1 and PTX 12.1.

    Raises:
        InputError: The list is empty, or has a name that does not say which architectures it means.
    """
    codes: dict[Code, None] = {}
    for item in re.split(r"[\s;,]+", text.strip()):
        if not item:
            continue
        name, plus, ptx = item.partition("+")
        if name.lower() in _UNRESOLVABLE or (plus and ptx != "PTX"):
            raise InputError(f"{item!r} does not say which architectures it means", fix="write them out")
        archs = [parse_architecture(each) for each in _NAMED.get(name, (name,))]
        codes.update((Code("sass", arch), None) for arch in archs)
        if plus:
            codes[Code("ptx", archs[-1])] = None
    if not codes:
        raise InputError("the list of architectures is empty", fix="write it like 12.0a;12.1+PTX")
    return tuple(codes)


def parse_code_list(text: str) -> tuple[Code, ...]:
    """What a listing names: the output of `cuobjdump --list-elf`, or words like `sm_120a compute_120`.

    After the word PTX (and in a file name that ends in .ptx) `sm_` names PTX.

    Raises:
        InputError: No architecture is named in it.
    """
    codes: dict[Code, None] = {}
    for line in text.splitlines():
        ptx = False
        for match in _TOKEN.finditer(line):
            if match[1] is None:
                ptx = True
                continue
            is_ptx = ptx or match[1] == "compute" or line[match.end() :].startswith(".ptx")
            codes[Code("ptx" if is_ptx else "sass", parse_architecture(match[2]))] = None
    if not codes:
        raise InputError(
            "no architecture is named in the listing", fix="pass what cuobjdump --list-elf printed"
        )
    return tuple(codes)


def codes_of(libraries: Iterable[Library]) -> tuple[Code, ...]:
    """Every target of some libraries that the CUDA runtime can load."""
    return tuple(
        {
            Code(target.kind, parse_architecture(target.arch)): None
            for library in libraries
            for target in library.loadable()
        }
    )


def losses(requested: Iterable[Code], found: Iterable[Code]) -> tuple[Loss, ...]:
    """Each requested piece of code that was not compiled. Plain and family-specific machine code are one."""
    there = tuple(found)
    return tuple(
        Loss(code, _instead(code, there))
        for code in requested
        if code not in there and not any(_same(code, other) for other in there)
    )


def _same(one: Code, other: Code) -> bool:
    """Listings do not tell family-specific machine code from plain, and it runs on the same devices."""
    return (
        one.kind == other.kind == "sass"
        and one.arch.capability == other.arch.capability
        and "a" not in (one.arch.suffix, other.arch.suffix)
    )


def _instead(code: Code, found: tuple[Code, ...]) -> str:
    near = [other for other in found if other.kind == code.kind and other.arch[:2] == code.arch[:2]]
    if near:
        return f"there is {near[0]} instead" + (
            f", which runs on {code.arch.capability} alone" if near[0].arch.suffix == "a" else ""
        )
    if code.kind == "ptx":
        return "no PTX of it was kept, so no later GPU can use the library"
    runs = [other for other in found if runs_on(other.kind, other.arch, code.arch)]
    return f"{runs[0]} runs there in its place" if runs else f"nothing runs on {code.arch.capability}"


def check_request(requested: Iterable[Code], found: Iterable[Code], device: str = "") -> tuple[Check, ...]:
    """The checks of a requested list: nothing was lost, and, if a device is named, something runs there."""
    wanted, there = tuple(requested), tuple(found)
    lost = losses(wanted, there)
    checks = [
        Check(
            name="requested architectures were compiled",
            verdict=Verdict.FAIL if lost else Verdict.PASS,
            seen=f"lost of {len(wanted)}: {', '.join(str(loss.code) for loss in lost)}"
            if lost
            else f"all {len(wanted)} are there",
            value=len(lost),
            threshold=0,
            details=tuple(f"{loss.code}: {loss.reason}" for loss in lost),
        )
    ]
    if device:
        checks.append(_runs(there, parse_architecture(device)))
    return tuple(checks)


def _runs(found: tuple[Code, ...], device: Architecture) -> Check:
    runs = [code for code in found if runs_on(code.kind, code.arch, device)]
    if runs:
        seen = f"{', '.join(map(str, runs))} runs there"
    else:
        seen = (
            f"none of {', '.join(map(str, found)) or 'nothing'} runs there: code with the suffix a is for its "
            "exact capability, plain and family code for the later ones of its family"
        )
    return Check(
        name=f"code runs on {device.capability}", verdict=Verdict.PASS if runs else Verdict.FAIL, seen=seen
    )

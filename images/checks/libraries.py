"""Shared libraries of the image: what they need from the C library, and families that are torn apart."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_ELF = b"\x7fELF"
_VERSION = re.compile(r"^(?P<family>GLIBC|GLIBCXX|CXXABI)_(?P<number>[0-9.]+)$")
#: Families whose members load each other by name at run time, so that they must come from one place.
_FAMILY = re.compile(
    r"^lib(?P<family>cudnn|cublas|cusparse|cusolver|cufft|nvrtc|nccl|nvshmem|cudart)(?=[._A-Z])"
)
_VARIANT = re.compile(r"/cu\d+(?=/)")
_MEMBER = re.compile(rb"libcudnn_[a-z_]+\.so\.\d+")


@dataclass
class Library:
    """One shared library.

    Attributes:
        path: Where it is.
        soname: Its own name; the file's where it has none.
        needs: Highest version it needs of each symbol family, e.g. `{"GLIBC": (2, 34)}`.
        needed: Names of the libraries that the loader brings in with it.
        loads: Names of cuDNN sublibraries that it can load by itself.
    """

    path: Path
    soname: str
    needs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)


def read_libraries(root: Path) -> list[Library]:
    """Every shared library below a folder, links not followed."""
    libraries = []
    for path in sorted(root.rglob("*")):
        if ".so" in path.name and path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) != _ELF:
                    continue
            libraries.append(read_library(path))
    return libraries


def read_library(path: Path) -> Library:
    """Read the names and symbol versions of one library."""
    library = Library(path=path, soname=path.name)
    with path.open("rb") as file:
        try:
            elf = ELFFile(file)
            for section in elf.iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    for _, versions in section.iter_versions():
                        _raise_to(library.needs, (version.name for version in versions))
                elif isinstance(section, DynamicSection):
                    sonames = [str(tag.soname) for tag in section.iter_tags("DT_SONAME")]  # type: ignore[attr-defined]
                    library.soname = sonames[0] if sonames else path.name
                    library.needed = {str(tag.needed) for tag in section.iter_tags("DT_NEEDED")}  # type: ignore[attr-defined]
        except (ELFError, ValueError) as error:
            # Named, so that the report says which file could not be read; never counted as checked.
            raise SystemExit(f"finding: {path} is not a readable library: {error}") from error
        if path.name.startswith("libcudnn"):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                library.loads = {match.decode() for match in _MEMBER.findall(data)}
    return library


def _raise_to(needs: dict[str, tuple[int, ...]], names: Iterable[str]) -> None:
    for name in names:
        if match := _VERSION.match(name):
            number = tuple(int(part) for part in match["number"].split("."))
            needs[match["family"]] = max(needs.get(match["family"], ()), number)


def too_new_symbols(libraries: list[Library], glibc: str, system: Path, *, expected: bool = True) -> list[str]:
    """Libraries that need a newer C or C++ library than the base has, whatever their wheel's tag says.

    Args:
        libraries: What was found.
        glibc: What the C library says of itself, `glibc 2.36`.
        system: Where the base's libstdc++ is.
        expected: Whether any package has compiled code, so that there must be a library.
    """
    if expected and not libraries:
        return ["no shared library was found: nothing was checked"]
    have = {"GLIBC": tuple(int(part) for part in re.findall(r"\d+", glibc))}
    for path in system.rglob("libstdc++.so.6"):
        with path.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, GNUVerDefSection):
                    for _, entries in section.iter_versions():
                        _raise_to(have, (entry.name for entry in entries))
    findings = []
    for library in libraries:
        for family, number in sorted(library.needs.items()):
            if family in have and number > have[family]:
                need, base = (".".join(map(str, version)) for version in (number, have[family]))
                findings.append(f"{_below_site(library.path)} needs {family} {need}, the base has {base}")
    return findings


def split_families(libraries: list[Library]) -> list[str]:
    """Families with members in two places or with a member missing: the loader then mixes versions."""
    findings = []
    places: dict[str, dict[str, set[Path]]] = defaultdict(lambda: defaultdict(set))
    for library in libraries:
        if match := _FAMILY.match(library.path.name):
            places[match["family"]][library.soname].add(library.path)
    for family, members in sorted(places.items()):
        for soname, paths in sorted(members.items()):
            # Folders cu12 and cu13 of one package are alternatives, of which it loads one.
            one_place = len({_VARIANT.sub("", str(path)) for path in paths}) == 1
            if not one_place and len({_content(path) for path in paths}) > 1:
                shown = " and ".join(_below_site(path) for path in sorted(paths))
                findings.append(f"{family}: {soname} is there twice with different content: {shown}")
    present = {library.path.name for library in libraries}
    for library in libraries:
        findings += [
            f"{library.path.name} loads {missing}, which its wheel does not bring"
            for missing in sorted(library.loads - present)
        ]
    return findings


def _below_site(path: Path) -> str:
    """A path as findings show it: the same wherever site-packages lies."""
    return str(path).rsplit("/site-packages/", 1)[-1]


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Walk a tree and say, as one JSON document, which device code its files carry.

One thread: with the files in cache the work is the interpreter's own, and over the 700 libraries of an image it
ends in less than a second.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tooling.census.reader.fatbin import EMBEDDING_SECTIONS, RELOCATABLE_SECTION
from tooling.census.reader.files import DeviceCode, read_file
from tooling.census.reader.span import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Version of the document.
FORMAT = 1
#: Files with these endings are text or pictures; their first bytes are not looked at.
TEXT_SUFFIXES = frozenset(
    f".{ending}"
    for group in (
        "py pyc pyi pyx pxd typed ipynb sh pl pm js ts map css html",
        "h hh hpp hxx cuh cu c cc cpp cxx inl inc ipp tcc cl f90 cmake pc",
        "txt md rst json yaml yml toml cfg ini csv xml tmpl jinja jinja2 j2",
        "svg png gif jpg ttf woff woff2 mo po pem crt",
    )
    for ending in group.split()
)


def files_below(root: str, skip: Iterable[str] = ()) -> Iterator[tuple[str, OSError | None]]:
    """Regular files below a folder in sorted order, never through a symbolic link.

    Args:
        root: The folder.
        skip: Folders relative to it that are left out, e.g. `proc`.

    Yields:
        Path relative to the root, and the error when it (a folder, then) cannot be listed.
    """
    prefix = f"{root.rstrip('/')}/"
    left_out = {prefix + name for name in skip}
    folders = [prefix]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield folder[len(prefix) :] or ".", error
            continue
        below = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in left_out:
                    below.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path[len(prefix) :], None
        folders.extend(reversed(below))


def is_text_name(path: str) -> bool:
    """Whether the ending says that a file cannot be loaded as a library."""
    dot = path.rfind(".")
    return dot >= 0 and path[dot:].lower() in TEXT_SUFFIXES


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path, or its end from some folder on, fits one of the patterns."""
    return any(fnmatchcase(f"/{path}", f"*/{pattern.removeprefix('/')}") for pattern in patterns)


def printable(path: str) -> str:
    """A file name as valid Unicode: bytes that are none are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


#: What becomes of the code of a section at run time; anything else is loaded by the CUDA runtime.
_PLACES = {RELOCATABLE_SECTION: "relocatable", **dict.fromkeys(EMBEDDING_SECTIONS, "embedded")}


def summary(path: str, code: DeviceCode) -> dict[str, Any]:
    """One file of the document: its targets with number of entries and stored bytes."""
    count: Counter[tuple[str, str, str, str, str]] = Counter()
    stored: Counter[tuple[str, str, str, str, str]] = Counter()
    for container in code.containers:
        place = _PLACES.get(container.section, "loadable")
        for entry in container.entries:
            isa = f"{entry.version[0]}.{entry.version[1]}" if entry.kind == "ptx" else ""
            key = (entry.kind, entry.arch, isa, entry.compression, place)
            count[key] += 1
            stored[key] += entry.payload_size
    names = ("kind", "arch", "ptx_isa", "compression", "place")
    return {
        "path": printable(path),
        "kind": code.kind,
        "size": code.size,
        "containers": len(code.containers),
        "targets": [
            {**dict(zip(names, key, strict=True)), "entries": count[key], "stored_bytes": stored[key]}
            for key in sorted(count)
        ],
    }


def scan(root: str, skip: Iterable[str] = ()) -> dict[str, Any]:
    """Read every file below a folder.

    Returns:
        `format`, `files_seen` (all regular files), `libraries` (ELF files, archives, fat binaries and PTX,
        with or without device code) and `unread` (path and reason of those that could not be read).
    """
    libraries, unread = [], []
    seen = 0
    for path, error in files_below(root, skip):
        if error is not None:
            unread.append({"path": printable(path), "reason": f"folder cannot be listed: {error.strerror}"})
            continue
        seen += 1
        if is_text_name(path):
            continue
        try:
            code = read_file(f"{root}/{path}")
        except MalformedError as problem:
            unread.append({"path": printable(path), "reason": str(problem)})
        except (OSError, ValueError) as problem:
            unread.append({"path": printable(path), "reason": f"cannot be read: {problem}"})
        else:
            if code is not None:
                libraries.append(summary(path, code))
    return {"format": FORMAT, "files_seen": seen, "libraries": libraries, "unread": unread}


def main() -> None:
    """Arguments: the root, the file for the document, and folders to leave out."""
    root, output, *skip = sys.argv[1:]
    document = scan(root.rstrip("/") or "/", skip)
    with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123  # as above
        json.dump(document, file, separators=(",", ":"))

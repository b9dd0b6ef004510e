"""Libraries with device code of our own making, for the tests of pruning."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SASS, PTX = 2, 1
ARCH_SPECIFIC = 1 << 20


class Code(NamedTuple):
    """An entry to make."""

    arch: int
    size: int
    kind: int = SASS
    flags: int = 0


#: Three containers: one with code for 12.0 between others, one without any, one with PTX and small entries.
CONTAINERS = (
    (Code(90, 200_000, flags=ARCH_SPECIFIC), Code(120, 5_000), Code(80, 150_000), Code(90, 3_000, PTX)),
    (Code(80, 100_000), Code(90, 120_000)),
    (Code(75, 800), Code(120, 70_000, flags=ARCH_SPECIFIC), Code(100, 90_000), Code(121, 100, PTX)),
)


def entry(code: Code, seed: int) -> bytes:
    """An entry with random bytes as its payload, as a reader of ours sees it."""
    size = -(-code.size // 8) * 8
    header = struct.pack(
        "<HHIQIIHHIIIQQQ", code.kind, 0x101, 64, size, 0, 64, 0, 8, code.arch, 0, 0, code.flags, 0, 0
    )
    return header + random.Random(seed).randbytes(size)  # noqa: S311


def container(codes: tuple[Code, ...], seed: int = 0) -> bytes:
    """A container of some entries."""
    body = b"".join(entry(code, seed * 100 + index) for index, code in enumerate(codes))
    return b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(body)) + body


SOURCE = """
__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n" {blobs} ".text\\n");
{declarations}
struct wrapper {{ int magic, version; const void *data; const void *other; }};
__attribute__((section(".nvFatBinSegment"), used)) static struct wrapper wrappers[] = {{ {wrappers} }};
const void *container(int index) {{ return wrappers[index].data; }}
static int numbers[] = {{1, 2, 39}};
int answer(void) {{ return numbers[0] + numbers[1] + numbers[2]; }}
"""


def build_library(
    folder: Path,
    containers: tuple[tuple[Code, ...] | bytes, ...] = CONTAINERS,
    *options: str,
    name: str = "libsample.so",
    pointer: str = "blob%d",
    more: str = "",
) -> Path:
    """Link a library whose containers are pointed at as nvcc does it; skips the test where there is no gcc.

    Args:
        folder: Where to.
        containers: Their entries, or containers as bytes.
        options: More options of gcc.
        name: Of the file.
        pointer: What a wrapper points at, `%d` being the number of the container.
        more: More C.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to link a library with")
    blobs, declarations, wrappers = "", "", []
    for index, codes in enumerate(containers):
        (folder / f"{index}.fatbin").write_bytes(codes if isinstance(codes, bytes) else container(codes, index))
        blobs += f'"blob{index}: .incbin \\"{folder}/{index}.fatbin\\"\\n"\n'
        declarations += f'extern const char blob{index}[] __attribute__((visibility("hidden")));\n'
        wrappers.append(f"{{0x466243b1, 1, {pointer.replace('%d', str(index))}, 0}}")
    source = folder / "sample.c"
    source.write_text(
        SOURCE.format(blobs=blobs, declarations=declarations, wrappers=", ".join(wrappers)) + more
    )
    target = folder / name
    kind = ["-shared", "-fPIC"] if "-pie" not in options else ["-fPIE"]
    subprocess.run(["gcc", "-O1", *kind, *options, str(source), "-o", str(target)], check=True)
    for index in range(len(containers)):
        (folder / f"{index}.fatbin").unlink()
    source.unlink()
    return target

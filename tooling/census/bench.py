"""The census against `cuobjdump`, file by file: the same answer, and how much sooner."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tooling.census.reader.fatbin import EMBEDDING_SECTIONS, LOADABLE_SECTION, RELOCATABLE_SECTION
from tooling.census.reader.files import DeviceCode, read_file
from tooling.census.reader.scan import files_below, is_text_name
from tooling.census.reader.span import MalformedError
from tooling.errors import CheckError, CommandError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: In the output of `--list-elf` and `--list-ptx`.
_LISTED = re.compile(r"\.(sm_\d+[af]?)\.(cubin|ptx)$", re.MULTILINE)
#: How cuobjdump says that a file has none, on stderr.
_NOTHING = re.compile(r"does not contain device code|No (?:PTX|ELF) file found", re.IGNORECASE)
#: Kinds that cuobjdump opens.
_COMPARABLE = frozenset({"elf", "object", "archive", "cubin", "fatbin"})
_SUFFIX_OF_KIND = {"sass": "cubin", "ptx": "ptx"}

Listing = dict[str, int]


class Difference(Record):
    """A file about which the two disagree."""

    path: str
    census: str
    cuobjdump: str


class Benchmark(Record):
    """Times of the runs in seconds, and every disagreement.

    Attributes:
        root: The folder.
        files: How many files both looked at.
        total_bytes: Their sizes together.
        with_device_code: How many of them have any.
        census_s: One time for each pass over all the files.
        cuobjdump_s: Likewise.
        census_median_s: Median of the passes.
        cuobjdump_median_s: Likewise.
        ratio: cuobjdump's median over ours.
        census_cpu_s: Median processor time of a pass, which a busy machine changes less than the wall clock.
        cuobjdump_cpu_s: Likewise, with that of its processes.
        differences: Empty when the answers are the same.
    """

    root: str
    files: int
    total_bytes: int
    with_device_code: int
    census_s: tuple[float, ...]
    cuobjdump_s: tuple[float, ...]
    census_median_s: float
    cuobjdump_median_s: float
    ratio: float
    census_cpu_s: float
    cuobjdump_cpu_s: float
    differences: tuple[Difference, ...]


def find_cuobjdump(given: Path | None = None) -> Path:
    """The program: the one named, the wheel's in this environment, or the one on PATH.

    Raises:
        CommandError: There is none.
    """
    on_path = shutil.which("cuobjdump")
    candidates = (
        [given] if given else sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/cuobjdump"))
    )
    if not given and on_path:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise CommandError(
        "no cuobjdump here to compare with", fix="pip install nvidia-cuda-cuobjdump, or pass --cuobjdump"
    )


def listing(code: DeviceCode | None) -> Listing:
    """What `cuobjdump --list-elf --list-ptx` counts: name of the target and ending, e.g. `sm_120a.cubin`.

    It looks at relocatable code only where there is no loadable code, never at embedded code, and calls
    family-specific machine code plain.
    """
    if code is None:
        return {}
    by_member: dict[str, set[str]] = {}
    for container in code.containers:
        by_member.setdefault(container.member, set()).add(container.section)
    found: Counter[str] = Counter()
    for container in code.containers:
        superseded = (
            container.section == RELOCATABLE_SECTION and LOADABLE_SECTION in by_member[container.member]
        )
        if superseded or container.section in EMBEDDING_SECTIONS:
            continue
        for entry in container.entries:
            name = f"sm_{entry.arch.replace('.', '')}"
            name = name.removesuffix("f") if entry.kind == "sass" else name
            found[f"{name}.{_SUFFIX_OF_KIND.get(entry.kind, entry.kind)}"] += 1
    return dict(found)


def parse_listing(stdout: str) -> Listing:
    """The same out of what cuobjdump printed."""
    return dict(Counter(f"{arch}.{kind}" for arch, kind in _LISTED.findall(stdout)))


def list_command(cuobjdump: Path, path: Path, *flags: str) -> list[str]:
    """The command that lists a file's device code."""
    return [str(cuobjdump), *flags, str(path)]


def _cuobjdump(cuobjdump: Path, path: Path, *flags: str) -> str:
    done = subprocess.run(
        list_command(cuobjdump, path, *flags), capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode and not _LISTED.search(done.stdout) and not _NOTHING.search(done.stderr + done.stdout):
        return f"error: {(done.stderr or done.stdout).strip()[:200]}"
    return done.stdout


class _Times(NamedTuple):
    """Wall clock and processor seconds of each pass; the latter with those of child processes."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]


def _timed(passes: int, work: Callable[[], object]) -> _Times:
    wall, cpu = [], []
    for _ in range(passes):
        start, used = time.perf_counter(), sum(os.times()[:4])
        work()
        wall.append(round(time.perf_counter() - start, 4))
        cpu.append(round(sum(os.times()[:4]) - used, 4))
    return _Times(tuple(wall), tuple(cpu))


def comparable_files(root: Path) -> list[Path]:
    """The files below a folder that both can read; those that only fail here come up as differences later."""
    found = []
    for path, error in files_below(str(root)):
        if error is None and not is_text_name(path):
            code = _census(root / path)
            if isinstance(code, str) or (code is not None and code.kind in _COMPARABLE):
                found.append(root / path)
    return found


def _census(path: Path) -> DeviceCode | str | None:
    try:
        return read_file(path)
    except MalformedError as error:
        return f"error: {error}"


def benchmark(root: Path, cuobjdump: Path, passes: int, say: Callable[[str], None]) -> Benchmark:
    """Time both over the same files, and compare every answer.

    Args:
        root: Folder with the files; read once before, so that both find them in cache.
        cuobjdump: The program.
        passes: How often cuobjdump goes over all files; ours goes three times as often.
        say: Told what goes on.

    Raises:
        CheckError: There is no file to compare, or none with device code.
    """
    files = comparable_files(root)
    answers = {path: _census(path) for path in files}
    counted = {path: code if isinstance(code, str) else listing(code) for path, code in answers.items()}
    with_code = sum(1 for found in counted.values() if found)
    if not with_code:
        raise CheckError(f"none of {len(files)} files has device code: nothing to compare", where=str(root))
    say(f"{len(files)} files, {with_code} with device code; cuobjdump goes over them {passes + 1} times")
    differences = _differences(root, cuobjdump, counted)
    theirs = _timed(passes, lambda: [_cuobjdump(cuobjdump, path, "--list-elf") for path in files])
    ours = _timed(3 * passes, lambda: [_census(path) for path in files])
    return Benchmark(
        root=str(root),
        files=len(files),
        total_bytes=sum(path.stat().st_size for path in files),
        with_device_code=with_code,
        census_s=ours.wall,
        cuobjdump_s=theirs.wall,
        census_median_s=statistics.median(ours.wall),
        cuobjdump_median_s=statistics.median(theirs.wall),
        ratio=round(statistics.median(theirs.wall) / statistics.median(ours.wall), 1),
        census_cpu_s=statistics.median(ours.cpu),
        cuobjdump_cpu_s=statistics.median(theirs.cpu),
        differences=tuple(differences),
    )


def _differences(root: Path, cuobjdump: Path, counted: dict[Path, Listing | str]) -> list[Difference]:
    found = []
    for path, ours in counted.items():
        output = _cuobjdump(cuobjdump, path, "--list-elf", "--list-ptx")
        theirs = output if output.startswith("error:") else parse_listing(output)
        if ours != theirs:
            found.append(
                Difference(path=str(path.relative_to(root)), census=_words(ours), cuobjdump=_words(theirs))
            )
    return found


def _words(found: Listing | str) -> str:
    if isinstance(found, str):
        return found
    return " ".join(f"{count}x{name}" for name, count in sorted(found.items())) or "no device code"


def render(result: Benchmark) -> Iterable[Sequence[str]]:
    """The rows of the table."""
    return [
        (
            "cuobjdump --list-elf",
            f"{result.cuobjdump_median_s:.2f} s, {result.cuobjdump_cpu_s:.2f} s of processor",
            f"{len(result.cuobjdump_s)} passes",
        ),
        (
            "census",
            f"{result.census_median_s:.3f} s, {result.census_cpu_s:.3f} s of processor",
            f"{len(result.census_s)} passes",
        ),
        ("ratio", f"{result.ratio:.0f}x", f"{result.files} files, {result.total_bytes / 1e9:.2f} GB"),
        ("differences", str(len(result.differences)), f"{result.with_device_code} files with device code"),
    ]

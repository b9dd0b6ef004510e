"""Looking at the processes and compile caches of an engine on this host while it boots and serves."""

from __future__ import annotations

import glob
import threading
import time
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

import yaml
from pydantic import Field

from tooling.gates.jit.records import CacheChange, CompilerRun, JitObservation, Phase
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Time between two looks at the processes, seconds.
PERIOD_S = 0.05
_PROC = Path("/proc")
_EXAMPLES = 4
_TARGET_CHARS = 120
#: How often, and how many seconds apart, a process that has just begun is asked for its arguments.
_TRIES, _RETRY_S = 10, 0.002
#: Triton's files that are not called after the kernel alone.
_LAUNCHER, _GROUP = "__triton_launcher", "__grp__"

Snapshot = dict[str, dict[str, tuple[int, int]]]


class CacheFact(Record):
    """Where a compile cache is.

    Attributes:
        name: Whose it is.
        variable: Environment variable that moves it.
        below: Folder below the variable's value, if the cache is not the value itself.
        default: Without the variable; a pattern, `~` is the engine's home.
        kernel: What is called after the kernel: a file, or the folder that it is in.
    """

    name: str
    variable: str
    below: str = ""
    default: str
    kernel: Literal["file", "folder"] = "folder"


class JitFacts(Record):
    """`facts.yaml`."""

    compilers: frozenset[str] = Field(min_length=1)
    bookkeeping: tuple[str, ...] = Field(min_length=1)
    caches: tuple[CacheFact, ...] = Field(min_length=1)


@cache
def jit_facts() -> JitFacts:
    """The facts that ship with the package."""
    text = (resources.files("tooling.gates.jit") / "facts.yaml").read_text(encoding="utf-8")
    return JitFacts.model_validate(yaml.safe_load(text))


def cache_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """Where the caches of an engine with this environment are; those with a pattern only if they exist.

    Args:
        environment: Its variables; see `environment_of` for a running one.
    """
    home = environment.get("HOME", "/root")
    found = {}
    for fact in jit_facts().caches:
        if value := environment.get(fact.variable):
            found[fact.name] = Path(value) / fact.below
            continue
        pattern = fact.default.replace("~", home, 1)
        matches = sorted(glob.glob(pattern)) if "*" in pattern else [pattern]  # noqa: PTH207  # absolute
        if matches:
            found[fact.name] = Path(matches[0])
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Variables with which a process was started.

    Raises:
        OSError: It is gone, or belongs to somebody else.
    """
    words = _words(pid, "environ")
    pairs = (word.decode(errors="replace").partition("=") for word in words if word)
    return {name: value for name, _, value in pairs}


def snapshot(folders: Mapping[str, Path]) -> Snapshot:
    """Size and time of change of every file of the caches; temporary files may go while we look."""
    found: Snapshot = {}
    for name, folder in folders.items():
        files = {}
        for path in folder.rglob("*") if folder.is_dir() else ():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                files[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
        found[name] = files
    return found


def changes(before: Snapshot, after: Snapshot, phase: Phase) -> tuple[CacheChange, ...]:
    """Files that are new or other than before, one record a cache."""
    found = []
    for name, files in after.items():
        new = sorted(path for path, state in files.items() if before.get(name, {}).get(path) != state)
        if new:
            code = [path for path in new if files[path][0] and not f"/{path}".endswith(jit_facts().bookkeeping)]
            found.append(
                CacheChange(
                    cache=name,
                    phase=phase,
                    files=len(new),
                    bytes=sum(files[path][0] for path in new),
                    bookkeeping=len(new) - len(code),
                    kernels=kernels_of(name, code),
                    examples=tuple([*code, *sorted(set(new) - set(code))][:_EXAMPLES]),
                )
            )
    return tuple(found)


def kernels_of(cache: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Names of the kernels that files of a cache belong to, sorted.

    Args:
        cache: Its name in the facts; of an unknown one the folders tell.
        paths: Files relative to it.
    """
    by_file = any(fact.name == cache and fact.kernel == "file" for fact in jit_facts().caches)
    named = set()
    for path in map(PurePosixPath, paths):
        if not by_file:
            named.add(path.parent.name or path.name)
        elif not path.name.startswith(_LAUNCHER):  # made for any kernel with its parameters
            named.add(path.name.removeprefix(_GROUP).partition(".")[0])
    return tuple(sorted(named))


def descendants(parents: Mapping[int, int], root: int) -> set[int]:
    """All processes below one.

    Args:
        parents: Parent by process.
        root: The process.
    """
    children: dict[int, list[int]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


class JitWatch:
    """Watches an engine from its start on; `serving()` marks its first answer.

    Args:
        pid: Its first process.
        folders: Its compile caches, see `cache_folders`.
        boot_id: Which boot.
        warm: An earlier boot with the same arguments filled the caches.
    """

    def __init__(self, pid: int, folders: Mapping[str, Path], *, boot_id: str, warm: bool) -> None:
        self._pid, self._folders = pid, dict(folders)
        self._boot_id, self._warm = boot_id, warm
        self._phase = Phase.BOOT
        self._begin = self._turned = time.monotonic()
        self._looks = dict.fromkeys(Phase, 0)
        self._gap = 0.0
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._runs: dict[tuple[int, int], CompilerRun] = {}
        self._changes: list[CacheChange] = []
        self._before = snapshot(self._folders)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="jit-watch", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more, and compare the caches a last time."""
        self._stop.set()
        self._thread.join()
        self._turn(self._phase)

    def serving(self) -> None:
        """The engine gave its first answer: from now on nothing may compile."""
        self._turn(Phase.SERVING)

    def _turn(self, phase: Phase) -> None:
        now, after = time.monotonic(), snapshot(self._folders)
        self._changes += changes(self._before, after, self._phase)
        self._seconds[self._phase] += now - self._turned
        self._before, self._turned, self._phase = after, now, phase

    def _loop(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(PERIOD_S):
            self._look()
            moment = time.monotonic()
            self._gap, last = max(self._gap, moment - last), moment

    def _look(self) -> None:
        self._looks[self._phase] += 1
        parents: dict[int, int] = {}
        born: dict[int, tuple[str, int]] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (status := _status(entry)) is not None:
                name, parent, start = status
                parents[int(entry.name)] = parent
                born[int(entry.name)] = (name, start)
        for process in descendants(parents, self._pid):
            name, start = born[process]
            if name in jit_facts().compilers and (process, start) not in self._runs:
                self._runs[process, start] = CompilerRun(
                    program=name,
                    phase=self._phase,
                    at_s=round(time.monotonic() - self._begin, 2),
                    target=_target(process),
                )

    def observation(self) -> JitObservation:
        """What was seen; complete once the block was left."""
        return JitObservation(
            boot_id=self._boot_id,
            warm=self._warm,
            looks=self._looks,
            longest_gap_s=round(self._gap, 3),
            seconds={phase: round(seconds, 1) for phase, seconds in self._seconds.items()},
            compilers=tuple(self._runs.values()),
            changes=tuple(self._changes),
            caches={name: str(folder) for name, folder in self._folders.items() if folder.is_dir()},
        )


def _status(entry: Path) -> tuple[str, int, int] | None:
    """Name, parent and start time of a process; None when it is gone."""
    try:
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may itself contain some.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), int(fields[19])


def _words(process: int, name: str) -> list[bytes]:
    """Arguments (`cmdline`) or variables (`environ`) of a process.

    In the middle of its `exec` a process has its new name already, and neither of them yet.

    Raises:
        OSError: It is gone, or belongs to somebody else.
    """
    path = _PROC / str(process) / name
    for _ in range(_TRIES):
        if found := path.read_bytes().rstrip(b"\0"):
            return found.split(b"\0")
        time.sleep(_RETRY_S)
    return []


def _target(process: int) -> str:
    try:
        words = _words(process, "cmdline")
    except OSError:
        return ""
    return words[-1].decode(errors="replace")[-_TARGET_CHARS:] if words else ""

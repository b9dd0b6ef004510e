"""Follow a log on a thread: every byte to the evidence file, every line to triage, as they come."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

from tooling.gates.records import Evidence
from tooling.triage.reader import split_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tooling.triage.log import LogTriage
    from tooling.triage.records import Finding, TriageReport

#: Seconds between two looks at a growing file.
_TAIL_S = 0.2
#: Bytes read of a growing file at a time.
_TAIL_BYTES = 1 << 16


class LogFollower:
    """Feeds a byte stream to triage and keeps it as evidence.

    Args:
        chunks: The stream; it ends when the log does.
        reader: Triage of this boot.
        path: Evidence file, made anew.
        stop_source: Makes `chunks` end early.
        on_new: Told of every finding when its first line comes.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        reader: LogTriage,
        path: Path,
        stop_source: Callable[[], None],
        on_new: Callable[[Finding], None],
    ) -> None:
        self.path = path
        self._reader = reader
        self._chunks = chunks
        self._stop_source = stop_source
        self._lock = threading.Lock()
        self._on_new = on_new
        self._hopeless: Finding | None = None
        self._hash = hashlib.sha256()
        self._broken = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        self._thread = threading.Thread(target=self._run, name=f"log {path.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for line in split_chunks(self._kept(self._chunks)):
                with self._lock:
                    new = self._reader.feed(line)
                for finding in new:
                    if self._hopeless is None and finding.hopeless:
                        self._hopeless = finding
                    self._on_new(finding)
        except OSError as error:
            # The evidence is incomplete from here on; whoever asks for a report is told.
            self._broken = str(error)

    def _kept(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._file.closed:
                return
            self._file.write(chunk)
            self._file.flush()
            self._hash.update(chunk)
            yield chunk

    @property
    def hopeless(self) -> Finding | None:
        """The first line after which an engine neither goes on nor exits."""
        return self._hopeless

    def report(self, *, died: str = "") -> TriageReport:
        """Triage of what came so far."""
        with self._lock:
            report = self._reader.report(died=died)
        if self._broken:
            return report.model_copy(
                update={"notes": (*report.notes, f"the log could not be followed: {self._broken}")}
            )
        return report

    def last_lines(self, count: int = 15) -> list[str]:
        """The end of the evidence file."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]

    def wait(self, seconds: float) -> None:
        """Give the end of a log time to arrive."""
        self._thread.join(seconds)

    def quiet(self) -> None:
        """Tell of nothing any more; what an engine says of its own end is no news."""
        self._on_new = _nobody

    def close(self) -> Evidence:
        """Stop following; returns the evidence file with its hash."""
        self._stop_source()
        self._thread.join(5.0)
        self._file.close()
        return Evidence(path=str(self.path), sha256=self._hash.hexdigest())


def _nobody(finding: Finding) -> None:
    """Listens to nothing."""
    del finding


class FileTail:
    """The bytes of a growing file from an offset on; a file that was replaced or cut is read from its start."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the stream after what is there."""
        self._stopped.set()

    def __iter__(self) -> Iterator[bytes]:
        """Read until stopped."""
        file = self._path.open("rb")
        try:
            inode = self._path.stat().st_ino
            file.seek(self._offset)
            while True:
                chunk = file.read(_TAIL_BYTES)
                if chunk:
                    yield chunk
                    continue
                if self._stopped.is_set():
                    return
                time.sleep(_TAIL_S)
                try:
                    now = self._path.stat()
                except FileNotFoundError:
                    continue
                if now.st_ino != inode or now.st_size < file.tell():
                    file.close()
                    file = self._path.open("rb")
                    inode = now.st_ino
        finally:
            file.close()

"""The line of generations of one group of GPUs: records on disk, and `current` as the one commit point."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from tooling.errors import InputError
from tooling.host import files
from tooling.host.events import moment
from tooling.host.fields import Fields
from tooling.host.reading import DIGEST, parse_request

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tooling.host.request import Request

#: Who made a generation the current one.
REASONS = ("deploy", "rollback", "start", "fallback", "repair")
RUNNING, STOPPED = "running", "stopped"


@dataclass(frozen=True)
class Generation:
    """What a host ran or tried to run; never changed once written.

    Attributes:
        number: Counts up from 1, failed ones included.
        request: All that it takes to start it again.
        image: Content id of the image on this host.
        previous: The generation that served when this one was made; 0: none.
        operation: The operation that made it.
        created: When.
    """

    number: int
    request: Request
    image: str
    previous: int
    operation: str
    created: str


@dataclass(frozen=True)
class Current:
    """The committed generation.

    Attributes:
        generation: Its number.
        served: All that were ever committed, each once, the latest last.
        by: What committed it, one of `REASONS`.
        replaced: The generation that served before; 0: none.
        wanted: `running` or `stopped`.
        since: When it was committed.
        engine: Version of the Docker Engine then.
    """

    generation: int
    served: tuple[int, ...]
    by: str
    replaced: int
    wanted: str
    since: str
    engine: str = ""


@dataclass(frozen=True)
class Pending:
    """A swap that has begun: until `current` names its target, it did not happen.

    Attributes:
        kind: `deploy`, `rollback` and so on.
        target: The generation that is to serve.
        previous: The one that served; 0: none.
        operation: Who.
    """

    kind: str
    target: int
    previous: int
    operation: str


class Group:
    """The state of one group of GPUs on disk.

    Args:
        root: Where all state of the host lies.
        name: Name of the group.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.directory = root / "groups" / name
        self.operations = self.directory / "operations"
        self.logs = self.directory / "logs"
        self._generations = self.directory / "generations"
        self._current = self.directory / "current"
        self._pending = self.directory / "pending"
        self._tries = self.directory / "tries"
        self._history = self.directory / "history.jsonl"
        self.lock_path = self.directory / "lock"

    def make(self) -> None:
        """Create the directories.

        Raises:
            InputError: It is not allowed here.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in (self._generations, self.operations, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the state directory cannot be made: {error.strerror}",
                where=str(self.root),
                fix="run as root, or give a directory of yours with --root",
            ) from error

    def lock(self, holder: str) -> AbstractContextManager[None]:
        """Be the only one who changes this group."""
        return files.locked(self.lock_path, holder)

    def is_locked(self) -> bool:
        """Whether an operation runs."""
        return files.is_locked(self.lock_path)

    # -- the commit point

    def current(self) -> Optional[Current]:
        """The committed generation; None before the first.

        Raises:
            StateError: The file is damaged.
        """
        if not self._current.exists():
            return None
        fields = Fields(_body(self._current), source=str(self._current))
        try:
            current = Current(
                generation=fields.integer("generation", low=1),
                served=fields.integers("served"),
                by=fields.text("by", pattern="|".join(REASONS)),
                replaced=fields.integer("replaced"),
                wanted=fields.text("wanted", pattern=f"{RUNNING}|{STOPPED}"),
                since=fields.text("since"),
                engine=fields.text("engine"),
            )
            fields.end()
        except InputError as error:
            raise files.damaged(self._current, f"does not make sense: {error.what}") from error
        return current

    def commit(self, generation: int, by: str, *, wanted: str = RUNNING, engine: str = "") -> Current:
        """Make a generation the current one: the one moment at which a swap happens."""
        before = self.current()
        served = [one for one in (before.served if before else ()) if one != generation]
        current = Current(
            generation=generation,
            served=(*served, generation),
            by=by,
            replaced=before.generation if before else 0,
            wanted=wanted,
            since=moment(),
            engine=engine or (before.engine if before else ""),
        )
        files.write(self._current, files.sealed(dataclasses.asdict(current)))
        return current

    def want(self, wanted: str) -> None:
        """Note that the current generation is to run, or to stay stopped."""
        before = self.current()
        if before is None:
            raise InputError("nothing was ever deployed here", where=self.name, fix="deploy first")
        changed = dataclasses.replace(before, wanted=wanted)
        files.write(self._current, files.sealed(dataclasses.asdict(changed)))

    def repair(self, generation: int) -> Current:
        """Write `current` anew after it was lost: those that served are the generation and its forebears."""
        served, number = [generation], self.generation(generation).previous
        while number:
            served.insert(0, number)
            number = self.generation(number).previous
        current = Current(generation, tuple(served), "repair", 0, RUNNING, moment())
        files.write(self._current, files.sealed(dataclasses.asdict(current)))
        return current

    # -- intent

    def pending(self) -> Optional[Pending]:
        """The swap that was begun and not finished.

        A damaged file is as good as none: `current` alone says what must run.
        """
        if not self._pending.exists():
            return None
        try:
            body = files.unsealed(self._pending)
            return Pending(
                str(body["kind"]), int(body["target"]), int(body["previous"]), str(body["operation"])
            )
        except (files.StateError, KeyError, TypeError, ValueError):
            return Pending("unreadable", 0, 0, "")

    def intend(self, pending: Pending) -> None:
        """Write down a swap before it begins."""
        files.write(self._pending, files.sealed(dataclasses.asdict(pending)))

    def settle(self) -> None:
        """The swap is over, one way or the other."""
        self._pending.unlink(missing_ok=True)
        files.sync_directory(self.directory)

    # -- generations

    def numbers(self) -> tuple[int, ...]:
        """All generations, failed ones included."""
        if not self._generations.is_dir():
            return ()
        return tuple(sorted(int(path.stem) for path in self._generations.glob("[0-9]*.json")))

    def record(self, request: Request, image: str, operation: str) -> Generation:
        """Write the next generation."""
        current = self.current()
        number = max(self.numbers(), default=0) + 1
        body = {
            "number": number,
            # Evidence is verified before this; a copy of it lies with the operation.
            "request": {**request.as_json(), "records": [], "trust": []},
            "image": image,
            "previous": current.generation if current else 0,
            "operation": operation,
            "created": moment(),
        }
        files.write_once(self._path(number), files.sealed(body))
        return self.generation(number)

    def generation(self, number: int) -> Generation:
        """Read one.

        Raises:
            InputError: There is none of this number.
            StateError: Its file is damaged.
        """
        path = self._path(number)
        if not path.exists():
            known = ", ".join(map(str, self.numbers())) or "none"
            raise InputError(
                f"there is no generation {number}", where=f"group {self.name}", fix=f"name one of: {known}"
            )
        fields = Fields(_body(path), source=str(path))
        try:
            generation = Generation(
                number=fields.integer("number", low=number, high=number),
                request=parse_request(fields.object("request"), str(path)),
                image=fields.text("image", pattern=DIGEST),
                previous=fields.integer("previous", high=number - 1),
                operation=fields.text("operation"),
                created=fields.text("created"),
            )
            fields.end()
        except InputError as error:
            raise files.damaged(path, f"does not make sense: {error.what}") from error
        return generation

    def _path(self, number: int) -> Path:
        return self._generations / f"{number:04d}.json"

    # -- tries at boot

    def tries(self, generation: int) -> int:
        """How often a committed generation was started in vain since it last answered."""
        try:
            body = json.loads(self._tries.read_bytes())
            return int(body["count"]) if body["generation"] == generation else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def count_try(self, generation: int) -> int:
        """Count a start before it is made, so that one that takes the host down is counted too."""
        count = self.tries(generation) + 1
        files.write(self._tries, files.canonical({"generation": generation, "count": count}))
        return count

    def forget_tries(self) -> None:
        """It answers."""
        self._tries.unlink(missing_ok=True)

    # -- history

    def write_history(self, action: str, operation: str, **facts: Any) -> None:
        """Add a line to the history, which is only for people: nothing is decided by it."""
        files.append_line(self._history, {"time": moment(), "action": action, "operation": operation, **facts})

    def history(self) -> tuple[list[Any], int]:
        """Lines of the history, and how many are unreadable."""
        return files.read_lines(self._history)


def groups(root: Path) -> Iterable[str]:
    """Names of the groups that have state."""
    parent = root / "groups"
    return sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else ()


def _body(path: Path) -> dict[str, Any]:
    body = files.unsealed(path)
    if not isinstance(body, dict):
        raise files.damaged(path, "holds no object")
    return body

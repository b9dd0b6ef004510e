"""One host, talked to: look, install the host program, ask it, follow what it does over lines that break."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from tooling.deploy.faults import HostFault, host_fault
from tooling.deploy.installing import HostProgram, install_command
from tooling.deploy.preflight import Seen, read_seen
from tooling.deploy.transport import host_program
from tooling.probe.collect import COLLECT_LIMIT_S, collector_path
from tooling.probe.parse import read_document
from tooling.records import Record, canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.deploy.channel import Channel
    from tooling.deploy.inventory import Model
    from tooling.host.request import Request
    from tooling.probe.records import HostRecord

#: Pauses before each try to hear again of an operation whose line broke, in seconds: five minutes in all.
RECONNECT_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 60.0, 60.0, 60.0)
#: Step of the last event of every operation.
RESULT = "result"
_INTERRUPTED = 130


class Event(Record):
    """One line of what the host program says while it works."""

    model_config = ConfigDict(extra="ignore")

    time: str
    operation: str
    step: str
    state: Literal["start", "progress", "done", "failed"]
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


class Outcome(Record):
    """How an operation on a host ended.

    Attributes:
        host: Name of the host.
        group: GPU group.
        operation: Its id on the host.
        exit_code: Of the operation; 0 exactly when it is done.
        message: Its last words.
        data: Data of its last event.
        events: How many events were heard.
    """

    host: str
    group: str
    operation: str
    exit_code: int
    message: str
    data: dict[str, Any] = Field(default_factory=dict)
    events: int


def operation_failed(outcome: Outcome) -> HostFault:
    """The error for an operation that failed, with the host program's own words and exit code."""
    error = outcome.data.get("error")
    words = error if isinstance(error, dict) else {"what": outcome.message}
    failed = told(f"{outcome.host}/{outcome.group}", words)
    if outcome.operation:
        failed.details.append(f"operation {outcome.operation}: its log and evidence are kept on the host")
    failed.exit_code = outcome.exit_code
    return failed


class WatchEndedError(HostFault):
    """The operator stopped watching; the host goes on by itself."""

    exit_code = _INTERRUPTED


def read_event(line: str) -> Event | None:
    """Read a line; None when it is no event (a login script's greeting, a warning)."""
    if not line.startswith("{"):
        return None
    try:
        return Event.model_validate_json(line)
    except ValidationError:
        return None


@dataclass
class _Watch:
    """Hears the events of one operation, each once, over as many connections as it takes."""

    on_event: Callable[[Event], None]
    operation: str = ""
    last: Event | None = None
    heard: int = 0
    skip: int = 0
    other: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        event = read_event(line)
        if event is None:
            self.other.append(line)
            return
        if self.skip:  # `follow` begins with the first event again
            self.skip -= 1
            return
        self.operation, self.last = event.operation, event
        self.heard += 1
        self.on_event(event)

    @property
    def ended(self) -> bool:
        return self.last is not None and self.last.step == RESULT


@dataclass
class HostSession:
    """What the operator asks of one host.

    Attributes:
        channel: The way there.
        program: The host program of this toolkit.
        sleep: Waits; tests put their own here.
    """

    channel: Channel
    program: HostProgram
    sleep: Callable[[float], None] = time.sleep
    _installed: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """Name of the host."""
        return self.channel.host.name

    def look(self, model: Model | None = None, files: Sequence[str] = ()) -> Seen:
        """See whether the host is as a deploy needs it; nothing is changed.

        Raises:
            HostFault: It cannot be reached, or has no usable python3.
        """
        host = self.channel.host
        asked = {
            "program": self.program.path(host),
            "model": None
            if model is None
            else {"id": model.id, "revision": model.revision, "path": model.path},
            "model_cache": host.model_cache or "",
            "files": list(files),
        }
        script = (resources.files("tooling.deploy.on_host") / "look.py").read_bytes()
        words = [host.python, "-", canonical_json(asked).decode()]
        return read_seen(self.channel.check(words, script), host.name)

    def facts(self) -> HostRecord:
        """What the doctor sees of the host: driver, GPUs, engine, kernel log.

        Raises:
            HostFault: It cannot be seen.
        """
        host = self.channel.host
        script = collector_path().read_bytes()
        done = self.channel.run([host.python, "-"], script, limit_s=COLLECT_LIMIT_S)
        if not done.out.lstrip().startswith("{"):
            raise host_fault(host.name, done.code, done.err or done.out)
        return read_document(done.out, where=host.name)

    def serve_at_boot(self, group: str) -> str:
        """Have the host's systemd bring up the committed generations at boot.

        Returns:
            Why it will not; empty when it will.
        """
        host = self.channel.host
        done = self.channel.run(host_program(host, self.program.path(host), group, "install-unit"))
        if done.code == 0:
            return ""
        document = _document(done.out)
        error = told(host.name, document["error"]) if document and "error" in document else None
        return f"{error.what}; {error.fix}" if error else done.err.strip()

    def install(self, seen: Seen) -> bool:
        """Put the host program there, unless this very one is there already.

        Returns:
            Whether it was put there now.

        Raises:
            HostFault: It could not be written, or was damaged on the way.
        """
        if self._installed or seen.program_sha256 == self.program.sha256:
            return False
        self.channel.check(install_command(self.channel.host, self.program), self.program.content)
        self._installed = True
        return True

    def ask(self, group: str, *words: str) -> Any:
        """Ask the host program a question that it answers with one JSON document.

        Raises:
            HostFault: It failed.
        """
        host = self.channel.host
        done = self.channel.run(host_program(host, self.program.path(host), group, *words))
        document = _document(done.out)
        if document is None:
            raise host_fault(host.name, done.code, done.err or done.out)
        if done.code != 0 and isinstance(document, dict) and "error" in document:
            raise told(host.name, document["error"])
        return document

    def operate(
        self,
        group: str,
        words: Sequence[str],
        on_event: Callable[[Event], None],
        request: Request | None = None,
    ) -> Outcome:
        """Have the host program do something, and follow it to its end.

        It runs there on its own. When the connection breaks it is followed again; when the operator leaves it
        goes on, and its end can be read later.

        Args:
            group: GPU group.
            words: Command of the host program.
            on_event: Told each event once.
            request: What it reads from stdin.

        Raises:
            HostFault: It did not begin, or nobody could hear how it ended.
            WatchEndedError: The operator pressed Ctrl-C.
        """
        host = self.channel.host
        stdin = b"" if request is None else json.dumps(request.as_json()).encode()
        watch = _Watch(on_event)
        argv = host_program(host, self.program.path(host), group, *words)
        try:
            code, errors = self._once(argv, stdin, watch)
            for pause in RECONNECT_S:
                if watch.ended or code is not None:
                    break
                self.sleep(pause)
                watch.skip = watch.heard
                again = host_program(host, self.program.path(host), group, "follow", watch.operation)
                code, errors = self._once(again, b"", watch)
        except KeyboardInterrupt:
            raise WatchEndedError(
                "you stopped watching; the host goes on by itself and finishes or goes back",
                f"{self.name}, operation {watch.operation or 'not yet known'}",
                "see its end with `status` or `history`",
            ) from None
        if watch.last is None:
            raise host_fault(self.name, code or 1, errors or "\n".join(watch.other))
        if not watch.ended:
            raise HostFault(
                "nobody could hear how the operation ended; the host finishes it or goes back by itself",
                f"{self.name}, operation {watch.operation}", "see its end with `status` or `history`",
                errors.splitlines()[-4:],
            )  # fmt: skip
        told_code = watch.last.data.get("exit_code")
        failed = watch.last.state == "failed"
        return Outcome(
            host=self.name,
            group=group,
            operation=watch.operation,
            exit_code=(told_code or code or 1) if failed else 0,
            message=watch.last.message,
            data=watch.last.data,
            events=watch.heard,
        )

    def _once(self, argv: Sequence[str], stdin: bytes, watch: _Watch) -> tuple[int | None, str]:
        """One connection: the exit code (None when the line broke after the operation had begun) and stderr."""
        try:
            done = self.channel.run(argv, stdin, on_line=watch.take, limit_s=None)
        except HostFault as error:
            if watch.last is None:
                raise
            return None, str(error)
        return done.code, done.err


def _document(text: str) -> Any:
    """The JSON document in a program's output; None when there is none."""
    starts = [index for mark in "{[" if (index := text.find(mark)) >= 0]
    if not starts:
        return None
    try:
        return json.loads(text[min(starts) :])
    except ValueError:
        return None


def told(host: str, error: dict[str, Any]) -> HostFault:
    """An error of the host program, with its own words."""
    where = error.get("where") or ""
    return HostFault(
        str(error.get("what", "the host program failed")),
        f"{host}: {where}" if where else host,
        str(error.get("fix", "")),
        [str(line) for line in error.get("details") or []],
    )

"""Run commands on a host and hear them; every failure of the way there is one clear message."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tooling.deploy.faults import host_fault
from tooling.deploy.transport import Forward, remote_command
from tooling.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tooling.deploy.inventory import Host

#: ssh itself failed; a program on the host hardly ever ends with this.
SSH_FAILED = 255
#: Seconds that a question to a host may take; deploys have no limit here, the host program has its own.
QUESTION_LIMIT_S = 120.0
_KEPT_ERROR_LINES = 200


class Finished(NamedTuple):
    """What a command on a host left behind."""

    code: int
    out: str
    err: str


@dataclass
class Channel:
    """The way to one host.

    Attributes:
        host: The host.
        config: An ssh configuration in place of the user's own.
    """

    host: Host
    config: Path | None = None

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        on_line: Callable[[str], None] | None = None,
        forward: Forward | None = None,
        limit_s: float | None = QUESTION_LIMIT_S,
    ) -> Finished:
        """Run a program there to its end, whatever its exit code.

        Args:
            argv: Program and arguments.
            stdin: What it reads.
            on_line: Takes each line of its stdout as it comes; they are not kept then.
            forward: A port to forward meanwhile.
            limit_s: Seconds that it may take; None for as long as it wants.

        Raises:
            HostFault: The host could not be reached, or the connection broke off.
            CommandError: A program is missing on this machine, or the limit was passed.
        """
        words = remote_command(self.host, argv, config=self.config, forward=forward)
        child = _start(words)
        expired = threading.Event()
        timer = threading.Timer(limit_s, _end, [child, expired]) if limit_s else None
        errors: list[str] = []
        threads = [
            threading.Thread(target=_feed, args=(child, stdin), daemon=True),
            threading.Thread(target=_read_errors, args=(child, errors), daemon=True),
        ]
        out: list[str] = []
        take = on_line or out.append
        try:
            for thread in (*threads, *([timer] if timer else [])):
                thread.start()
            assert child.stdout is not None  # noqa: S101  # PIPE was asked for
            for line in child.stdout:
                take(line.decode("utf-8", "replace").rstrip("\n"))
            code = child.wait()
        finally:
            if timer:
                timer.cancel()
            # Interrupted: our end of the connection goes; what runs on the host detached stays.
            _end(child)
            for thread in threads:
                thread.join(5)
            for stream in (child.stdout, child.stderr):
                if stream:
                    stream.close()
        if expired.is_set():
            raise CommandError(
                f"the host did not answer within {limit_s:g} s", where=self.host.name,
                fix="look at its load and its engine; what serves there is untouched",
            )  # fmt: skip
        finished = Finished(code, "\n".join(out), "\n".join(errors[-_KEPT_ERROR_LINES:]))
        if self.host.destination and code < 0:
            # Somebody ended our ssh; what was begun on the host goes on.
            raise host_fault(self.host.name, code, f"Broken pipe: ssh ended by signal {-code}")
        if self.host.destination and code == SSH_FAILED:
            raise host_fault(self.host.name, code, finished.err)
        return finished

    def check(
        self, argv: Sequence[str], stdin: bytes = b"", *, limit_s: float | None = QUESTION_LIMIT_S
    ) -> str:
        """Run a program there that has to succeed.

        Returns:
            Its stdout.

        Raises:
            HostFault: It failed; the cause is named where its words are known.
        """
        done = self.run(argv, stdin, limit_s=limit_s)
        if done.code != 0:
            raise host_fault(self.host.name, done.code, done.err or done.out)
        return done.out


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError as error:
        raise CommandError(f"program {words[0]!r} is not installed", fix=f"install {words[0]}") from error


def _feed(child: subprocess.Popen[bytes], stdin: bytes) -> None:
    assert child.stdin is not None  # noqa: S101  # PIPE was asked for
    # A program that fails at once does not read; its exit code and words say more than the pipe.
    with suppress(BrokenPipeError, ConnectionResetError), child.stdin as pipe:
        pipe.write(stdin)


def _read_errors(child: subprocess.Popen[bytes], errors: list[str]) -> None:
    assert child.stderr is not None  # noqa: S101  # PIPE was asked for
    errors.extend(line.decode("utf-8", "replace").rstrip("\r\n") for line in child.stderr)


def _end(child: subprocess.Popen[bytes], expired: threading.Event | None = None) -> None:
    if child.poll() is None:
        if expired:
            expired.set()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

"""The one thin runner of outside programs; the commands themselves are built by pure functions elsewhere."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from tooling.errors import CommandError, ToolkitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

#: Seconds that a child gets between SIGTERM and SIGKILL when we have to stop.
TERMINATE_GRACE_S = 10.0
#: How many of the last lines of output an error shows.
TAIL_LINES = 15


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and capture what it printed.

    Args:
        argv: Program and arguments; no shell is involved.
        cwd: Working directory.
        env: Variables set on top of this process's own.
        timeout_s: Wall-clock limit in seconds.
        stdin: Text for its standard input; by default it gets none.

    Raises:
        CommandError: The program is missing, failed or ran past its limit.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(f"program {argv[0]!r} is not installed", fix=f"install {argv[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{argv[0]} did not end within {timeout_s:g} s", where=shlex.join(argv)) from error
    if done.returncode != 0:
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-TAIL_LINES:]
        raise CommandError(
            f"{argv[0]} failed with exit code {done.returncode}", where=shlex.join(argv), details=tail
        )
    return done


def stream(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = TERMINATE_GRACE_S,
) -> int:
    """Run a program and hand over each line of its stdout and stderr as it comes.

    The child runs in a process group of its own. When we are interrupted it is terminated, waited for, and the
    interruption goes on, so that nothing keeps running behind the user's back.

    Args:
        argv: Program and arguments; no shell is involved.
        on_line: Told each line.
        cwd: Working directory.
        env: Variables set on top of this process's own.
        grace_s: What it gets to clean up after itself, when it has to be stopped.

    Returns:
        The exit code of the program.
    """
    try:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
    except FileNotFoundError as error:
        raise CommandError(f"program {argv[0]!r} is not installed", fix=f"install {argv[0]}") from error
    assert child.stdout is not None  # noqa: S101  # PIPE was asked for
    try:
        for line in child.stdout:
            on_line(line.rstrip("\n"))
        return child.wait()
    except (KeyboardInterrupt, ToolkitError):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        raise
    finally:
        child.stdout.close()

"""The front door: `nox -l` is the manual page, every session a few lines over a command of the package.

Runs in two ways: `nox -s build-cu130` where nox exists, and `python3 noxfile.py -s build-cu130` on a bare
machine, which first makes itself an environment with nox and uv.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements.lock.txt"


def _bootstrap() -> None:
    """Make an environment with nox and uv from the lock and go on inside it."""
    if sys.version_info < (3, 11):
        sys.exit(f"error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    home = ROOT / ".nox" / "front-door"
    python = home / "bin" / "python"
    stamp = home / "lock"
    if not stamp.is_file() or stamp.read_bytes() != LOCK.read_bytes():
        print("first run: making an environment with nox and uv ...", file=sys.stderr, flush=True)  # noqa: T201
        try:
            venv.create(home, clear=True, with_pip=True)
        except (subprocess.CalledProcessError, OSError) as error:
            sys.exit(
                f"error: no virtual environment could be made: {error}\n  to do: apt-get install python3-venv"
            )
        # uv alone comes through pip; it installs the rest many times faster.
        pinned_uv = home / "uv.txt"
        pinned_uv.write_text("\n".join(re.findall(r"^uv==(?:.*\\\n)*.*$", LOCK.read_text(), re.MULTILINE)))
        locked = ["install", "--quiet", "--no-deps", "--require-hashes", "-r"]
        for command in (
            [str(python), "-m", "pip", *locked, str(pinned_uv)],
            [str(python.with_name("uv")), "pip", *locked, str(LOCK), "--python", str(python)],
        ):
            if subprocess.run(command, check=False).returncode:
                sys.exit(f"error: could not install {LOCK.name}\n  to do: check the package index settings")
        stamp.write_bytes(LOCK.read_bytes())
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    os.chdir(ROOT)
    os.execv(python, [str(python), "-m", "nox", "-f", __file__, *sys.argv[1:]])


if __name__ == "__main__":
    _bootstrap()

import nox  # noqa: E402

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True

STACKS = sorted(path.stem for path in (ROOT / "stacks").glob("*.yaml"))


def _install(session: nox.Session) -> None:
    """Put the locked requirements and this package into the session's environment, once a lock."""
    stamp = Path(session.virtualenv.location) / "lock"
    if not stamp.is_file() or stamp.read_bytes() != LOCK.read_bytes():
        session.install("--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK))
        session.install("--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
        stamp.write_bytes(LOCK.read_bytes())


def _toolkit(session: nox.Session, *arguments: str) -> None:
    """Run a command of the console script with what follows `--` on nox's command line."""
    _install(session)
    session.run("blackwell-stacks", *arguments, *session.posargs)


def _stack_session(stack: str, verb: str, docstring: str) -> None:
    """Generate the session `<verb>-<stack>`."""

    def run(session: nox.Session) -> None:
        _toolkit(session, verb, stack)

    run.__doc__ = docstring
    nox.session(name=f"{verb}-{stack}", default=False)(run)


for _stack in STACKS:
    _stack_session(_stack, "build", f"Build the image of stack {_stack} from its pinned inputs and check it.")
    _stack_session(
        _stack, "lock", f"Resolve stack {_stack} again and write its lock (wheels and base packages)."
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    _install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests: seconds, no Docker."""
    _install(session)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session(default=False)
def container(session: nox.Session) -> None:
    """Run the tests that use a real Docker Engine."""
    _install(session)
    session.run("pytest", "tests/container", *session.posargs)


@nox.session(default=False)
def census(session: nox.Session) -> None:
    """List the device code of an image or folder by architecture: nox -s census -- IMAGE|DIR."""
    _toolkit(session, "census")


@nox.session(default=False)
def prune(session: nox.Session) -> None:
    """Take device code that no target runs out of a folder, in place: nox -s prune -- DIR --keep sm_120."""
    _toolkit(session, "prune")


@nox.session(name="bench-census", default=False)
def bench_census(session: nox.Session) -> None:
    """Time the census against cuobjdump and compare the answers: nox -s bench-census -- DIR."""
    _toolkit(session, "bench-census")

"""The front door: `nox -l` is the manual page, every session a few lines over a command of the package.

Runs in two ways: `nox -s build-cu130` where nox exists, and `python3 noxfile.py -s build-cu130` on a bare
machine, which first makes itself an environment with nox and uv.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    # Time to stop a build in good order before nox ends it the hard way.
    session.run("blackwell-stacks", *arguments, *session.posargs, interrupt_timeout=30, terminate_timeout=30)


def _stack_session(stack: str, verb: str, docstring: str, command: str) -> None:
    """Generate the session `<verb>-<stack>`."""

    def run(session: nox.Session) -> None:
        _toolkit(session, command, stack)

    run.__doc__ = docstring
    nox.session(name=f"{verb}-{stack}", default=False)(run)


for _stack in STACKS:
    for _verb, _text, _command in (
        ("build", "Build the image of {} from its pinned inputs and check it.", "build"),
        ("inspect", "Inspect the image of {}: device code, kernels, patches, arch gates; no GPU.", "inspect"),
        (
            "verify",
            "Boot the image of {} and run its gates; `-- --device cpu` where no GPU is.",
            "verify-stack",
        ),
        (
            "release",
            "Build, push, gate, sign and release {}; the first command to try is the cpu stack's.",
            "release",
        ),
        ("patches", "Show the state of each patch of {}; `-- --against VERSION` for another one.", "patches"),
        ("probe", "Try what the GPUs of this host really do in the image of {}.", "probe"),
        ("lock", "Resolve {} again and write its locks (wheels and base packages).", "lock"),
    ):
        _stack_session(_stack, _verb, _text.format(f"stack {_stack}"), _command)


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Say what is wrong with a host and what to change: `-- [--host user@host] [--json]`."""
    _toolkit(session, "doctor")


@nox.session(default=False)
def fit(session: nox.Session) -> None:
    """Say before a pull whether a stack with a model fits a host: `-- STACK --weights-gib N`."""
    _toolkit(session, "fit")


@nox.session(default=False)
def keygen(session: nox.Session) -> None:
    """Make a signing key: `-- PREFIX`; the passphrase comes from a file, the environment or a prompt."""
    _toolkit(session, "keygen")


@nox.session(default=False)
def releases(session: nox.Session) -> None:
    """List the releases of a repository with status, hardware and waivers: `-- REPOSITORY --trust KEYS`."""
    _toolkit(session, "releases")


@nox.session(default=False)
def show(session: nox.Session) -> None:
    """Show one release with its checklist: `-- IMAGE --trust KEYS`."""
    _toolkit(session, "show")


@nox.session(default=False)
def verify(session: nox.Session) -> None:
    """Check signatures, digests and policy of a release: `-- IMAGE --trust KEYS`."""
    _toolkit(session, "verify")


@nox.session(default=False)
def promote(session: nox.Session) -> None:
    """Move a channel to a release: `-- RELEASE CHANNEL --key KEY --trust KEYS`."""
    _toolkit(session, "promote")


@nox.session(default=False)
def deploy(session: nox.Session) -> None:
    """Bring a release onto GPU hosts: `-- RELEASE --host user@host --trust KEYS --model ID@REVISION`."""
    _toolkit(session, "deploy")


@nox.session(default=False)
def rollback(session: nox.Session) -> None:
    """Bring back what a host served before, or a generation of its history: `-- [GENERATION] --host ...`."""
    _toolkit(session, "rollback")


@nox.session(default=False)
def status(session: nox.Session) -> None:
    """Show what hosts serve, one table: `-- --host user@host` or `-- --inventory hosts.yaml`."""
    _toolkit(session, "status")


@nox.session(default=False)
def history(session: nox.Session) -> None:
    """Show what hosts served and tried: `-- --host user@host` or `-- --inventory hosts.yaml`."""
    _toolkit(session, "history")


@nox.session(default=False)
def export(session: nox.Session) -> None:
    """Print docker run, compose, systemd unit and quadlet of a release: `-- RELEASE --trust KEYS ...`."""
    _toolkit(session, "export")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    _install(session)
    _lint(session)


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests: seconds, no Docker."""
    _install(session)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session
def simulation(session: nox.Session) -> None:
    """Run the real probe and bindings on a stand-in for the driver, built with gcc: no GPU, a minute."""
    _install(session)
    session.run("pytest", "tests/probe_fake", *session.posargs)


@nox.session
def engine(session: nox.Session) -> None:
    """Run the tests that use a real inference engine on the CPU: the gates and broken models."""
    _install(session)
    session.run("pytest", "tests/engine", *session.posargs)


@nox.session(default=False)
def correctness(session: nox.Session) -> None:
    """Run the correctness gate on a running server: -- --url URL --profile NAME [--tier T1]."""
    _toolkit(session, "correctness")


@nox.session(default=False)
def container(session: nox.Session) -> None:
    """Run the tests that use a real Docker Engine, the long ones too."""
    _install(session)
    session.run("pytest", "tests/container", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Run the tests that need a real GPU."""
    _install(session)
    session.run("pytest", "tests/gpu", *session.posargs)


@nox.session(name="gpu-engine", default=False)
def gpu_engine(session: nox.Session) -> None:
    """Run the gate chain on a real engine on this machine's GPU: `-- [--stages boot,healthy]`."""
    _install(session)
    carried = ROOT / ".h200"
    if not (carried / "assembled.json").is_file():
        session.run("python", "-m", "tests.gpu.engine.assemble", str(carried))
    session.run("sh", "tests/gpu/engine/on_machine.sh", *session.posargs, external=True)


@nox.session(default=False)
def test(session: nox.Session) -> None:
    """Run all that CI runs: style, types, the real build, all tests that need no GPU but the long ones."""
    _install(session)
    with _beside(session, "blackwell-stacks", "build", "cu130"):
        _lint(session)
        session.run("pytest", "-m", "not long", "tests/unit", "tests/wheels", *session.posargs)
    folders = ("probe_fake", "engine", "container")
    session.run("pytest", "-m", "not long", *(f"tests/{folder}" for folder in folders), *session.posargs)


@contextmanager
def _beside(session: nox.Session, *command: str) -> Iterator[None]:
    """Run a program of the session's environment beside what stands in the block; the session fails with it.

    What it says comes when it has ended, so that two outputs do not mix.
    """
    log = Path(session.create_tmp()) / "beside.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            [str(Path(session.bin) / command[0]), *command[1:]], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield
        except BaseException:
            program.send_signal(signal.SIGINT)
            raise
        finally:
            code = program.wait()
            session.log(f"{' '.join(command)}: exit code {code}")
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
    if code:
        session.error(f"{' '.join(command)} failed")


@nox.session(name="verify-attach", default=False)
def verify_attach(session: nox.Session) -> None:
    """Run the gates on a server that somebody else started: -- --url URL [--log FILE] [--profile NAME]."""
    _toolkit(session, "verify-attach")


@nox.session(name="bench-build", default=False)
def bench_build(session: nox.Session) -> None:
    """Time a cold build against a plain `uv pip install` of the same lock, and a rebuild after one change."""
    _toolkit(session, "bench-build")


@nox.session(name="bench-pull", default=False)
def bench_pull(session: nox.Session) -> None:
    """Measure what a host downloads of images, side by side: -- IMAGE [IMAGE ...]."""
    _toolkit(session, "bench-pull")


@nox.session(name="lock-tools", default=False)
def lock_tools(session: nox.Session) -> None:
    """Resolve the toolkit's own requirements again."""
    _install(session)
    options = ["--universal", "--python-version=3.11", "--generate-hashes", "--no-emit-index-url"]
    options += ["--no-header", "--no-annotate", "--extra=dev", "--quiet"]
    session.run("uv", "pip", "compile", "pyproject.toml", *options, "--output-file", str(LOCK))


def _lint(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


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


@nox.session(name="bench-kernels", default=False)
def bench_kernels(session: nox.Session) -> None:
    """Check this project's kernels on the GPUs here and time them against the best peers: -- [--gpus N]."""
    _toolkit(session, "bench-kernels")


@nox.session(name="bench-client", default=False)
def bench_client(session: nox.Session) -> None:
    """Compare the load clients' figures and cost with a mock's truth and with aiperf, one table."""
    _toolkit(session, "bench-client")


@nox.session(default=False)
def wheels(session: nox.Session) -> None:
    """Run the tests of the patch series and gate lists on the real wheels of the engines."""
    _install(session)
    session.run("pytest", "tests/wheels", *session.posargs)


@nox.session(default=False)
def gates(session: nox.Session) -> None:
    """List the arch gates of a stack, a folder or a wheel: nox -s gates -- cu130."""
    _toolkit(session, "gates")


@nox.session(name="bench-deploy", default=False)
def bench_deploy(session: nox.Session) -> None:
    """Measure dark time and moved bytes of deploy, patch, rollback and a bad release, one table."""
    _install(session)
    session.run("python", "-m", "tests.container.host.bench_deploy")

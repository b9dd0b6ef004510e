"""Resolve a stack into its lock with uv."""

from __future__ import annotations

import re
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import uv
from packaging.utils import canonicalize_name

from tooling import runner
from tooling.errors import CommandError, InputError
from tooling.lock.coherence import KNOWN_FAULTS, Pin, check_coherence, load_known_faults, refuse_if_incoherent
from tooling.lock.cuda import minor_constraints
from tooling.lock.indexes import index_addresses, unknown_indexes, uv_index_variables
from tooling.lock.lockfile import DEFAULT_INDEX, Lock, LockedWheel, parse_lock, render_lock
from tooling.lock.wheels import best_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.stack.model import Stack, StackFile

_YANKED = re.compile(r"`(?P<pin>[^`]+)` is yanked(?: \(reason: \"?(?P<reason>[^)\"]*)\"?\))?")
_UNREACHABLE = re.compile(r"Failed to fetch|error sending request|Request failed after|dns error|tcp connect")
_NO_WHEEL = re.compile(r"has no wheels with a matching (?P<what>platform|Python ABI|Python version|Python) tag")


def compile_argv(stack: Stack, workspace: Path, uv_binary: str) -> list[str]:
    """The resolver's command line; the files that it names are written by `write_inputs`."""
    platform = stack.platform
    return [
        uv_binary, "pip", "compile", str(workspace / "requirements.in"),
        "--constraints", str(workspace / "constraints.txt"),
        "--overrides", str(workspace / "overrides.txt"),
        "--python-version", platform.python,
        "--python-platform", f"{platform.architecture}-manylinux_{platform.glibc.replace('.', '_')}",
        "--only-binary", ":all:",
        "--no-config",
        "--format", "pylock.toml",
        "--output-file", str(workspace / "pylock.toml"),
    ]  # fmt: skip


def write_inputs(stack: Stack, workspace: Path) -> None:
    """Write what the resolver reads: requirements, constraints and overrides."""
    constraints = [*stack.lock.constraints]
    if stack.cuda is not None:
        constraints += minor_constraints(stack.cuda)
    # An override with a marker that is never true removes a package from the resolution.
    overrides = [f"{exclusion.package} ; sys_platform == 'never'" for exclusion in stack.lock.exclude]
    overrides += [override.requirement for override in stack.lock.overrides]
    for name, lines in (
        ("requirements.in", stack.requirements),
        ("constraints.txt", constraints),
        ("overrides.txt", overrides),
    ):
        (workspace / name).write_text("\n".join([*lines, ""]), encoding="utf-8")


def resolve(stack: Stack, known_faults_path: Path) -> Lock:
    """Resolve a stack's requirements for its platform and refuse an incoherent result.

    Raises:
        InputError: Nothing satisfies the requirements, or a package has no wheel for the platform.
        CheckError: The resolved pins do not belong together.
    """
    addresses = index_addresses(stack.lock.indexes)
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-lock-") as directory:
        workspace = Path(directory)
        write_inputs(stack, workspace)
        argv = compile_argv(stack, workspace, uv.find_uv_bin())
        try:
            done = runner.run(argv, env=uv_index_variables(addresses))
        except CommandError as error:
            raise explain_failure(stack, error.details) from error
        refuse_yanked(done.stderr, stack)
        document = tomllib.loads((workspace / "pylock.toml").read_text(encoding="utf-8"))
    lock = lock_of(stack, document, addresses)
    check_lock(lock, stack, known_faults_path)
    return lock


def explain_failure(stack: Stack, lines: list[str]) -> InputError:
    """Say why the resolver found nothing, with the platform when that is the reason."""
    text = " ".join(lines)
    platform = stack.platform
    if _NO_WHEEL.search(text):
        return InputError(
            f"no wheel for glibc {platform.glibc}, CPython {platform.python}, {platform.architecture}",
            where=f"stack {stack.name}, platform",
            details=lines,
            fix="take a base with a newer glibc or another Python (see above), or another version",
        )
    if _UNREACHABLE.search(text):
        return InputError(
            "the package index did not answer as it should",
            where=f"stack {stack.name}",
            details=lines,
            fix="check this machine's index, proxy and certificate settings, then lock again",
        )
    return InputError(
        "the requirements cannot be satisfied together",
        where=f"stack {stack.name}, lock",
        details=lines,
        fix="change the requirements or constraints that the resolver names",
    )


def refuse_yanked(output: str, stack: Stack) -> None:
    """Refuse pins that their index has withdrawn, unless the stack keeps them on purpose."""
    yanked = {
        match["pin"]: match["reason"] or "no reason given"
        for match in _YANKED.finditer(output)
        if match["pin"] not in stack.lock.allow_yanked
    }
    if yanked:
        raise InputError(
            "the index has withdrawn (yanked) a wheel that the lock needs",
            where=f"stack {stack.name}",
            details=[f"{pin}: {reason}" for pin, reason in yanked.items()],
            fix="constrain it to another version, or list it under lock.allow_yanked",
        )


def lock_of(stack: Stack, document: Mapping[str, Any], addresses: Mapping[str, str]) -> Lock:
    """Choose one wheel for each package of a resolved document (PEP 751)."""
    wheels = []
    for package in document.get("packages", []):
        candidates = {_file_name(wheel): wheel for wheel in package.get("wheels", [])}
        chosen = best_wheel(candidates, stack.platform)
        if chosen is None:
            raise InputError(
                f"{package['name']}=={package.get('version')} has no wheel that fits the platform",
                where=f"stack {stack.name}",
                details=sorted(candidates),
                fix="take another version or another base",
            )
        wheel = candidates[chosen]
        wheels.append(
            LockedWheel(
                name=canonicalize_name(package["name"]),
                version=package["version"],
                wheel=chosen,
                size=wheel.get("size", 0),
                sha256=wheel["hashes"]["sha256"],
                index=_index_name(package.get("index") or wheel.get("url", ""), addresses),
            )
        )
    return Lock(
        stack=stack.name,
        request_sha256=stack.lock_request_sha256,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
    )


def _file_name(wheel: Mapping[str, Any]) -> str:
    return str(
        wheel.get("name") or unquote(urlsplit(wheel.get("url") or wheel["path"]).path).rsplit("/", 1)[-1]
    )


def _index_name(source: str, addresses: Mapping[str, str]) -> str:
    """Name of the index that an address belongs to; what belongs to no named one is the default's."""
    for name, address in addresses.items():
        if name != DEFAULT_INDEX and source.startswith(address.rstrip("/")):
            return name
    return DEFAULT_INDEX


def check_lock(lock: Lock, stack: Stack, known_faults_path: Path) -> None:
    """Refuse a lock that is for something else or whose pins do not belong together.

    Raises:
        InputError: It was made for another stack, or the stack changed since.
        CheckError: It is incoherent.
    """
    where = f"{stack.name}.lock.txt"
    again = f"run nox -s lock-{stack.name}"
    if lock.stack != stack.name:
        raise InputError(
            f"this is the lock of stack {lock.stack!r}, not of {stack.name!r}", where=where, fix=again
        )
    if lock.request_sha256 != stack.lock_request_sha256:
        raise InputError("the stack has changed since its lock was made", where=where, fix=again)
    pins = [
        Pin(name=wheel.name, version=wheel.version, wheel=wheel.wheel, index=wheel.index)
        for wheel in lock.wheels
    ]
    faults = load_known_faults(known_faults_path)
    findings = check_coherence(pins, cuda=stack.cuda, platform=stack.platform, known_faults=faults)
    refuse_if_incoherent(findings, where)


def read_lock(file: StackFile, root: Path) -> Lock:
    """Read the lock beside a stack and check that it is this stack's and coherent."""
    if not file.lock_path.is_file():
        raise InputError(
            f"stack {file.stack.name} has no lock",
            where=str(file.lock_path),
            details=unknown_indexes(file.stack.lock.indexes),
            fix=f"run nox -s lock-{file.stack.name}"
            + (", with the variables above exported" if file.stack.lock.indexes else ""),
        )
    lock = parse_lock(file.lock_path.read_text(encoding="utf-8"), file.lock_path)
    check_lock(lock, file.stack, root / KNOWN_FAULTS)
    return lock


def write_lock(file: StackFile, lock: Lock) -> None:
    """Replace the lock beside a stack at once, never half of it."""
    draft = file.lock_path.with_suffix(".new")
    draft.write_text(render_lock(lock), encoding="utf-8")
    draft.replace(file.lock_path)

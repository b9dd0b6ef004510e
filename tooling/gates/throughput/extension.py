"""The compiled load client: one file out of a pinned wheel, kept in the user's cache, checked by hash."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path

import yaml
from pydantic import Field
from uv import find_uv_bin

from tooling.errors import CheckError, CommandError, ToolkitError
from tooling.gates.throughput.plan import ClientBuild
from tooling.records import Record, sha256_of_file
from tooling.runner import run

DOWNLOAD_LIMIT_S = 900.0


class Extension(Record):
    """The extension module for one Python and machine."""

    python: str
    machine: str
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ClientPin(Record):
    """Which wheel holds the client, the extension modules in it, and which aiperf it is compared with."""

    distribution: str
    version: str
    folder: str
    extensions: tuple[Extension, ...] = Field(min_length=1)
    aiperf: str


@lru_cache(maxsize=1)
def client_pin() -> ClientPin:
    """The pin that ships with the package."""
    text = resources.files("tooling.gates.throughput").joinpath("client.yaml").read_text(encoding="utf-8")
    return ClientPin.model_validate(yaml.safe_load(text))


class NoCompiledClientError(ToolkitError):
    """The compiled client cannot run on this machine; the fallback can."""


def wanted_extension(pin: ClientPin, python: str, machine: str, system: str) -> Extension:
    """The extension for an interpreter.

    Args:
        pin: The pinned wheel.
        python: Interpreter tag, e.g. `cp311`.
        machine: As `platform.machine()` says.
        system: As `platform.system()` says.

    Raises:
        NoCompiledClientError: The wheel has none for it.
    """
    for extension in pin.extensions:
        if system == "Linux" and (extension.python, extension.machine) == (python, machine):
            return extension
    known = ", ".join(f"{entry.python} on {entry.machine}" for entry in pin.extensions)
    raise NoCompiledClientError(
        f"there is no compiled load client for {python} on {system} {machine}",
        where=f"{pin.distribution} {pin.version}",
        fix=f"use one of: {known}; or --client fallback",
    )


def cache_folder() -> Path:
    """Where the extension is kept: the user's cache, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "blackwell-stacks" / "load-client"


def verified(path: Path, extension: Extension) -> Path:
    """The path, if it holds exactly the pinned bytes.

    Raises:
        CheckError: It does not.
    """
    found = sha256_of_file(path)
    if found != extension.sha256:
        raise CheckError(
            "this is not the pinned load client",
            where=str(path),
            fix="delete the file and run again",
            details=[f"expected sha256 {extension.sha256}", f"found    sha256 {found}"],
        )
    return path


def install_command(pin: ClientPin, target: Path) -> list[str]:
    """The argv that unpacks the pinned wheel, and nothing else, into a folder."""
    return [
        find_uv_bin(),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        f"--python={sys.executable}",
        f"--target={target}",
        f"{pin.distribution}=={pin.version}",
    ]


def compiled_client(pin: ClientPin | None = None) -> tuple[Path, ClientBuild]:
    """The extension module, from the cache or, the first time, out of the wheel.

    Raises:
        NoCompiledClientError: It does not exist for this machine or cannot be had.
        CheckError: What was found is not the pinned build.
    """
    chosen = pin or client_pin()
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    extension = wanted_extension(chosen, tag, platform.machine(), platform.system())
    build = ClientBuild(name="sglang-bench", version=chosen.version, sha256=extension.sha256)
    home = cache_folder()
    kept = home / extension.sha256[:16] / extension.file
    if not kept.is_file():
        _unpack(chosen, extension, home, kept)
    return verified(kept, extension), build


def _unpack(pin: ClientPin, extension: Extension, home: Path, kept: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="wheel-") as folder:
        try:
            run(install_command(pin, Path(folder)), timeout_s=DOWNLOAD_LIMIT_S)
        except CommandError as error:
            raise NoCompiledClientError(
                f"the wheel with the load client, {pin.distribution} {pin.version}, cannot be installed",
                where=str(home),
                fix="check the package index settings, or use --client fallback",
                details=[*error.details, error.what],
            ) from error
        unpacked = Path(folder) / pin.folder / extension.file
        if not unpacked.is_file():
            raise CheckError(
                f"the wheel of {pin.distribution} {pin.version} has no {extension.file}", where=str(home)
            )
        verified(unpacked, extension)
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(".new")
        shutil.copyfile(unpacked, draft)
        draft.replace(kept)

"""Packages of this repository that go into an image beside the wheels, each in layers of its own."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.errors import InputError
from tooling.records import sha256_of_file

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.stack.model import Stack

#: What a package is compiled from, where it is compiled at all: this script, run by the image's Python.
BUILD_SCRIPT = "build_native.py"
_NATIVE = (BUILD_SCRIPT, "csrc")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")


@dataclass(frozen=True)
class LocalPackage:
    """A package below `images/`.

    Attributes:
        folder: Name of its folder, which is also the name of its build steps.
        path: The folder.
        module: The Python package in it.
        architecture: What its own code is compiled for, e.g. `12.0f`; empty when it has none.
    """

    folder: str
    path: Path
    module: str
    architecture: str = ""

    @property
    def native(self) -> bool:
        """Whether it has code to compile."""
        return bool(self.architecture)

    @property
    def targets(self) -> str:
        """The architecture as the compile script takes it, e.g. `120f`."""
        return self.architecture.replace(".", "")

    def native_files(self) -> dict[str, str]:
        """SHA-256 of every file that the compiled library is made from, by path in the folder."""
        paths = [path for name in _NATIVE for path in (self.path / name, *(self.path / name).rglob("*"))]
        return {
            str(path.relative_to(self.path)): sha256_of_file(path) for path in sorted(paths) if path.is_file()
        }

    def put(self, context: Path) -> None:
        """Copy it into a build context, what is compiled apart, so that Python files do not make it compile."""
        target = context / "local" / self.folder
        shutil.copytree(self.path / self.module, target / "python" / self.module, ignore=_IGNORED)
        shutil.copy2(self.path / "pyproject.toml", target / "python")
        if not (context / "packaging").is_dir():
            shutil.copytree(self.path.parent / "packaging", context / "packaging", ignore=_IGNORED)
        for name in _NATIVE if self.native else ():
            source = self.path / name
            (target / "native").mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target / "native" / name, ignore=_IGNORED)
            elif source.is_file():
                shutil.copy2(source, target / "native")


def local_packages(stack: Stack, images: Path) -> list[LocalPackage]:
    """The packages of a stack.

    Args:
        stack: The stack.
        images: The checkout's `images/`.

    Raises:
        InputError: A folder has no package, or the stack and the packages disagree on what is compiled.
    """
    wanted = dict(stack.kernels.native) if stack.kernels else {}
    found = [_read(folder, images / folder, wanted) for folder in stack.local_packages]
    if strangers := wanted.keys() - {package.module for package in found}:
        raise InputError(
            f"no local package is {', '.join(sorted(strangers))}",
            where=f"stack {stack.name}, kernels.native",
            fix="name modules of the packages in local_packages",
        )
    return found


def _read(folder: str, path: Path, architectures: dict[str, str]) -> LocalPackage:
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        module = str(project["name"]).replace("-", "_")
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(
            f"images/{folder} is no package: {error!r}",
            where="local_packages of the stack",
            fix="name a folder with pyproject.toml and a package",
        ) from error
    if not (path / module / "__init__.py").is_file():
        raise InputError(f"images/{folder} has no package {module}", where="local_packages of the stack")
    compiled, architecture = (path / BUILD_SCRIPT).is_file(), architectures.get(module, "")
    if compiled != bool(architecture):
        raise InputError(
            f"images/{folder} has {'a' if compiled else 'no'} {BUILD_SCRIPT}, and the stack "
            + (f"compiles it for {architecture}" if architecture else "does not say for which architecture"),
            where="kernels.native of the stack",
            fix=f"say `native: {{{module}: 12.0f}}` for a package with code to compile, and for no other",
        )
    return LocalPackage(folder=folder, path=path, module=module, architecture=architecture)

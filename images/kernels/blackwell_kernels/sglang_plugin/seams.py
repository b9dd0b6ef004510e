"""The functions of the engine that the plugin wraps or leans on, as they were when a person read them.

A seam is held against the engine's source file, not against the imported object: nothing of the engine is
imported for it, and another plugin's hook does not hide what upstream changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackwell_kernels.sglang_plugin.settings import Feature

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class Reviewed:
    """One reading of a seam.

    Attributes:
        versions: Versions of the engine whose text this is.
        sha256: Hash of the function's source, decorators included, without indentation.
        note: What is special about it, e.g. a patch that changes it.
    """

    versions: tuple[str, ...]
    sha256: str
    note: str


@dataclass(frozen=True)
class Seam:
    """One function of the engine.

    Attributes:
        target: Dotted name, as SGLang's hook registry takes it.
        module: The module that defines it.
        hooked: Whether the plugin wraps it; otherwise it only relies on what it does.
        features: Features that need it.
        reviewed: Texts that were read and found to fit.
        engines: Versions of the engine that have it, when it was moved; empty for all.
    """

    target: str
    module: str
    hooked: bool
    features: frozenset[Feature]
    reviewed: tuple[Reviewed, ...]
    engines: tuple[str, ...] = ()

    @property
    def qualname(self) -> str:
        """Name inside the module, e.g. `GroupCoordinator.all_reduce`."""
        return self.target.removeprefix(f"{self.module}.")


@cache
def load_seams() -> tuple[Seam, ...]:
    """All seams, from `seams.json` beside this file."""
    document: list[dict[str, Any]] = json.loads((resources.files(__package__) / "seams.json").read_text())
    return tuple(
        Seam(
            target=f"{entry['module']}.{entry['name']}",
            module=entry["module"],
            hooked=entry["hooked"],
            features=frozenset(map(Feature, entry["features"])),
            reviewed=tuple(
                Reviewed(tuple(one["versions"]), one["sha256"], one.get("note", ""))
                for one in entry["reviewed"]
            ),
            engines=tuple(entry.get("engines", ())),
        )
        for entry in document
    )


def seams_of(version: str | None, features: Collection[Feature] = tuple(Feature)) -> list[Seam]:
    """Seams of some features in a version of the engine.

    One that is nobody's here (`engines`) is left out; what holds for every version stays, so a version that
    nobody read always has seams that are not as read.
    """
    return [
        seam
        for seam in load_seams()
        if seam.features & set(features) and (not seam.engines or version in seam.engines)
    ]


def engine_version() -> str | None:
    """Version of the installed SGLang; None without one."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def engine_root() -> Path:
    """The folder that holds the package `sglang`.

    Raises:
        LookupError: It is not installed as files.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise LookupError("sglang is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent


def source_of(root: Path, seam: Seam) -> str:
    """Source of a seam, from its first decorator to its end, without indentation.

    Raises:
        LookupError: The file or the function is not there.
    """
    stem = root.joinpath(*seam.module.split("."))
    path = stem.with_suffix(".py")
    if not path.is_file():
        path = stem / "__init__.py"
    if not path.is_file():
        raise LookupError(f"there is no module {seam.module}")
    text = path.read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for name in seam.qualname.split("."):
        found = [one for one in body if getattr(one, "name", None) == name]
        if not found:
            raise LookupError(f"{seam.module} has no {seam.qualname}")
        node = found[-1]  # of two definitions the later one counts
        body = getattr(node, "body", [])
    if not isinstance(node, ast.FunctionDef):
        raise LookupError(f"{seam.target} is no function")  # noqa: TRY004  # of a source, not of an argument
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))


def fingerprint(source: str) -> str:
    """SHA-256 of a seam's source."""
    return hashlib.sha256(source.encode()).hexdigest()


def check_seam(seam: Seam, root: Path, version: str | None) -> str:
    """What is wrong with a seam, or an empty string.

    Args:
        seam: The seam.
        root: Folder that holds the engine's package.
        version: The engine's version.
    """
    fitting = [one for one in seam.reviewed if version in one.versions]
    if not fitting:
        known = sorted({version for one in seam.reviewed for version in one.versions})
        return f"{seam.target} was read in SGLang {', '.join(known)}, this is {version or 'no release'}"
    try:
        source = source_of(root, seam)
    except (LookupError, OSError, SyntaxError, ValueError) as error:
        return f"{seam.target} cannot be read: {error}"
    have = fingerprint(source)
    if any(one.sha256 == have for one in fitting):
        return ""
    return f"{seam.target} is not the function that was read in SGLang {version} (sha256 {have[:12]})"


def check_feature(feature: Feature, root: Path, version: str | None) -> list[str]:
    """Everything that is wrong with the seams of a feature.

    Raises:
        LookupError: No seam is listed for it, so nothing would be checked.
    """
    seams = seams_of(version, [feature])
    if not seams:
        raise LookupError(f"no seam is listed for {feature}")
    problems = [problem for seam in seams if (problem := check_seam(seam, root, version))]
    if not problems and not any(seam.hooked for seam in seams):
        raise LookupError(f"no seam of {feature} is hooked in SGLang {version}")
    return problems


def main() -> int:
    """Print the state of every seam: `python -m blackwell_kernels.sglang_plugin.seams`."""
    version, root = engine_version(), engine_root()
    wrong = 0
    seams = seams_of(version)
    for seam in seams:
        problem = check_seam(seam, root, version)
        wrong += bool(problem)
        print(f"{'CHANGED' if problem else 'as read'}  {seam.target}  {problem}")
    print(f"SGLang {version}: {len(seams)} seams, {wrong} not as read")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

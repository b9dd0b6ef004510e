"""Applies a planned series to an installed tree and yields only the files that change, each of them verified.

A plan is a series with the switches of one stack already decided and every expected hash in it, one JSON
document. So an image build needs no more than this package's modules of the standard library and unidiff:

    python3 -m tooling.patches.overlay --plan plan.json --root /path/to/site-packages --out /changed

`RUNTIME_FILES` names the files of the toolkit to mount for that.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import py_compile
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.errors import InputError, ToolkitError
from tooling.patches.apply import Content, apply_file
from tooling.patches.diff import parse_diff
from tooling.patches.errors import Fault, PatchError
from tooling.patches.receipt import reader, sha256, verify_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "Plan",
    "PlannedPatch",
    "changed_files",
    "reader",
    "run",
    "run_all",
    "sha256",
    "tree_sha256",
    "verify_receipt",
]

#: What an image build has to mount, below the repository's root, beside the package unidiff.
RUNTIME_FILES = (
    "tooling/__init__.py",
    "tooling/errors.py",
    "tooling/patches/__init__.py",
    "tooling/patches/errors.py",
    "tooling/patches/diff.py",
    "tooling/patches/apply.py",
    "tooling/patches/overlay.py",
    "tooling/patches/receipt.py",
    "tooling/patches/importing.py",
)


#: Before the failure as data, on a line of its own, for who runs this in a build step.
RECORD_MARK = "error-record: "


@dataclass(frozen=True)
class PlannedPatch:
    """One patch that is on.

    Attributes:
        name: File name without `.patch`.
        text: The whole patch.
        files: Path -> hex SHA-256 before (None for a file that the patch makes) and after, as recorded.
    """

    name: str
    text: str
    files: dict[str, tuple[str | None, str]]


@dataclass(frozen=True)
class Plan:
    """A series with its switches decided.

    Attributes:
        series: Name of its folder, e.g. `sglang-0.5.23`.
        package: Distribution that owns every patched file.
        version: The only version that the series is for.
        patches: Those that are on, in order.
        off: Names of those that are off.
        tree: Recorded hash of the changed files, see `tree_sha256`.
    """

    series: str
    package: str
    version: str
    patches: tuple[PlannedPatch, ...]
    off: tuple[str, ...]
    tree: str

    @classmethod
    def from_json(cls, text: str, where: str = "") -> Plan:
        """Read what `json.dumps(asdict(plan))` wrote.

        Raises:
            InputError: The text is no plan.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            patches = tuple(
                PlannedPatch(
                    str(one["name"]), str(one["text"]), {k: (v[0], v[1]) for k, v in one["files"].items()}
                )
                for one in raw.pop("patches")
            )
            return cls(patches=patches, off=tuple(raw.pop("off")), **raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"not a plan of a patch series: {error!r}", where=where) from error

    def to_json(self) -> str:
        """One line of JSON with sorted keys: equal plans are equal bytes."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=True) + "\n"


def tree_sha256(files: Mapping[str, str]) -> str:
    """One hash for a set of files: that of the lines `<sha256>  <path>` of `sha256sum`, sorted by path."""
    return sha256("".join(f"{files[path]}  {path}\n" for path in sorted(files)).encode())


def changed_files(plan: Plan, read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Apply a plan to what a function reads; a pure function of the two.

    Args:
        plan: The series.
        read: Gives the bytes of a file below site-packages, None where there is none.

    Returns:
        Path -> new content, for every file that the plan changes.

    Raises:
        PatchError: Anything at all is not as recorded; nothing is half done.
    """
    if not plan.patches:
        raise PatchError(
            f"the plan of series {plan.series} holds no patch",
            fix="switch a patch on, or take the series out of the stack",
            fault=Fault.NO_OP,
        )
    contents: dict[str, Content] = {}
    for patch in plan.patches:
        for diff in parse_diff(patch.name, patch.text):
            content = contents.get(diff.path)
            if content is None and (data := read(diff.path)) is not None:
                content = Content.of(data)
            new = apply_file(patch.name, diff, content)
            _check_hashes(patch, diff.path, content, new)
            contents[diff.path] = new
    files = {path: content.data for path, content in contents.items()}
    tree = tree_sha256({path: sha256(data) for path, data in files.items()})
    if tree != plan.tree:
        raise PatchError(
            f"the changed files of series {plan.series} hash to {tree}, recorded is {plan.tree}",
            fix=f"run `blackwell-stacks patch-record {plan.series}` and read what it changes",
            fault=Fault.UNEXPECTED_RESULT,
        )
    return files


def _check_hashes(patch: PlannedPatch, path: str, old: Content | None, new: Content) -> None:
    if path not in patch.files:
        raise PatchError(
            "no hashes are recorded for this file",
            fix="run `blackwell-stacks patch-record` for the series",
            fault=Fault.UNEXPECTED_RESULT,
            patch=patch.name,
            file=path,
        )
    expected_old, expected_new = patch.files[path]
    seen_old = None if old is None else sha256(old.data)
    seen_new = sha256(new.data)
    if seen_old != expected_old:
        raise PatchError(
            "the hunks fit, but the file is not the one that the series was made for",
            details=[f"expected sha256: {expected_old}", f"found sha256:    {seen_old}"],
            fix="install the locked wheel again; if upstream changed the file, record the series anew",
            fault=Fault.UNEXPECTED_ORIGINAL,
            patch=patch.name,
            file=path,
        )
    if seen_new != expected_new:
        raise PatchError(
            "the patched file is not the recorded one",
            details=[f"expected sha256: {expected_new}", f"found sha256:    {seen_new}"],
            fix="the patch was edited since: review it, then run `blackwell-stacks patch-record`",
            fault=Fault.UNEXPECTED_RESULT,
            patch=patch.name,
            file=path,
        )


def check_owner(plan: Plan, root: Path, paths: Iterable[str]) -> None:
    """Refuse a tree in which the package has another version, or shares a patched file with another package.

    Raises:
        PatchError: With every wrong owner in its details.
    """
    want = f"{_canonical(plan.package)}-{plan.version}"
    owned = _claims(root, set(paths))
    infos = {info.name.removesuffix(".dist-info") for info in root.glob("*.dist-info")}
    installed = {_canonical_info(name) for name in infos}
    if want not in installed:
        near = sorted(name for name in installed if name.rpartition("-")[0] == _canonical(plan.package))
        raise PatchError(
            f"series {plan.series} is for {plan.package} {plan.version}, which is not installed",
            where=str(root),
            details=[f"found: {name}" for name in near] or ["found: no version of it"],
            fix="use the series of the installed version, or install the version that the stack locks",
            fault=Fault.OWNER,
        )
    wrong = [
        f"{path}: {', '.join(sorted(owners))}" for path, owners in sorted(owned.items()) if owners - {want}
    ]
    if wrong:
        raise PatchError(
            f"files of series {plan.series} belong to other packages than {want} as well",
            where=str(root),
            details=wrong,
            fix="keep one owner of each file; which content is installed depends on the order of installation",
            fault=Fault.OWNER,
        )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _canonical_info(name: str) -> str:
    package, _, version = name.rpartition("-")
    return f"{_canonical(package)}-{version}"


def _claims(root: Path, paths: set[str]) -> dict[str, set[str]]:
    """Path -> packages whose RECORD lists it."""
    claims: dict[str, set[str]] = {path: set() for path in paths}
    for record in root.glob("*.dist-info/RECORD"):
        text = "\n" + record.read_text(encoding="utf-8", errors="replace")
        for path in paths:
            if f"\n{path}," in text or f'\n"{path}",' in text:
                claims[path].add(_canonical_info(record.parent.name.removesuffix(".dist-info")))
    return claims


def write_files(root: Path, out: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write changed files below `out`, compiled beside them where the tree holds compiled files.

    A compiled file is found stale by its source's time and size. Builds that set all times to one moment would
    keep the old code of a patched file whose size did not change, so new compiled files go over the old ones.

    Returns:
        Every file written.

    Raises:
        PatchError: A changed Python file does not compile.
    """
    written = []
    for path, data in files.items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        written.append(target)
        original = root / path
        if original.is_file():
            target.chmod(original.stat().st_mode & 0o777)
        if target.suffix == ".py":
            written.extend(_compiled(original, target, path))
    return written


def _compiled(original: Path, target: Path, path: str) -> list[Path]:
    """Compile one changed file; the result is kept only over a compiled file of the same interpreter."""
    cache = Path(importlib.util.cache_from_source(str(target)))
    stale = Path(importlib.util.cache_from_source(str(original)))
    try:
        if not stale.is_file():
            compile(target.read_bytes(), str(original), "exec", dont_inherit=True)
            return []
        py_compile.compile(
            str(target),
            str(cache),
            dfile=str(original),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
    except (py_compile.PyCompileError, SyntaxError, ValueError) as error:
        raise PatchError(
            f"the patched file does not compile: {error}",
            fix="correct the patch and record the series anew",
            fault=Fault.UNUSABLE_RESULT,
            file=path,
        ) from error
    return [cache]


def receipt(plan: Plan, files: Mapping[str, bytes], not_importable: Iterable[str] = ()) -> dict[str, Any]:
    """What was done, for the image: `selftest` holds the installed files against it."""
    return {
        "series": plan.series,
        "package": plan.package,
        "version": plan.version,
        "applied": [patch.name for patch in plan.patches],
        "off": list(plan.off),
        "files": {path: sha256(data) for path, data in sorted(files.items())},
        "tree": plan.tree,
        "not_importable": sorted(not_importable),
    }


def run(plan: Plan, root: Path, out: Path, *, import_check: bool = False) -> dict[str, Any]:
    """Apply one plan to an installed tree and write the changed files below `out`.

    Args:
        plan: The series.
        root: The site-packages folder; never written to.
        out: Where the changed files go, with their paths below site-packages.
        import_check: Import every changed module with this interpreter, before and after.

    Returns:
        The receipt.

    Raises:
        PatchError: Something is not as recorded; nothing was written then, unless the result itself is bad.
    """
    files = changed_files(plan, reader(root))
    check_owner(plan, root, files)
    write_files(root, out, files)
    broken: list[str] = []
    if import_check:
        from tooling.patches.importing import check_imports  # noqa: PLC0415  # only where it is asked for

        broken = check_imports(root, out, files)
    return receipt(plan, files, broken)


def run_all(plans: list[Plan], root: Path, out: Path, *, import_check: bool = False) -> list[dict[str, Any]]:
    """Apply several plans, as `run` does, and refuse two that change the same file.

    The changed modules of all of them are imported together, as they will be in the image.

    Raises:
        PatchError: See `run`.
    """
    receipts: list[dict[str, Any]] = []
    for plan in plans:
        done = run(plan, root, out)
        for earlier in receipts:
            for path in sorted(earlier["files"].keys() & done["files"].keys()):
                raise PatchError(
                    f"series {earlier['series']} and {plan.series} change the same file",
                    fix="put both edits into one series",
                    fault=Fault.CONFLICT,
                    file=path,
                )
        receipts.append(done)
    if import_check:
        from tooling.patches.importing import check_imports, module_of  # noqa: PLC0415  # only where asked for

        # All at once: importing an engine takes far longer than patching it.
        broken = check_imports(root, out, [path for done in receipts for path in done["files"]])
        for done in receipts:
            own = {module_of(path) for path in done["files"]}
            done["not_importable"] = [module for module in broken if module in own]
    return receipts


def main(arguments: list[str] | None = None) -> int:
    """Entry of an image build; prints one JSON receipt a plan."""
    parser = argparse.ArgumentParser(prog="python -m tooling.patches.overlay", description=__doc__)
    parser.add_argument("--plan", type=Path, action="append", required=True, help="may be given more than once")
    parser.add_argument("--root", type=Path, required=True, help="site-packages to read from")
    parser.add_argument("--out", type=Path, required=True, help="folder for the changed files")
    parser.add_argument("--receipt", type=Path, help="file for the receipts, a JSON list")
    parser.add_argument("--import-check", action="store_true", help="import the changed modules")
    given = parser.parse_args(arguments)
    try:
        if not given.root.is_dir():
            raise InputError("the tree to be patched does not exist", where=str(given.root))
        plans = [Plan.from_json(path.read_text(encoding="utf-8"), where=str(path)) for path in given.plan]
        receipts = run_all(plans, given.root, given.out, import_check=given.import_check)
    except ToolkitError as error:
        sys.stderr.write(f"error: {error}\n{RECORD_MARK}{json.dumps(error.as_record())}\n")
        return error.exit_code
    text = json.dumps(receipts, indent=2, sort_keys=True) + "\n"
    if given.receipt:
        given.receipt.parent.mkdir(parents=True, exist_ok=True)
        given.receipt.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

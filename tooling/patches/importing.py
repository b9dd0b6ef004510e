"""Imports changed modules from where they were written, as if they were installed already.

Standard library only: it travels into image builds with the applier.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tooling.errors import CheckError
from tooling.patches.errors import Fault, PatchError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Seconds for all imports of one tree; engines import torch first.
TIMEOUT_S = 1800.0
#: Names a folder for the bytecode of what is imported. An image has none of its own, and compiling an engine's
#: few thousand modules takes longer than all else here.
BYTECODE_VARIABLE = "PATCH_CHECK_BYTECODE"

# Run with -S so that only the given tree is imported from; the answer is the last line of stdout.
_PROBE = """
import importlib, importlib.abc, importlib.util, json, os, site, sys
root, changed = sys.argv[1], json.loads(sys.argv[2])
sys.path[:0] = [root]
site.addsitedir(root)

class Changed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in changed:
            return None
        places = [os.path.join(root, *name.split("."))] if changed[name].endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, changed[name], submodule_search_locations=places)

sys.meta_path.insert(0, Changed())
failed = {}
for name in sys.argv[3:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print()
print(json.dumps(failed))
"""


def module_of(path: str) -> str | None:
    """Dotted name of a file below site-packages; None for what is not an importable module."""
    stem = path.removesuffix(".py").removesuffix("/__init__")
    parts = stem.split("/")
    return ".".join(parts) if path.endswith(".py") and all(part.isidentifier() for part in parts) else None


def check_imports(root: Path, out: Path, paths: Iterable[str]) -> list[str]:
    """Import every changed module, and where one fails, its pristine version too.

    Args:
        root: The site-packages folder as it was.
        out: Where the changed files are.
        paths: The changed files.

    Returns:
        Modules that this machine cannot import even without the patch (no GPU, no driver): a limitation of the
        check, to be shown.

    Raises:
        PatchError: A module can be imported without the patch and cannot with it.
        CheckError: The imports did not end in time, which says nothing of the patch.
    """
    modules = {name: path for path in paths if (name := module_of(path))}
    changed = {name: str(out / path) for name, path in modules.items()}
    after = _failures(root, changed, list(modules))
    before = _failures(root, {}, [name for name in after if (root / modules[name]).is_file()])
    for name, message in after.items():
        if name not in before:
            raise PatchError(
                f"module {name} can be imported as it was shipped, and no longer after the patch",
                details=[message],
                fix="correct the patch and record the series anew",
                fault=Fault.UNUSABLE_RESULT,
                file=modules[name],
            )
    return sorted(after)


def _failures(root: Path, changed: dict[str, str], modules: list[str]) -> dict[str, str]:
    """Module -> why it cannot be imported, in a process of its own."""
    if not modules:
        return {}
    argv = [sys.executable, "-S", "-c", _PROBE, str(root), json.dumps(changed), *modules]
    environment = dict(os.environ)
    if folder := environment.pop(BYTECODE_VARIABLE, None):
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = folder
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(
            f"the import check of {len(modules)} changed modules did not end within {TIMEOUT_S:g} s",
            where=str(root),
            fix="build again on a less busy machine; nothing is known of the patches",
        ) from error
    try:
        answer: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = " ".join(done.stderr.split()[-40:])
        reason = f"the importing process ended with code {done.returncode} and no answer: {last}"
        return dict.fromkeys(modules, reason)
    return answer

"""The patch series of a build: what is applied, and what the step that applies them reads."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import EngineError, InputError
from tooling.patches.overlay import RUNTIME_FILES
from tooling.patches.series import Selection, load_series, plan_for
from tooling.records import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.lock.lockfile import Lock
    from tooling.patches.overlay import Plan
    from tooling.stack.model import Stack

_CHECKOUT = Path(__file__).resolve().parents[2]


def plans_of(stack: Stack, lock: Lock, images: Path) -> list[Plan]:
    """The series of a stack with its switches decided, in the stack's order.

    Args:
        stack: The stack.
        lock: Its lock.
        images: The checkout's `images/`.

    Raises:
        InputError: A series is for another version than the locked one, or two series change one file.
    """
    locked = {wheel.name: wheel.version for wheel in lock.wheels}
    plans: list[Plan] = []
    owner: dict[str, str] = {}
    for given in stack.patches:
        plan = plan_for(
            load_series(given.series, images / "patches"), Selection.model_validate(given.model_dump())
        )
        have = locked.get(plan.package)
        if have != plan.version:
            raise InputError(
                f"series {plan.series} is for {plan.package} {plan.version}, the lock has {have or 'none'}",
                where=f"stack {stack.name}, patches",
                fix="use the series of the locked version, or write one",
            )
        for path in sorted({path for patch in plan.patches for path in patch.files}):
            if (earlier := owner.setdefault(path, plan.series)) != plan.series or plan in plans:
                raise InputError(
                    f"series {earlier} and {plan.series} change the same file {path}",
                    where=f"stack {stack.name}, patches",
                    fix="put both edits into one series",
                )
        plans.append(plan)
    return plans


def patch_hashes(plans: Iterable[Plan]) -> dict[str, str]:
    """`<series>/<patch>` -> SHA-256 of the patch, for those that are applied."""
    return {
        f"{plan.series}/{patch.name}": sha256_of(patch.text.encode())
        for plan in plans
        for patch in plan.patches
    }


def plan_files(plans: Iterable[Plan]) -> dict[str, str]:
    """File name -> plan, as the build step reads them, in order."""
    return {f"{number:02}-{plan.series}.json": plan.to_json() for number, plan in enumerate(plans, 1)}


def put_toolkit_files(names: Iterable[str], target: Path) -> None:
    """Copy files of the toolkit (paths below the checkout) into a folder that Python can import from."""
    for name in names:
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_CHECKOUT / name, destination)


def put_applier(plans: Iterable[Plan], context: Path) -> None:
    """Put the plans and the program that applies them into a build context."""
    (context / "patches").mkdir()
    for name, text in plan_files(plans).items():
        (context / "patches" / name).write_text(text, encoding="utf-8")
    put_toolkit_files(RUNTIME_FILES, context / "kit")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package_directory("unidiff"), context / "kit" / "unidiff", ignore=ignored)


def package_directory(name: str) -> Path:
    """Where a package of the toolkit's own environment lies.

    Raises:
        EngineError: It is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            f"the toolkit's own environment lacks {name}", fix="install the toolkit from its lock"
        )
    return Path(spec.submodule_search_locations[0])

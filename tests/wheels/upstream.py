"""Real wheels of a series, as shipped and as patched, and single functions of them among stubs."""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tooling.patches.overlay import changed_files, reader
from tooling.patches.series import Selection, load_series, plan_for
from tooling.patches.wheels import unpacked_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@cache
def wheel(package: str, version: str) -> Path:
    """The unpacked wheel, from the cache or the package index."""
    return unpacked_wheel(package, version)


@cache
def patched(series_name: str, *only: str) -> dict[str, str]:
    """Path -> patched text, with the named patches on and all others off; with no name, all are on."""
    series = load_series(series_name)
    names = [patch.name for patch in series.patches]
    on = [name for name in names if not only or name[:4] in only]
    off = [name for name in names if name not in on]
    plan = plan_for(series, Selection(series=series_name, enable=tuple(on), disable=tuple(off)))
    files = changed_files(plan, reader(wheel(series.package, series.version)))
    return {path: data.decode() for path, data in files.items()}


def sources(series_name: str, number: str, path: str) -> tuple[str, str]:
    """One file as the package ships it and as one patch alone leaves it."""
    series = load_series(series_name)
    shipped = (wheel(series.package, series.version) / path).read_text()
    return shipped, patched(series_name, number)[path]


def function(source: str, name: str, **names: Any) -> Callable[..., Any]:
    """Compile one function or method of a module and bind its global names to stubs.

    Decorators and annotations are left out; `Class.method` names a method. An unbound name raises NameError
    only when it is really used.
    """
    body: list[ast.stmt] = ast.parse(source).body
    *owners, last = name.split(".")
    for owner in owners:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
    node = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == last)
    node.decorator_list = []
    module = ast.parse("from __future__ import annotations")
    module.body.append(node)
    namespace: dict[str, Any] = dict(names)
    exec(compile(module, f"<{name}>", "exec"), namespace)  # noqa: S102  # the code under test
    return namespace[last]  # type: ignore[no-any-return]


def statements(source: str, function_name: str, first: str, last: str, **names: Any) -> dict[str, Any]:
    """Run a stretch of lines of a function by itself and give the names it bound.

    Args:
        source: Text of the module.
        function_name: The function that holds the lines.
        first: Beginning of the first line, stripped.
        last: Beginning of the first line after the stretch, stripped.
        names: What the lines read.
    """
    tree = ast.parse(source)
    node = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function_name
    )
    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(lines) if i > start and line.strip().startswith(last))
    namespace: dict[str, Any] = dict(names)
    exec(textwrap.dedent("\n".join(lines[start:end])), namespace)  # noqa: S102  # the code under test
    return namespace


def platform(major: int, *, hip: bool = False) -> SimpleNamespace:
    """What `get_platform()` says on a card of this major capability."""
    return SimpleNamespace(
        is_sm90=major == 9,
        is_sm100=major == 10,
        is_sm120=major == 12,
        is_blackwell=major in (10, 11, 12),
        is_hip=hip,
        is_npu=False,
        is_xpu=False,
    )

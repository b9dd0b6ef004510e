"""Files that the stack drops: nothing that stays may need, import or be made of them."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from distributions import Installed
    from libraries import Library

_MODULE_SUFFIXES = (".py", ".so")
_STEM = re.compile(r"\.so(?=\.|$).*")
#: Handlers after which an import that fails is an answer and no fault.
_FORGIVING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def needed_libraries(libraries: Iterable[Library], dropped: Iterable[str]) -> list[str]:
    """Libraries that stay and name a dropped one, which no library that stays replaces.

    Args:
        libraries: What is there.
        dropped: Paths relative to site-packages.
    """
    there = list(libraries)
    provided = {library.soname for library in there} | {library.path.name for library in there}
    gone: dict[str, str] = {}
    for path in dropped:
        name = path.rsplit("/", 1)[-1]
        if ".so" in name:
            # A file has its full version in its name, a need only the first part of it.
            gone[_STEM.sub("", name)] = path
    return [
        f"{library.path.name} needs {name}, and the stack drops {gone[_STEM.sub('', name)]}"
        for library in there
        for name in sorted(library.needed - provided)
        if _STEM.sub("", name) in gone
    ]


def module_of(path: str) -> str | None:
    """The dotted name of a file as a module; None for a file that cannot be imported."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(_MODULE_SUFFIXES):
        return None
    stem = name.split(".")[0]
    parts = [*folder.split("/"), *([] if stem == "__init__" else [stem])]
    parts = [part for part in parts if part]
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


def emptied_packages(site: Path, distributions: Mapping[str, Installed], dropped: Iterable[str]) -> list[str]:
    """Packages of which no module is left, or which lost the file that makes them one."""
    gone = set(dropped)
    modules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, installed in distributions.items():
        for path in installed.files:
            below = os.path.relpath(path, site)
            if not below.startswith("../") and module_of(below) and "/" in below:
                modules[name, below.split("/", 1)[0]].append(below)
    findings = []
    for (name, top), paths in sorted(modules.items()):
        if gone.isdisjoint(paths):
            continue
        if gone.issuperset(paths):
            findings.append(f"{name}: the stack drops every module of {top}")
        elif f"{top}/__init__.py" in gone:
            findings.append(f"{name}: the stack drops {top}/__init__.py, without which {top} is no package")
    return findings


def broken_imports(site: Path, distributions: Mapping[str, Installed], dropped: Iterable[str]) -> list[str]:
    """Modules that stay and import a dropped one without being ready for its absence.

    Args:
        site: The folder of packages.
        distributions: What is installed.
        dropped: Paths relative to `site`.
    """
    gone = gone_modules(site, dropped)
    if not gone:
        return []
    # An import of one of them names, in one statement, the last part of the outermost module that is gone.
    tops = {_outermost(module, gone) for module in gone}
    words = [word.encode() for word in sorted({top.rsplit(".", 1)[-1] for top in tops})]
    roots = [root.encode() for root in sorted({top.split(".", 1)[0] for top in tops})]
    findings = []
    for installed in distributions.values():
        for path in installed.files:
            if not path.endswith(".py") or not os.path.isfile(path):  # noqa: PTH113  # 90,000 files
                continue
            below = os.path.relpath(path, site)
            with open(path, "rb") as file:  # noqa: PTH123
                source = file.read()
            # Cheap questions first: parsing all files of an image takes minutes.
            if not any(root in source for root in roots) and below.split("/", 1)[0].encode() not in roots:
                continue
            if not any(_named(word, source) for word in words):
                continue
            for line, module in _imports(source, below):
                if hit := _hit(module, gone):
                    findings.append(f"{below}:{line} imports {hit}, which the stack drops")
    return findings


def gone_modules(site: Path, dropped: Iterable[str]) -> set[str]:
    """Dotted names that cannot be imported any more: modules, and folders that are gone with all of theirs."""
    gone: set[str] = set()
    left: dict[str, bool] = {"": True}
    for path in dropped:
        module = module_of(path)
        if module is None:
            continue
        gone.add(module)
        folder = path.rpartition("/")[0]
        while not left.setdefault(folder, (site / folder).is_dir()):
            gone.add(folder.replace("/", "."))
            folder = folder.rpartition("/")[0]
    return gone


def _named(word: bytes, source: bytes) -> bool:
    """Whether a line with a word is, or may be the middle of, an import."""
    at = source.find(word)
    while at >= 0:
        line = source[source.rfind(b"\n", 0, at) + 1 : at]
        if b"import" in line or b"from" in line or not line.strip(b" \t(,"):
            return True
        at = source.find(word, at + len(word))
    return False


def _outermost(module: str, gone: set[str]) -> str:
    while "." in module and module.rsplit(".", 1)[0] in gone:
        module = module.rsplit(".", 1)[0]
    return module


def _hit(module: str, gone: set[str]) -> str | None:
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((name for name in names if name in gone), None)


def _imports(source: bytes, path: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import that would fail loudly."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # Python cannot import it either: templates, files for other versions.
    package = path.split("/")[:-1]
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, ready = todo.pop()
        if isinstance(node, ast.Import) and not ready:
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not ready:
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Try):
            forgiven = ready or any(map(_forgives, node.handlers))
            todo += [(child, forgiven) for child in node.body]
            todo += [(child, ready) for child in (*node.handlers, *node.orelse, *node.finalbody)]
        else:
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            todo += [(child, ready or typing_only) for child in ast.iter_child_nodes(node)]


def _forgives(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(one, ast.Name) and one.id in _FORGIVING for one in types)


def judge_dropped(
    site: Path, distributions: Mapping[str, Installed], libraries: list[Library], report: Mapping[str, Any]
) -> list[str]:
    """All findings on the files that a report of the pruner says are dropped."""
    paths = [file["path"] for file in report.get("dropped", ())]
    if not paths:
        return []
    return [
        *needed_libraries(libraries, paths),
        *emptied_packages(site, distributions, paths),
        *broken_imports(site, distributions, paths),
    ]

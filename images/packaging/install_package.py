"""Lay a package of this repository into site-packages as an installed distribution, in a build step.

Usage: install_package.py SOURCE SITE OUT [LIBRARIES]. SOURCE has `pyproject.toml` and the package's folder;
what is made lies below OUT at the place SITE. LIBRARIES is a folder of compiled files for it. In: EPOCH.

No build backend is needed, and equal inputs give equal bytes. The receipt in /opt/stack/share/local tells the
selftest what to expect, since the check of the wheels has seen the image without this package.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

SHARE = Path("/opt/stack/share/local")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


class RefusedError(Exception):
    """The package cannot go into the image."""


def read_project(source: Path) -> dict[str, Any]:
    """The table `project` of a package."""
    try:
        project: dict[str, Any] = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise RefusedError(f"{source}/pyproject.toml has no project: {error}") from error
    if missing := {"name", "version", "description"} - project.keys():
        raise RefusedError(f"{source}/pyproject.toml does not say {', '.join(sorted(missing))}")
    if project.get("dependencies"):
        raise RefusedError("a local package has no requirements of its own: its stack's lock decides them")
    return project


def metadata_files(project: dict[str, Any], *, pure: bool) -> dict[str, str]:
    """Files of the `.dist-info` folder except RECORD, by name.

    Args:
        project: The table `project`.
        pure: Whether it has no compiled file.
    """
    tag = "py3-none-any" if pure else f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
    ]
    lines += [f"{field}: {project[key]}" for field, key in _OPTIONAL.items() if key in project]
    points = ""
    for group, entries in sorted(project.get("entry-points", {}).items()):
        points += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in sorted(entries.items()))
    wheel = (
        f"Wheel-Version: 1.0\nGenerator: blackwell-stacks\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {tag}\n"
    )
    files = {"METADATA": "\n".join(lines) + "\n", "WHEEL": wheel, "INSTALLER": "blackwell-stacks\n"}
    return files | ({"entry_points.txt": points} if points else {})


_OPTIONAL = {"License-Expression": "license", "Requires-Python": "requires-python"}


def record_line(path: Path, root: Path) -> str:
    """One line of RECORD: path below site-packages, hash, size."""
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(root).as_posix()},sha256={digest},{len(data)}"


def install(source: Path, site: Path, out: Path, libraries: Path | None = None) -> dict[str, Any]:
    """Write the package, its `.dist-info` and the receipt below a folder; returns the receipt.

    Args:
        source: Folder with `pyproject.toml` and the package.
        site: Site-packages of the image.
        out: Where the tree for the image's root is made.
        libraries: Folder of compiled files that go into the package.

    Raises:
        RefusedError: There is nothing to install, or site-packages has one of the names already.
    """
    project = read_project(source)
    module = project["name"].replace("-", "_")
    info = f"{module}-{project['version']}.dist-info"
    if taken := [name for name in (module, info) if (site / name).exists()]:
        raise RefusedError(f"site-packages has {taken[0]} already")
    if not (source / module / "__init__.py").is_file():
        raise RefusedError(f"{source} has no package {module}")
    root = out / site.relative_to("/")
    shutil.copytree(source / module, root / module, ignore=_IGNORED)
    compiled = sorted(path for path in libraries.rglob("*") if path.is_file()) if libraries else []
    for path in compiled:
        target = root / module / path.relative_to(libraries or path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    (root / info).mkdir()
    for name, text in metadata_files(project, pure=not compiled).items():
        (root / info / name).write_text(text, encoding="utf-8")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    record = "".join(f"{record_line(path, root)}\n" for path in files) + f"{info}/RECORD,,\n"
    (root / info / "RECORD").write_text(record, encoding="utf-8")
    return {
        "name": project["name"],
        "version": project["version"],
        "files": len(files),
        "compiled": [str(path.relative_to(libraries)) for path in compiled if libraries],
        "record": str(site / info / "RECORD"),
        "record_sha256": hashlib.sha256(record.encode()).hexdigest(),
    }


def main() -> int:
    """Entry of the build step."""
    source, site, out, *more = (Path(argument) for argument in sys.argv[1:])
    try:
        receipt = install(source, site, out, *more[:1])
    except RefusedError as error:
        print(f"local package: {error}", file=sys.stderr)
        return 1
    place = out / (SHARE / f"{receipt['name']}.json").relative_to("/")
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(receipt, indent=1, sort_keys=True), encoding="utf-8")
    epoch = int(os.environ["EPOCH"])
    for path in (out, *out.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    print(
        f"{receipt['name']} {receipt['version']}: {receipt['files']} files, {len(receipt['compiled'])} compiled"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

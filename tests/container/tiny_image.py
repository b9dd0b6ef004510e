"""An image out of nothing: this host's own Python and what it needs to run a script, imported as one layer."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

#: Parts of the standard library that no fake engine needs, and the largest of them.
_LEFT_OUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip",
    "lib2to3", "turtledemo", "distutils", "pydoc_data", "unittest", "asyncio", "sqlite3", "multiprocessing",
    "ctypes", "curses", "dbm", "xml", "xmlrpc", "wsgiref", "msilib", "venv", "zoneinfo", "concurrent",
}  # fmt: skip
#: Compiled modules that bring large libraries with them.
_COMPILED_LEFT_OUT = re.compile(
    r"(_tkinter|_decimal|_sqlite3|_curses|readline|nis|_g?dbm|_crypt|_ssl|_hashlib|_ctypes|_codecs_|"
    r"_test|_xx|xx|_lzma|_bz2|_asyncio|_zoneinfo|ossaudiodev)"
)
PYTHON = "/python/bin/python3"


def python_layer(*, whole: bool = False) -> bytes:
    """A tar with the interpreter, its library and the shared objects that they are linked with.

    Args:
        whole: All of the standard library, not what a fake engine needs.
    """
    buffer = io.BytesIO()
    executable = Path(sys.executable).resolve()
    library = Path(sys.base_prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(executable, PYTHON.lstrip("/"))
        wanted = _belongs if whole else _wanted
        tops = [path for path in sorted(library.iterdir()) if wanted(path.relative_to(library))]
        below = [path for top in tops if top.is_dir() for path in sorted(top.rglob("*"))]
        modules = [path for path in (*tops, *below) if wanted(path.relative_to(library))]
        for path in modules:
            tar.add(path.resolve(), f"python/lib/{library.name}/{path.relative_to(library)}", recursive=False)
        objects = {executable, *(path for path in modules if path.suffix == ".so")}
        for target in sorted(linked(objects)):
            tar.add(Path(target).resolve(), target.lstrip("/"), recursive=False)
    return buffer.getvalue()


def _belongs(path: Path) -> bool:
    """Whether it is part of the standard library, and no test of it."""
    left_out = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    return not left_out & set(path.parts) and not path.parts[0].startswith("config-")


def _wanted(path: Path) -> bool:
    left_out = _LEFT_OUT & set(path.parts) or path.parts[0].startswith("config-") or path.suffix == ".a"
    return not left_out and not (path.suffix == ".so" and _COMPILED_LEFT_OUT.match(path.name))


def linked(objects: set[Path]) -> set[str]:
    """Shared objects that the loader would load for some files, by `ldd`."""
    done = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, check=False)
    words = {
        word for line in done.stdout.splitlines() if "=>" in line or "ld-linux" in line for word in line.split()
    }
    return {word for word in words if word.startswith("/") and not word.endswith(":") and Path(word).is_file()}

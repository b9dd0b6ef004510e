"""`docker run IMAGE selftest [--json]`: is this image what its stack says? Needs no GPU and no network.

The version contract comes first: Python, engine, packages, CUDA, the compiler. Exit code 1 when a check fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = Path("/opt/stack/share")


class Result(NamedTuple):
    """One check: its name, whether it holds, and what was seen."""

    name: str
    passed: bool
    seen: str


def canonical(name: str) -> str:
    """Name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_python(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The interpreter has the stack's minor version."""
    have = ".".join(platform.python_version_tuple()[:2])
    return Result("python", have == stack["python"], f"Python {platform.python_version()}")


def check_packages(_: dict[str, Any], contents: dict[str, Any]) -> Result:
    """What is installed now is what was verified when the image was built."""
    verified = {entry["name"]: entry["version"] for entry in contents["packages"]}
    found = {
        canonical(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    wrong = sorted(name for name in verified.keys() | found.keys() if verified.get(name) != found.get(name))
    seen = f"{len(found)} packages as verified at build" if not wrong else f"changed: {', '.join(wrong)}"
    return Result("packages", bool(verified) and not wrong, seen)


def check_engine(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The engine has the stack's version."""
    package, wanted = stack["engine"]["package"], stack["engine"]["version"]
    try:
        have = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Result("engine", passed=False, seen=f"{package} is not installed")
    return Result("engine", have == wanted, f"{package} {have}")


def check_contents(_: dict[str, Any], contents: dict[str, Any]) -> Result:
    """The check of all files at build time looked at something and found nothing new."""
    looked = contents["hashed_files"] > 0 and not contents["findings"] and not contents["stale"]
    seen = (
        f"{contents['hashed_files']} files, {contents['libraries']} libraries, {len(contents['allowed'])} known"
    )
    return Result("contents", looked, seen)


def check_user(_: dict[str, Any], __: dict[str, Any]) -> Result:
    """The engine does not run as root."""
    return Result("user", os.geteuid() != 0, f"uid {os.geteuid()}")


def check_environment(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The stack's variables are set for every process of the image."""
    wrong = [name for name, value in stack["environment"].items() if os.environ.get(name) != value]
    seen = f"{len(stack['environment'])} variables" if not wrong else f"not as in the stack: {', '.join(wrong)}"
    return Result("environment", not wrong, seen)


def check_nvcc(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The CUDA compiler of the image makes a program for the target and links it."""
    target = stack["targets"]["required"][0]
    source = "__global__ void k(float *a) { a[threadIdx.x] = 1.0f; }\nint main() { k<<<1, 1>>>(nullptr); }\n"
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "k.cu"
        file.write_text(source, encoding="utf-8")
        argv = [f"{os.environ['CUDA_HOME']}/bin/nvcc", f"-arch={target}", "-o", f"{directory}/k", str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            return Result("nvcc", passed=False, seen=(done.stderr or done.stdout).strip()[-300:])
    version = subprocess.run([argv[0], "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+\.\d+)", version)
    have = release[1] if release else "unknown"
    return Result("nvcc", have == stack["cuda"], f"nvcc {have} compiled and linked for {target}")


def checks_for(stack: dict[str, Any]) -> list[Callable[[dict[str, Any], dict[str, Any]], Result]]:
    """The checks that concern a stack."""
    checks = [check_python, check_packages, check_engine, check_contents, check_user, check_environment]
    return [*checks, check_nvcc] if stack["cuda"] else checks


def main() -> int:
    """Run all checks and print them."""
    stack = json.loads((SHARE / "stack.json").read_text(encoding="utf-8"))
    contents = json.loads((SHARE / "contents.json").read_text(encoding="utf-8"))
    results = [check(stack, contents) for check in checks_for(stack)]
    passed = all(result.passed for result in results)
    if "--json" in sys.argv:
        checks = [result._asdict() for result in results]
        print(json.dumps({"stack": stack["stack"], "passed": passed, "checks": checks}, indent=1))
    if "--json" not in sys.argv or not passed:
        for result in results:
            print(f"{'PASS' if result.passed else 'FAIL'}  {result.name:<12} {result.seen}", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

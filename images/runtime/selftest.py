"""`docker run IMAGE selftest [--json]`: is this image what its stack says? Needs no GPU and no network.

The version contract comes first: Python, engine, packages, CUDA, the compiler. Exit code 1 when a check fails.
"""

from __future__ import annotations

import base64
import csv
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))

from tooling.census.reader.fatbin import RELOCATABLE_SECTION
from tooling.census.reader.files import read_file
from tooling.census.reader.scan import files_below, is_text_name
from tooling.census.reader.span import MalformedError
from tooling.patches.receipt import verify_receipt

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = Path("/opt/stack/share")
SITE = Path(sysconfig.get_path("purelib"))


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
    verified |= {canonical(receipt["name"]): receipt["version"] for receipt in local_receipts()}
    found = {
        canonical(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    wrong = sorted(name for name in verified.keys() | found.keys() if verified.get(name) != found.get(name))
    seen = f"{len(found)} packages as verified at build" if not wrong else f"changed: {', '.join(wrong)}"
    return Result("packages", bool(verified) and not wrong, seen)


def local_receipts() -> list[dict[str, Any]]:
    """What was laid in beside the wheels, as the build steps wrote it down."""
    folder = SHARE / "local"
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def check_local_packages(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """Every package of the stack's own repository is there, each file as its RECORD says."""
    receipts = local_receipts()
    wrong, files = [], 0
    for receipt in receipts:
        path = Path(receipt["record"])
        record = path.read_bytes() if path.is_file() else b""
        if sha256(record).hexdigest() != receipt["record_sha256"]:
            wrong.append(f"{receipt['name']}: RECORD is missing or not as built")
        for name, digest, _size in csv.reader(record.decode().splitlines()):
            file = path.parents[1] / name
            found = sha256(file.read_bytes()).digest() if file.is_file() else b""
            if digest and base64.urlsafe_b64encode(found).rstrip(b"=").decode() != digest.partition("=")[2]:
                wrong.append(f"{name} is missing or not as built")
            files += bool(digest)
    if len(receipts) != len(stack["local_packages"]) or not files:
        wrong.append(f"{len(receipts)} packages with {files} files, the stack has {stack['local_packages']}")
    names = ", ".join(f"{receipt['name']} {receipt['version']}" for receipt in receipts)
    return Result("local packages", not wrong, "; ".join(wrong) or f"{names}: {files} files as built")


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


def check_patches(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The patches of the stack were applied, and the patched files are as they were then."""
    path = SHARE / "patches.json"
    receipts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    applied = {receipt["series"]: receipt["applied"] for receipt in receipts}
    if applied != stack["patches"]:
        return Result("patches", passed=False, seen=f"applied {applied}, the stack has {stack['patches']}")
    wrong = [line for receipt in receipts for line in verify_receipt(receipt, SITE)]
    files = sum(len(receipt["files"]) for receipt in receipts)
    patches = sum(map(len, applied.values()))
    seen = "; ".join(wrong) or f"{patches} patches, {files} files as patched"
    return Result("patches", not wrong and files > 0, seen)


def sass_of(path: Path) -> set[str]:
    """Architectures of the machine code in a library that the CUDA runtime can load."""
    code = read_file(path)
    containers = code.containers if code else ()
    return {
        entry.arch
        for container in containers
        if container.section != RELOCATABLE_SECTION
        for entry in container.entries
        if entry.kind == "sass"
    }


def check_kernels(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """Every kernel module of the stack is where its package looks, unchanged, with code for its target."""
    wrong = []
    for module in stack["kernels"]:
        receipt_path = SHARE / "kernels" / f"{module}.json"
        if not receipt_path.is_file():
            wrong.append(f"{module} has no receipt")
            continue
        receipt = json.loads(receipt_path.read_text(encoding="utf-8"))
        library = Path(receipt["path"])
        if not library.is_file():
            wrong.append(f"{module} is missing")
        elif sha256(library.read_bytes()).hexdigest() != receipt["sha256"]:
            wrong.append(f"{module} is not the library that was compiled")
        elif receipt["architecture"] not in (found := sass_of(library)):
            wrong.append(f"{module} has code for {', '.join(sorted(found)) or 'nothing'}")
    return Result("kernels", not wrong, "; ".join(wrong) or f"compiled in: {', '.join(stack['kernels'])}")


def check_census(stack: dict[str, Any], _: dict[str, Any]) -> Result:
    """The libraries that the stack requires have machine code for its targets."""
    paths = [path for path, error in files_below(str(SITE)) if error is None and not is_text_name(path)]
    wrong, looked = [], set()
    for rule in stack["census"]:
        patterns = [f"*/{pattern.removeprefix('/')}" for pattern in rule["files"]]
        found = [path for path in paths if any(fnmatchcase(f"/{path}", pattern) for pattern in patterns)]
        looked.update(found)
        if len(found) < rule["at_least"]:
            wrong.append(f"{rule['name']}: {len(found)} files, {rule['at_least']} expected")
        for path in found:
            try:
                served = sass_of(SITE / path) & set(rule["architectures"])
            except (MalformedError, OSError) as error:
                wrong.append(f"{path} cannot be read: {error}")
                continue
            if not served:
                wrong.append(f"{path} has no code for {rule['device']}")
    return Result("census", bool(looked) and not wrong, "; ".join(wrong) or f"{len(looked)} libraries")


def checks_for(stack: dict[str, Any]) -> list[Callable[[dict[str, Any], dict[str, Any]], Result]]:
    """The checks that concern a stack."""
    checks = [check_python, check_packages, check_engine, check_contents, check_user, check_environment]
    concerned = {
        check_local_packages: "local_packages",
        check_patches: "patches",
        check_kernels: "kernels",
        check_census: "census",
        check_nvcc: "cuda",
    }
    return [*checks, *(check for check, part in concerned.items() if stack[part])]


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

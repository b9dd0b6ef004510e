"""The kernel modules of an image: kept by the hash of what they are made of, and looked at after the build."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tooling import console
from tooling.build.context import COMPILE_FILES, IMPORTED, SHARE
from tooling.build.local import local_packages
from tooling.build.patching import plan_files
from tooling.build.record import KernelReceipt
from tooling.census.architecture import parse_architecture
from tooling.census.kernels import Kernel, KernelLimits, check_kernels
from tooling.dockerhost.containers import read_files
from tooling.errors import CheckError
from tooling.records import sha256_of, sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import docker

    from tooling.base.bootstrap import BaseImage
    from tooling.gates.records import Check
    from tooling.lock.lockfile import Lock
    from tooling.patches.overlay import Plan
    from tooling.stack.model import Kernels, Stack

_RECEIPT = "receipt.json"


def cache_folder() -> Path:
    """Where compiled modules are kept, one tar file each, named by the hash of its inputs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blackwell-stacks" / "kernels"


def kernel_inputs(
    stack: Stack, lock: Lock, base: BaseImage, plans: Sequence[Plan], images: Path
) -> dict[str, str]:
    """Module -> hash of all that it is compiled from: compiler, headers, sources, patches, the recipe.

    Compilers and headers are spread over base and wheels, so the whole of both counts: a module may be
    compiled once too often, never once too seldom.
    """
    if stack.kernels is None:
        return {}
    shared = {
        "package": stack.kernels.package,
        "source": stack.kernels.source,
        "architecture": stack.kernels.architecture,
        "base": base.packages or base.reference,
        "lock": lock.content_sha256,
        "patches": list(plan_files(plan for plan in plans if plan.package == stack.kernels.package).values()),
        "recipe": {name: sha256_of_file(images / "kernels" / name) for name in COMPILE_FILES},
    }
    found = {module: sha256_of({**shared, "module": module}) for module in stack.kernels.modules}
    for package in local_packages(stack, images):
        if package.native:
            own = {"architecture": package.architecture, "base": shared["base"], "lock": shared["lock"]}
            found[package.module] = sha256_of({**own, "sources": package.native_files()})
    return found


def import_kernels(inputs: Mapping[str, str], context: Path, folder: Path | None = None) -> list[str]:
    """Lay kept modules into a build context; a file that is damaged is said and compiled again.

    Args:
        inputs: Module -> hash of its inputs.
        context: The build context.
        folder: Where modules are kept; by default this user's cache.

    Returns:
        The modules that need not be compiled.
    """
    found = []
    for module, digest in inputs.items():
        place = context / IMPORTED / module
        place.mkdir(parents=True)
        path = (folder or cache_folder()) / f"{digest}.tar"
        if not path.is_file():
            continue
        library = _read_kept(path, module)
        if library is None:
            console.say(f"the kept kernel module {path} is damaged: {module} is compiled again")
            continue
        (place / f"{module}.so").write_bytes(library)
        found.append(module)
    return found


def _read_kept(path: Path, module: str) -> bytes | None:
    """The library in a kept file, None when it is not the one that its receipt names."""
    try:
        with tarfile.open(path) as tar:
            library, text = (_member(tar, name) for name in (f"{module}.so", _RECEIPT))
        receipt = KernelReceipt.model_validate_json(text)
    except (tarfile.TarError, KeyError, OSError, ValidationError):
        return None
    return library if hashlib.sha256(library).hexdigest() == receipt.sha256 else None


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def export_kernels(
    compiled: Mapping[str, tuple[KernelReceipt, bytes]], inputs: Mapping[str, str], folder: Path | None = None
) -> list[Path]:
    """Keep modules for later builds of equal inputs, here or (by copying the files) on another machine.

    Returns:
        The files that were not there yet.
    """
    target = folder or cache_folder()
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for module, (receipt, library) in compiled.items():
        path = target / f"{inputs[module]}.tar"
        if path.is_file() and _read_kept(path, module) is not None:
            continue
        draft = path.with_suffix(f".{os.getpid()}")
        with tarfile.open(draft, "w") as tar:
            for name, data in ((f"{module}.so", library), (_RECEIPT, receipt.model_dump_json().encode())):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        draft.replace(path)
        written.append(path)
    return written


def read_kernels_of(
    client: docker.DockerClient, image: str, kernels: Kernels, below: str = ""
) -> dict[str, tuple[KernelReceipt, bytes]]:
    """The modules of an image with their receipts.

    Args:
        client: The engine.
        image: The image.
        kernels: Which modules it must have.
        below: Folder in which they lie as in an image; that of a build step is `/out`.

    Raises:
        CheckError: One is missing, or is not the file that its receipt names.
    """
    places = {module: f"{below}{SHARE}/kernels/{module}.json" for module in kernels.names}
    texts = read_files(client, image, places.values())
    missing = [module for module, place in places.items() if place not in texts]
    if missing:
        raise CheckError(f"the image has no receipt of kernel modules: {', '.join(missing)}", where=image)
    receipts = {
        module: KernelReceipt.model_validate(json.loads(texts[place])) for module, place in places.items()
    }
    libraries = read_files(client, image, [below + receipt.path for receipt in receipts.values()])
    wrong = [
        module
        for module, receipt in receipts.items()
        if hashlib.sha256(libraries.get(below + receipt.path, b"")).hexdigest() != receipt.sha256
    ]
    if wrong:
        raise CheckError(f"kernel modules are missing or not as compiled: {', '.join(wrong)}", where=image)
    return {module: (receipt, libraries[below + receipt.path]) for module, receipt in receipts.items()}


def judge_module(module: str, library: bytes, kernels: Kernels) -> tuple[tuple[Kernel, ...], tuple[Check, ...]]:
    """The kernels of one compiled module, and the checks on them: empty, spilling, trapping, too large."""
    limits = KernelLimits(spill_bytes=kernels.spill_bytes.get(module, 0), may_be_empty=kernels.may_be_empty)
    device = parse_architecture(kernels.architecture).capability
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-kernels-") as directory:
        path = Path(directory) / f"{module}.so"
        path.write_bytes(library)
        return check_kernels(path, device, limits)

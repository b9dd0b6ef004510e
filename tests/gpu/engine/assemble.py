"""Assemble an engine for a GPU machine without network: `python -m tests.gpu.engine.assemble OUT`.

Wheels by hash, without what the machine has and what the engine does not import, without device code for other
GPUs, packed into parts that are small enough for one transfer each. `--lock` resolves the wheels anew.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import Field
from uv import find_uv_bin

from tooling import console
from tooling.errors import CheckError, CommandError
from tooling.gates.throughput.extension import client_pin, install_command, verified, wanted_extension
from tooling.records import Record, now, sha256_of, sha256_of_file
from tooling.runner import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LOCK = HERE / "requirements.lock.txt"
MACHINE = HERE / "machine-packages.txt"
PART_NAME = "environment.tar.xz"
#: Where the load client is looked for below the carried folder, used as XDG_CACHE_HOME there.
CACHE = "cache"
SITE = "site"
#: This project's compiled kernels.
KERNELS = "libblackwell_kernels.so"
#: Compressed groups of earlier runs.
STREAMS = ROOT / "build" / "gpu-engine-streams"
#: Bytes from which a package is a group of its own.
_OWN_GROUP = 4 << 20
_BLOCK = re.compile(r"\n(?=[A-Za-z0-9])")


class Excluded(Record):
    """Packages (patterns) that are not carried, and why."""

    packages: tuple[str, ...] = Field(min_length=1)
    reason: str


class Facts(Record):
    """`facts.yaml`: the engine, its environment, what is left out of it, and how it is started."""

    engine: dict[str, str]
    python: str
    platform: str
    keep: str
    part_mib: int = Field(ge=1)
    requirements: tuple[str, ...]
    replace: tuple[str, ...]
    exclude: tuple[Excluded, ...]
    stubs: dict[str, tuple[str, ...]]
    drop: tuple[str, ...]
    serve: dict[str, str | int | float]
    switches: tuple[str, ...]
    environment: dict[str, str]


class Assembled(Record):
    """What was carried: written beside the parts, and part of every record of a run.

    Attributes:
        engine: Name and version.
        lock_sha256: Of the lock file.
        packages: `name==version` of each carried distribution.
        dropped: Globs of files that were left out.
        pruned_bytes: Device code for other GPUs that was cut away.
        parts: Name and SHA-256.
        bytes: Of all parts.
        assembled: ISO 8601, UTC.
    """

    engine: dict[str, str]
    lock_sha256: str
    packages: tuple[str, ...]
    dropped: tuple[str, ...]
    pruned_bytes: int
    parts: dict[str, str]
    bytes: int
    assembled: str


def load_facts() -> Facts:
    """The facts beside this file."""
    return Facts.model_validate(yaml.safe_load((HERE / "facts.yaml").read_text(encoding="utf-8")))


def carried(lock: str, present: Iterable[str], facts: Facts) -> list[str]:
    """Blocks of a lock file for what has to be carried.

    Raises:
        CheckError: An exclusion names nothing that was resolved, so it is out of date.
    """
    blocks = {block.split("==", 1)[0]: block for block in _BLOCK.split(lock.strip()) if "==" in block}
    patterns = [pattern for excluded in facts.exclude for pattern in excluded.packages]
    for pattern in (*patterns, *facts.replace):
        if not fnmatch.filter(blocks, pattern):
            raise CheckError(f"{pattern} is not among the resolved packages", fix="correct facts.yaml")
    there = set(present) - set(facts.replace)
    return [
        block
        for name, block in blocks.items()
        if name not in there and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]


def lock_command(facts: Facts, source: Path) -> list[str]:
    """The argv that resolves the environment."""
    target = ["--python-version", facts.python, "--python-platform", facts.platform]
    shape = ["--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate", "--quiet"]
    return [find_uv_bin(), "pip", "compile", str(source), *target, *shape, "--output-file", str(LOCK)]


def unpack_command(facts: Facts, lock: Path, site: Path) -> list[str]:
    """The argv that unpacks the wheels, each checked against its hash; nothing in them runs."""
    target = ["--python-version", facts.python, "--python-platform", facts.platform, "--target", str(site)]
    only = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--link-mode=copy", "--quiet"]
    return [find_uv_bin(), "pip", "install", *target, *only, "--requirement", str(lock)]


def drop(site: Path, globs: Sequence[str]) -> None:
    """Delete what is not carried.

    Raises:
        CheckError: A glob matches nothing, so it is out of date.
    """
    for pattern in globs:
        found = sorted(site.glob(pattern))
        if not found and "*" not in pattern:
            raise CheckError(f"drop: {pattern} matches nothing", where=str(site), fix="correct facts.yaml")
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()


def add_stubs(site: Path, stubs: dict[str, tuple[str, ...]]) -> None:
    """Modules that exist and have nothing in them."""
    for module, names in stubs.items():
        parts = module.split(".")
        for depth in range(1, len(parts)):
            package = site.joinpath(*parts[:depth])
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
        body = "".join(f"{name} = None\n" for name in names)
        site.joinpath(*parts[:-1], f"{parts[-1]}.py").write_text(body, encoding="utf-8")


def add_load_client(folder: Path, facts: Facts, scratch: Path) -> None:
    """The compiled load client for the machine's Python, where the toolkit's cache would have it."""
    pin = client_pin()
    tag = f"cp{facts.python.replace('.', '')}"
    extension = wanted_extension(pin, tag, "x86_64", "Linux")
    kept = folder / CACHE / "blackwell-stacks" / "load-client" / extension.sha256[:16] / extension.file
    command = [word for word in install_command(pin, scratch) if not word.startswith("--python=")]
    run([*command, "--python-version", facts.python, "--python-platform", facts.platform])
    kept.parent.mkdir(parents=True)
    shutil.copyfile(verified(scratch / pin.folder / extension.file, extension), kept)


def add_kernels(site: Path, library: Path | None, keep: str) -> None:
    """This project's kernels, laid out as the image has them; compiled here unless a library is given."""
    images = ROOT / "images"
    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch) / "compiled" / KERNELS
        compiled.parent.mkdir()
        if library:
            shutil.copyfile(library, compiled)
        else:
            target = f"{keep.removeprefix('sm_')}a"
            program = str(images / "kernels" / "build_native.py")
            run([sys.executable, program, "--architectures", target, "--out", str(compiled)])
        program = str(images / "packaging" / "install_package.py")
        command = [sys.executable, program, str(images / "kernels"), "/site", scratch, str(compiled.parent)]
        run(command, env={"EPOCH": "0"})
        for made in (Path(scratch) / "site").iterdir():
            shutil.move(made, site / made.name)


def prune(site: Path, keep: str) -> int:
    """Cut device code for other GPUs away; returns the bytes that went."""
    report = site.parent / "pruned.json"
    command = [
        sys.executable,
        "-m",
        "tooling.prune.inplace",
        "--keep",
        keep,
        "--report",
        str(report),
        str(site),
    ]
    run(command, env={"PYTHONPATH": str(ROOT)})
    totals = yaml.safe_load(report.read_text(encoding="utf-8"))["totals"]
    return int(totals["bytes_removed"]) + int(totals["bytes_zeroed"])


def strip(site: Path) -> None:
    """Symbols of libraries without device code: half of some of them (pruned ones must not be stripped)."""
    pruned = yaml.safe_load((site.parent / "pruned.json").read_text(encoding="utf-8"))["files"]
    keep = {site / file["path"] for file in pruned}
    libraries = [str(path) for path in sorted(site.rglob("*.so*")) if path not in keep]
    run(["strip", "--strip-unneeded", *libraries])


def pack(folder: Path, out: Path, part_bytes: int) -> list[Path]:
    """The folder as one archive in parts: the compressed archives of its groups, one after another.

    Args:
        folder: With `SITE` and `CACHE`.
        out: Folder for the parts.
        part_bytes: Size of a part at most.
    """
    groups = grouped(folder)
    streams = []
    for number, group in enumerate(groups, 1):
        console.say(f"packing {number}/{len(groups)}: {group[0]} ...")
        streams.append(compressed(folder, group))
    return split(streams, out, part_bytes)


def grouped(folder: Path) -> list[list[str]]:
    """Paths below the folder that are compressed together: large packages alone, the small ones as one."""
    small, large = [CACHE], []
    for path in sorted((folder / SITE).iterdir()):
        name = f"{SITE}/{path.name}"
        if path.is_dir() and _size(path) > _OWN_GROUP:
            large.append([name])
        else:
            small.append(name)
    return [*large, small]


def compressed(folder: Path, group: Sequence[str]) -> Path:
    """The archive of a group, from an earlier run if its files are the same: compressing takes minutes.

    Raises:
        CommandError: tar or xz failed.
    """
    files = (path for name in group for path in ([folder / name] if (folder / name).is_file() else
             sorted((folder / name).rglob("*"))) if path.is_file())  # fmt: skip
    key = sha256_of([(str(path.relative_to(folder)), sha256_of_file(path)) for path in files])
    kept = STREAMS / f"{key[:32]}.tar.xz"
    if kept.is_file():
        return kept
    STREAMS.mkdir(parents=True, exist_ok=True)
    draft = kept.with_suffix(".new")
    order = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    with (
        draft.open("wb") as target,
        subprocess.Popen(["tar", "-C", str(folder), *order, "-c", *group], stdout=subprocess.PIPE) as tar,
        subprocess.Popen(["xz", "-6"], stdin=tar.stdout, stdout=target) as xz,
    ):
        if tar.stdout is not None:
            tar.stdout.close()  # xz holds the other end
    if tar.returncode or xz.returncode:
        raise CommandError("packing failed", where=group[0])
    return draft.rename(kept)


def split(streams: Sequence[Path], out: Path, part_bytes: int) -> list[Path]:
    """The streams, one after another, in parts of at most so many bytes."""
    parts: list[Path] = []
    room = 0
    for stream in streams:
        left = memoryview(stream.read_bytes())
        while left:
            if not room:
                parts.append(out / f"{PART_NAME}.{len(parts):02d}")
                room = part_bytes
            with parts[-1].open("ab") as part:
                part.write(left[:room])
            left, room = left[room:], max(0, room - len(left))
    return parts


def assemble(out: Path, facts: Facts, present: Sequence[str], library: Path | None = None) -> Assembled:
    """Everything, from the lock to the parts.

    Args:
        out: Folder for the parts; emptied first.
        facts: What is carried.
        present: Distributions that the machine has.
        library: This project's kernels, compiled.
    """
    shutil.rmtree(out, ignore_errors=True)
    work = out / "work"
    site = work / SITE
    site.mkdir(parents=True)
    blocks = carried(LOCK.read_text(encoding="utf-8"), present, facts)
    lock = work / "carried.txt"
    lock.write_text("\n".join(blocks) + "\n", encoding="utf-8")
    console.say(f"unpacking {len(blocks)} wheels ...")
    run(unpack_command(facts, lock, site))
    drop(site, facts.drop)
    add_stubs(site, facts.stubs)
    add_kernels(site, library, facts.keep)
    pruned = prune(site, facts.keep)
    strip(site)
    add_load_client(work, facts, work / "client")
    console.say(f"packing {_size(site) >> 20} MiB ...")
    parts = pack(work, out, facts.part_mib << 20)
    record = Assembled(
        engine=facts.engine,
        lock_sha256=sha256_of_file(LOCK),
        packages=tuple(block.split(" ", 1)[0] for block in blocks),
        dropped=facts.drop,
        pruned_bytes=pruned,
        parts={part.name: sha256_of_file(part) for part in parts},
        bytes=sum(part.stat().st_size for part in parts),
        assembled=now(),
    )
    (out / "assembled.json").write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    sums = "".join(f"{digest}  {name}\n" for name, digest in record.parts.items())
    (out / "sha256sums").write_text(sums, encoding="utf-8")
    shutil.rmtree(work)
    return record


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Resolve or assemble."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / ".h200")
    parser.add_argument("--lock", action="store_true", help="resolve the wheels again, and stop")
    parser.add_argument(
        "--present", type=Path, default=MACHINE, help="names of what the machine has, one a line"
    )
    parser.add_argument("--kernels", type=Path, help=f"{KERNELS}, compiled; without it nvcc is needed")
    options = parser.parse_args()
    facts = load_facts()
    if options.lock:
        source = LOCK.with_suffix(".in")
        source.write_text("\n".join(facts.requirements) + "\n", encoding="utf-8")
        try:
            run(lock_command(facts, source))
        finally:
            source.unlink()
        return
    present = [line for line in options.present.read_text(encoding="utf-8").split("\n") if line[:1] != "#"]
    record = assemble(options.out, facts, [name.strip() for name in present if name.strip()], options.kernels)
    console.print_json(record)


if __name__ == "__main__":
    main()

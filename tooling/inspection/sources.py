"""The arch gates of an image's packages, scanned once a package version and kept."""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.archgates.kept import keep, read_kept
from tooling.archgates.scan import rules, scan_tree
from tooling.errors import CheckError
from tooling.patches.apply import Content
from tooling.patches.diff import parse_diff
from tooling.patches.overlay import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import docker

    from tooling.archgates.records import PackageScan
    from tooling.archgates.scan import PackageRule
    from tooling.patches.overlay import Plan

#: Endings of the files that the scan reads.
_ENDINGS = ("py", "cu", "cuh", "h", "hpp", "hxx", "inl", "inc", "cpp", "cc", "jinja")
_ARCHIVE = "/tmp/blackwell-stacks-sources.tar"  # noqa: S108  # in a container of its own
_TIMEOUT_S = 600


def scans_of(
    client: docker.DockerClient,
    image: str,
    site: str,
    packages: Mapping[str, str],
    plans: Sequence[Plan],
    *,
    say: Callable[[str], None],
) -> list[PackageScan]:
    """The arch gates of every known package of an image, as its wheel ships it.

    Args:
        client: The Docker Engine.
        image: The image.
        site: Its site-packages folder.
        packages: Name -> version of what is installed.
        plans: Patches that are applied in it; they are taken back in the copy that is scanned, since what was
            reviewed are the wheels.
        say: Told what takes longer than a moment.

    Raises:
        CheckError: A package has no gate although it should, or reviewed gates do not match its code.
    """
    wanted = [rule for rule in rules().packages if rule.name in packages]
    kept = {rule.name: read_kept(rule.name, packages[rule.name]) for rule in wanted}
    absent = [rule for rule in wanted if kept[rule.name] is None]
    if absent:
        say(f"arch gates: scanning {', '.join(rule.name for rule in absent)} (once a version) ...")
        for scan in _scan(client, image, site, absent, packages=packages, plans=plans):
            keep(scan)
            kept[scan.package] = scan
    return [scan for scan in kept.values() if scan is not None]


def _scan(
    client: docker.DockerClient,
    image: str,
    site: str,
    wanted: Sequence[PackageRule],
    *,
    packages: Mapping[str, str],
    plans: Sequence[Plan],
) -> list[PackageScan]:
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-sources-") as directory:
        root = Path(directory)
        copy_sources(client, image, site, [folder for rule in wanted for folder in rule.roots], root)
        for plan in plans:
            if any(plan.package == rule.name for rule in wanted):
                take_back(plan, root)
        for rule in wanted:
            (root / f"{rule.name}-{packages[rule.name]}.dist-info").mkdir()
        return scan_tree(root, [rule.name for rule in wanted])


def copy_sources(
    client: docker.DockerClient, image: str, site: str, folders: Iterable[str], target: Path
) -> None:
    """Copy the source files of some folders of site-packages out of an image.

    Raises:
        CheckError: The image has no shell, `find` or `tar`, or none of the folders.
    """
    names = " -o ".join(f"-name '*.{ending}'" for ending in _ENDINGS)
    found = " ".join(shlex.quote(folder) for folder in folders)
    script = f"find $(ls -d {found}) -type f \\( {names} \\) -print0 | tar --null -cf {_ARCHIVE} -T -"
    container = client.containers.create(
        image, ["-c", script], entrypoint=["/bin/sh"], working_dir=site, user="0:0", network_mode="none"
    )
    try:
        container.start()
        status = int(container.wait(timeout=_TIMEOUT_S)["StatusCode"])
        if status:
            raise CheckError(
                "the sources could not be read from the image",
                where=image,
                details=container.logs(tail=5).decode("utf-8", "replace").splitlines(),
            )
        pieces, _ = container.get_archive(_ARCHIVE)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as outer:
            inner = outer.extractfile(Path(_ARCHIVE).name)
            if inner is None:
                raise CheckError("the sources came back empty", where=image)
            with tarfile.open(fileobj=inner) as tar:
                unpack_files(tar, target)
    finally:
        container.remove(force=True)


def unpack_files(tar: tarfile.TarFile, target: Path) -> None:
    """Write the files of an archive below a folder, and nothing else of it.

    The filters of `extractall` came with Python 3.11.4; Debian 12 has 3.11.2.

    Raises:
        CheckError: A name leads out of the folder.
    """
    root = target.resolve()
    for member in tar:
        content = tar.extractfile(member) if member.isfile() or member.islnk() else None
        if content is None:
            continue
        place = (root / member.name).resolve()
        if not place.is_relative_to(root):
            raise CheckError("the archive names a file outside of its folder", where=member.name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.read())


def take_back(plan: Plan, root: Path) -> None:
    """Undo applied patches in a copy; the result must be the recorded original, byte for byte.

    Raises:
        CheckError: A file is not what the patches made of its original.
    """
    for patch in reversed(plan.patches):
        for diff in parse_diff(patch.name, patch.text):
            path = root / diff.path
            content = Content.of(path.read_bytes()) if path.is_file() else None
            before = patch.files[diff.path][0]
            if content is not None and before is None:
                path.unlink()
                continue
            for hunk in reversed(diff.hunks):
                if content is None:
                    break
                back = replace(hunk, before=hunk.after, after=hunk.before)
                places = content.find(back.before)
                if places:
                    content.replace(min(places, key=lambda index: abs(index + 1 - hunk.start)), back)
            if content is None or sha256(content.data) != before:
                raise CheckError(
                    "the patched file of the image cannot be traced to the file of the wheel",
                    where=f"{patch.name}, {diff.path}",
                    fix="build the image again; look at what changed the file",
                )
            path.write_bytes(content.data)

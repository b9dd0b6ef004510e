"""Make the base image of a stack, or find the one that was made before."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from docker.errors import ImageNotFound

from tooling import runner
from tooling.base.packages import DPKG_FORMAT, BaseLock, drift, parse_base_lock, parse_dpkg, render_base_lock
from tooling.base.sources import INDEXTARGETS_ARGV, sources_for
from tooling.dockerhost.containers import run_once
from tooling.dockerhost.daemon import why_not_here
from tooling.errors import CommandError, EngineError, InputError
from tooling.records import Record, sha256_of, sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

    import docker

    from tooling.stack.model import Bootstrap, Stack, StackFile

REPOSITORY = "blackwell-stacks/base"
LABEL = "org.blackwell-stacks.base"
#: The account that runs the engine inside the image.
USER, USER_ID = "engine", 10001
#: How mmdebstrap begins a line of progress; seconds that it gets to unmount and remove what it made.
_PROGRESS, _CLEAN_UP_S = "I: ", 60.0
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DEBIAN_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
_HOOKS = (
    f'chroot "$1" useradd --uid {USER_ID} --user-group --create-home --shell /bin/bash {USER}',
    # The mirror's address and this machine's names stay out. Empty files stay where the engine mounts its own:
    # without them each build step would create and remove them, and no two layers would be equal.
    'rm -rf "$1"/etc/apt/sources.list* "$1"/etc/hostname',
    ': > "$1"/etc/resolv.conf; : > "$1"/etc/hosts',
)
_EXCLUDES = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    # Nothing that compiles at run time asks for link-time optimisation, a sanitizer or a static Python.
    "path-exclude=/usr/lib/gcc/*/lto1",
    "path-exclude=/usr/bin/*-lto-dump*",
    *(f"path-exclude=/usr/lib/*/lib{name}san[._]*" for name in ("a", "hwa", "l", "t", "ub")),
    "path-exclude=/usr/lib/python3*/config-*/libpython3*.a",
)


#: Hash of how a base is made, besides what the stack says: a base made in another way is not taken again.
RECIPE = sha256_of([_HOOKS, _EXCLUDES])


class BaseImage(Record):
    """A base that is in the engine.

    Attributes:
        reference: What `FROM` names.
        image_id: Its id in the engine.
        packages: Versions that are really in it; empty for an image by digest.
        drift: What is not as the base lock says; a release refuses any.
        epoch: Seconds since 1970 for the times of files.
    """

    reference: str
    image_id: str
    packages: dict[str, str]
    drift: tuple[str, ...]
    epoch: int


def mmdebstrap_argv(bootstrap: Bootstrap, architecture: str, sources: list[str], tar: Path) -> list[str]:
    """The command that makes the root file system; the sources' signatures are checked by apt."""
    return [
        "mmdebstrap",
        "--variant=minbase",
        f"--architectures={_DEBIAN_ARCHITECTURE[architecture]}",
        f"--include={','.join(bootstrap.packages)}",
        *(f"--dpkgopt={option}" for option in _EXCLUDES),
        *(f"--customize-hook={hook}" for hook in _HOOKS),
        bootstrap.suite,
        str(tar),
        *sources,
    ]


def read_base_lock(file: StackFile) -> BaseLock:
    """Read the base lock beside a stack and check that it was made for this base."""
    path = file.base_lock_path
    again = f"run nox -s lock-{file.stack.name}"
    if not path.is_file():
        raise InputError(f"stack {file.stack.name} has no base lock", where=str(path), fix=again)
    lock = parse_base_lock(path.read_text(encoding="utf-8"), path)
    if lock.stack != file.stack.name:
        raise InputError(f"this is the base lock of {lock.stack!r}", where=str(path), fix=again)
    if lock.request_sha256 != file.stack.base_request_sha256:
        raise InputError(
            "the base of the stack has changed since its lock was made", where=str(path), fix=again
        )
    return lock


def write_base_lock(file: StackFile, image: BaseImage) -> None:
    """Replace the base lock by the versions that a base really has."""
    lock = BaseLock(
        stack=file.stack.name,
        request_sha256=file.stack.base_request_sha256,
        epoch=image.epoch,
        packages=image.packages,
    )
    draft = file.base_lock_path.with_suffix(".new")
    draft.write_text(render_base_lock(lock), encoding="utf-8")
    draft.replace(file.base_lock_path)


def ensure_base(
    stack: Stack, lock: BaseLock, client: docker.DockerClient, say: Callable[[str], None]
) -> BaseImage:
    """The base image of a stack: the one made before if it is as locked, else a new one.

    The versions are always read from the image itself. When the mirror no longer has the locked ones, the drift
    is said and recorded; it never stops a build.
    """
    if stack.base.image is not None:
        client.images.pull(stack.base.image)
        image = client.images.get(stack.base.image)
        return BaseImage(
            reference=stack.base.image, image_id=str(image.id), packages={}, drift=(), epoch=lock.epoch
        )
    for reference in bases_made(client, lock.request_sha256):
        if client.images.get(reference).labels.get(f"{LABEL}.epoch") == str(lock.epoch):
            found = _described(client, reference, lock)
            if not found.drift:
                say(f"base: {found.reference} is here, {len(found.packages)} packages as locked")
                return found
    base = _described(client, bootstrap_base(stack, lock.epoch, client, say), lock)
    if base.drift:
        say(f"base: drifted, the mirror moved on: {len(base.drift)} packages are not as locked")
        for line in base.drift:
            say(f"  {line}")
    return base


def bases_made(client: docker.DockerClient, request_sha256: str) -> list[str]:
    """References of bases that were made for a request and are still in the engine."""
    # An image that stands on a base inherits its labels: only the repository tells the two apart.
    wanted = [f"{LABEL}.request={request_sha256}", f"{LABEL}.recipe={RECIPE}"]
    images = client.images.list(name=REPOSITORY, filters={"label": wanted})
    return [tag for image in images for tag in image.tags if tag.startswith(f"{REPOSITORY}:")]


def bootstrap_base(stack: Stack, epoch: int, client: docker.DockerClient, say: Callable[[str], None]) -> str:
    """Make a root file system and import it; returns the reference of the image."""
    bootstrap = stack.base.bootstrap
    if bootstrap is None:
        raise InputError("this base is an image, nothing is bootstrapped", where=f"stack {stack.name}, base")
    _require_mmdebstrap(say)
    targets = runner.run(INDEXTARGETS_ARGV).stdout.splitlines()
    sources = sources_for(bootstrap.suite, targets, _KEYRING)
    say(f"base: bootstrapping {bootstrap.suite} with {len(bootstrap.packages)} packages on top")
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-base-") as directory:
        tar = Path(directory) / "base.tar"
        argv = mmdebstrap_argv(bootstrap, stack.platform.architecture, sources, tar)
        _run_mmdebstrap(argv, epoch, say)
        digest = sha256_of_file(tar)
        tag = f"{bootstrap.suite}-{digest[:12]}"
        labels = {
            "request": stack.base_request_sha256,
            "recipe": RECIPE,
            "epoch": str(epoch),
            "tar-sha256": digest,
        }
        client.api.import_image_from_file(
            str(tar),
            repository=REPOSITORY,
            tag=tag,
            changes=[f'LABEL {LABEL}.{key}="{value}"' for key, value in labels.items()],
        )
    return f"{REPOSITORY}:{tag}"


def _run_mmdebstrap(argv: list[str], epoch: int, say: Callable[[str], None]) -> None:
    """Run it with its progress; interrupted, it takes its mounts away itself before this goes on.

    Raises:
        CommandError: It failed.
    """
    tail: deque[str] = deque(maxlen=runner.TAIL_LINES)

    def hear(line: str) -> None:
        tail.append(line)
        if line.startswith(_PROGRESS):
            say(f"base: {line.removeprefix(_PROGRESS)}")

    # With /dev and /proc of this machine mounted below it, what it leaves must not be left to a SIGKILL.
    code = runner.stream(argv, hear, env={"SOURCE_DATE_EPOCH": str(epoch)}, grace_s=_CLEAN_UP_S)
    if code:
        raise CommandError(
            f"mmdebstrap failed with exit code {code}", where=shlex.join(argv), details=list(tail),
            fix="read its last lines; a package that is no longer on the mirror needs a new lock",
        )  # fmt: skip


def describe_base(client: docker.DockerClient, reference: str, epoch: int) -> BaseImage:
    """What is really in a base image, as read from its own package database."""
    try:
        image = client.images.get(reference)
    except ImageNotFound as error:
        raise EngineError(f"the base image {reference} is gone from the engine", fix="build again") from error
    done = run_once(client, str(image.id), ["dpkg-query", "--show", f"--showformat={DPKG_FORMAT}"])
    packages = parse_dpkg(done.stdout)
    if not packages:
        raise EngineError(f"the base image {reference} holds no packages", fix="remove it and build again")
    return BaseImage(reference=reference, image_id=str(image.id), packages=packages, drift=(), epoch=epoch)


def _described(client: docker.DockerClient, reference: str, lock: BaseLock) -> BaseImage:
    found = describe_base(client, reference, lock.epoch)
    return found.model_copy(update={"drift": tuple(drift(lock.packages, found.packages))})


def _require_mmdebstrap(say: Callable[[str], None]) -> None:
    if shutil.which("mmdebstrap") and Path(_KEYRING).is_file():
        return
    os_release = Path("/etc/os-release").read_text(encoding="utf-8")
    packages = ["mmdebstrap", "debian-archive-keyring"]
    if why_not_here(os.geteuid(), os_release):
        raise EngineError(
            "mmdebstrap is needed to make the base", fix=f"run: sudo apt-get install {' '.join(packages)}"
        )
    say(f"installing {' and '.join(packages)} to make the base")
    runner.run(["apt-get", "update"])
    runner.run(
        ["apt-get", "install", "--yes", "--no-install-recommends", *packages],
        env={"DEBIAN_FRONTEND": "noninteractive"},
    )

"""A registry that fails: at every request of a release, once and for good; full disks; half uploads."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.container.release.bench import Bench, make_bench
from tests.container.release.conftest import quick
from tests.container.release.images import push_image
from tests.container.release.registry_server import serve
from tests.unit.release_examples import NOW, TRUST
from tooling.errors import CommandError, ToolkitError
from tooling.registry.errors import RateLimitedError, RegistryError, RegistryFailureError, UnreachableError
from tooling.registry.layout import StorageError, export_layout
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.release.names import release_name
from tooling.release.records import Status
from tooling.release.verify import verify
from tooling.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.container.release.proxy import Plan

pytestmark = pytest.mark.container

FAULTS = ("500", "429", "cut", "lost", "half", "torn")


def _through(bench: Bench, host: str, **changes: object) -> Bench:
    """The same repository, seen through the proxy."""
    name = bench.repository.reference.repository
    return replace(bench, repository=Repository(parse_reference(f"{host}/{name}"), quick(**changes)))


@pytest.mark.parametrize("fault", ["500", "lost", "half", "torn"])
@pytest.mark.parametrize("offset", range(7))
def test_a_fault_at_any_request_is_survived(bench: Bench, proxied: tuple[str, Plan], fault: str, offset: int):
    """Every seventh request fails; over the seven offsets each request has failed once.

    Seven, since an upload that starts again takes four or five requests and would meet the same fault again.
    """
    host, plan = proxied
    plan.reset()
    plan.fault, plan.when = fault, lambda number, _method, _path: number % 7 == offset
    try:
        through = _through(bench, host)
        done = through.release()
        through.repository.transport.close()
        assert len(plan.seen) > 40
    finally:
        plan.reset()
    assert verify(bench.repository, done.name, TRUST, now=NOW).status is Status.QUALIFIED


@pytest.mark.long
def test_a_registry_that_fails_for_good_at_any_request_never_leaves_half_a_release(
    fresh: Callable[[], Repository], proxied: tuple[str, Plan], plan: Plan, tmp_path: Path
):
    tag_seen_at, position = 0, 0
    while True:
        position += 1
        with fresh() as direct:
            plan.reset()
            bench = make_bench(direct, tmp_path / str(position))
            name = release_name("cpu", "0.2.9", NOW, bench.image.digest)
            fault = FAULTS[position % len(FAULTS)]

            def after(number: int, _method: str, _path: str, position: int = position) -> bool:
                return number >= position

            plan.fault, plan.when = fault, after
            through = _through(bench, proxied[0], attempts=1)
            try:
                through.release()
            except RegistryError:
                pass  # one of the named family; the tests below look at the words
            else:
                break  # it needs fewer requests than this
            finally:
                through.repository.transport.close()
                plan.reset()
            if name in direct.tags():
                tag_seen_at = tag_seen_at or position
                assert verify(direct, name, TRUST, now=NOW).status is Status.QUALIFIED
            if position % 10 == 0:  # what broke off is completed by the same command
                assert bench.release().name == name
    assert position > 40
    assert tag_seen_at > position - 15, "the tag is among the last writes"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("500", RegistryFailureError),
        ("429", RateLimitedError),
        ("cut", UnreachableError),
        ("lost", UnreachableError),
    ],
)
def test_what_does_not_get_better_is_named(
    proxied_repository: Repository, plan: Plan, fault: str, error: type[ToolkitError]
):
    plan.fault, plan.when = fault, lambda *_: True
    with pytest.raises(error):
        proxied_repository.tags()
    assert len(plan.seen) == proxied_repository.settings.attempts + 1  # and the look whether it speaks TLS


def test_retry_after_is_obeyed(proxied: tuple[str, Plan], plan: Plan):
    plan.fault, plan.when = "429", lambda number, _method, _path: number < 4
    slept: list[float] = []
    settings = quick(sleep=slept.append, backoff_s=2.0)
    with Repository(parse_reference(f"{proxied[0]}/test/x"), settings) as repository:
        assert repository.tags() == []
    assert len(slept) == 2
    assert all(pause >= 1.0 for pause in slept)


def test_a_piece_that_arrives_half_is_sent_again(proxied: tuple[str, Plan], plan: Plan, open_server: object):
    del open_server
    content = os.urandom(10_000)
    patches = 0

    def second_patch(_number: int, method: str, _path: str) -> bool:
        nonlocal patches
        patches += method == "PATCH"
        return method == "PATCH" and patches == 2

    plan.fault, plan.when = "half", second_patch
    with Repository(parse_reference(f"{proxied[0]}/test/half"), quick(chunk_bytes=3000)) as repository:
        digest = repository.upload(content)
        assert repository.has_blob(digest)
    assert patches > 4


def test_a_download_that_breaks_off_goes_on(
    repository: Repository, proxied: tuple[str, Plan], plan: Plan, tmp_path: Path
):
    image = push_image(repository, "download")
    target = tmp_path / "blob"
    target.write_bytes(repository.blob(image.layers[0])[:40])
    plan.fault = "cut"
    with Repository(parse_reference(f"{proxied[0]}/{repository.reference.repository}"), quick()) as through:
        plan.when = lambda number, _method, _path: number == 2
        through.download(image.layers[0], target)
    assert target.stat().st_size == image.layers[0].size


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes file systems of a given size in memory; only root may."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        try:
            run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)])
        except CommandError as error:
            pytest.skip(f"a small file system is needed and cannot be mounted: {error.what}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_registry_with_a_full_disk_gets_no_release_and_one_when_there_is_room(
    tmp_path: Path, small_disk: Callable[[str], Path]
):
    storage = small_disk("4m")
    with (
        serve(tmp_path / "registry", storage=storage) as server,
        Repository(parse_reference(f"{server.host}/test/full"), quick(attempts=2)) as repository,
    ):
        bench = make_bench(repository, tmp_path / "evidence")
        ballast = storage / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 8 * 2**20)
        with pytest.raises(RegistryError) as caught:
            bench.release()
        assert "HTTP 5" in caught.value.where
        assert "free disk space" in caught.value.fix
        ballast.unlink()
        name = release_name("cpu", "0.2.9", NOW, bench.image.digest)
        assert name not in repository.tags()
        assert bench.release().name == name


def test_an_export_onto_a_full_disk_leaves_nothing_there(
    repository: Repository, tmp_path: Path, small_disk: Callable[[str], Path]
):
    disk = small_disk("64k")
    bench = make_bench(repository, tmp_path / "evidence")
    done = bench.release()
    big = os.urandom(200_000)
    digest = repository.upload(big)
    layer = bench.image.layers[0].model_copy(update={"digest": digest, "size": len(big)})
    image = replace(bench.image, layers=(layer,))
    with pytest.raises(StorageError, match="No space left"):
        export_layout(repository, image, done.name, disk / "export")
    assert list(disk.iterdir()) == []

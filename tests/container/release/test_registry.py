"""The OCI client against a real docker-registry 2.8."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.container.release.images import push_image, push_index
from tooling.registry.attach import attach, pin
from tooling.registry.errors import ContentError, NotFoundError, TagConflictError
from tooling.registry.manifest import INDEX, Manifest
from tooling.registry.repository import Repository, fallback_tag, image_tag, record_tag

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.container.release.proxy import Plan
    from tests.container.release.registry_server import Server

pytestmark = pytest.mark.container

KIND = "application/vnd.test.record"


def _attach(repository: Repository, image: Manifest, text: str) -> Manifest:
    return attach(repository, image, text.encode(), artifact_type=KIND, annotations={"text": text})


def test_what_was_pushed_is_read_back(repository: Repository):
    image = push_image(repository, "hello", tag="one")
    assert repository.manifest("one").content == image.content
    assert repository.manifest(image.digest).layers == image.layers
    assert repository.tags() == ["one"]
    assert len(repository.blob(image.layers[0])) == image.layers[0].size


def test_an_empty_repository_has_no_tags_and_no_manifest(repository: Repository):
    assert repository.tags() == []
    assert repository.digest_of_tag("x") is None
    with pytest.raises(NotFoundError):
        repository.manifest("x")


def test_a_blob_goes_up_in_pieces_and_comes_down_whole(fresh: Callable[[], Repository], tmp_path: Path):
    with fresh() as repository:
        object.__setattr__(repository.settings, "chunk_bytes", 1000)
        content = bytes(range(256)) * 17
        (tmp_path / "up").write_bytes(content)
        digest = repository.upload(tmp_path / "up")
        descriptor = (
            push_image(repository, "x").layers[0].model_copy(update={"digest": digest, "size": len(content)})
        )
        repository.download(descriptor, tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 2, 999, 1000, 1001])
def test_blobs_of_every_edge_size(fresh: Callable[[], Repository], size: int):
    with fresh() as repository:
        object.__setattr__(repository.settings, "chunk_bytes", 1000)
        assert repository.has_blob(repository.upload(b"x" * size))


def test_a_release_tag_never_moves(repository: Repository):
    first, second = push_image(repository, "a"), push_image(repository, "b")
    assert repository.tag_once(first, "rel") is not None
    assert repository.tag_once(first, "rel") is None
    with pytest.raises(TagConflictError, match="exists already with another digest"):
        repository.tag_once(second, "rel")
    assert repository.digest_of_tag("rel") == first.digest


def test_records_are_found_and_attaching_twice_changes_nothing(repository: Repository):
    image = push_image(repository, "a")
    record = _attach(repository, image, "one")
    assert _attach(repository, image, "one").digest == record.digest
    other = push_image(repository, "b")
    _attach(repository, other, "elsewhere")
    (found,) = repository.referrers(image.digest)
    assert (found.digest, found.artifact_type, found.annotations) == (record.digest, KIND, {"text": "one"})
    assert repository.blob(repository.manifest(found.digest).layers[0]) == b"one"
    assert [item.digest for item in repository.referrers_from_index(image.digest)] == [record.digest]


def test_ten_writers_at_once_lose_nothing(open_server: Server, fresh: Callable[[], Repository]):
    del open_server
    with fresh() as repository:
        image = push_image(repository, "a")
        reference = repository.reference
        start = threading.Barrier(10)

        def write(number: int) -> str:
            # A real, short pause: without any the writers would only spin against each other.
            with Repository(reference, type(repository.settings)(login=repository.settings.login)) as own:
                start.wait()
                return _attach(own, image, f"record {number}").digest

        with ThreadPoolExecutor(10) as pool:
            written = set(pool.map(write, range(10)))
        assert len(written) == 10
        assert {item.digest for item in repository.referrers_from_index(image.digest)} == written
        assert {item.digest for item in repository.referrers(image.digest)} == written


def test_an_index_that_lost_records_hides_nothing_and_is_completed(repository: Repository):
    image = push_image(repository, "a")
    first = _attach(repository, image, "one")
    empty = Manifest.parse(b'{"schemaVersion":2,"mediaType":"%s","manifests":[]}' % INDEX.encode())
    repository.put_manifest(empty, fallback_tag(image.digest))
    assert [item.digest for item in repository.referrers(image.digest)] == [first.digest]
    second = _attach(repository, image, "two")
    assert {item.digest for item in repository.referrers_from_index(image.digest)} == {
        first.digest,
        second.digest,
    }


def test_records_of_others_in_the_index_stay(repository: Repository):
    image = push_image(repository, "a")
    foreign = push_image(repository, "foreign")
    repository.put_manifest(
        Manifest.parse(
            b'{"schemaVersion":2,"mediaType":"%s","manifests":[%s]}'
            % (INDEX.encode(), foreign.descriptor().model_dump_json(exclude_none=True).encode())
        ),
        fallback_tag(image.digest),
    )
    ours = _attach(repository, image, "one")
    assert {item.digest for item in repository.referrers_from_index(image.digest)} == {
        foreign.digest,
        ours.digest,
    }


def test_where_the_registry_keeps_referrers_no_index_is_written(proxied_repository: Repository, plan: Plan):
    plan.referrers_api = True
    image = push_image(proxied_repository, "api")
    record = _attach(proxied_repository, image, "one")
    assert _attach(proxied_repository, image, "one").digest == record.digest
    assert [item.digest for item in proxied_repository.referrers(image.digest)] == [record.digest]
    assert fallback_tag(image.digest) not in proxied_repository.tags()


@pytest.mark.parametrize("options", [(), ("-m",)])
def test_garbage_collection_eats_neither_image_nor_records(
    collected: tuple[Server, Repository], options: tuple[str, ...]
):
    server, repository = collected
    image = push_image(repository, "kept", tag="latest")
    pin(repository, image)
    record = _attach(repository, image, "one")
    lost = push_image(repository, "not pinned", tag="latest2")
    push_image(repository, "new", tag="latest")  # the tag moves on
    push_image(repository, "new", tag="latest2")
    server.collect_garbage(*options)
    assert repository.manifest(image.digest).content == image.content
    assert repository.blob(image.layers[0])
    assert repository.blob(repository.manifest(record.digest).layers[0]) == b"one"
    assert image_tag(image.digest) in repository.tags()
    assert record_tag(image.digest, record.digest) in repository.tags()
    if options:  # the control: what has no own tag is really eaten
        with pytest.raises(NotFoundError):
            repository.manifest(lost.digest)


def test_the_images_of_an_index_are_pinned_too(collected: tuple[Server, Repository]):
    server, repository = collected
    child = push_image(repository, "child")
    index = push_index(repository, child, tag="multi")
    pin(repository, index)
    server.collect_garbage("-m")
    assert repository.manifest(child.digest).content == child.content


def test_a_damaged_blob_is_found(open_server: Server, repository: Repository, tmp_path: Path):
    image = push_image(repository, "damaged in storage")
    digest = image.layers[0].digest.removeprefix("sha256:")
    stored = open_server.storage / "docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    with pytest.raises(ContentError, match="does not have its digest"):
        repository.blob(image.layers[0])
    with pytest.raises(ContentError, match="does not have its digest"):
        repository.download(image.layers[0], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_damaged_manifest_is_found(open_server: Server, repository: Repository):
    image = push_image(repository, "damaged manifest", tag="t")
    digest = image.digest.removeprefix("sha256:")
    stored = open_server.storage / "docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"
    stored.write_bytes(image.content.replace(b"amd64", b"amd65") + b"\n")
    with pytest.raises((ContentError, NotFoundError)):
        repository.manifest(image.digest)

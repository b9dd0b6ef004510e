"""Releases in a real registry: made, read back, listed, moved, exported; and every way to lie about one."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.container.release.bench import Bench, make_bench
from tests.container.release.conftest import quick
from tests.container.release.images import push_image, push_index
from tests.unit.release_examples import (
    CPU_POLICY,
    GPU_POLICY,
    KEY,
    NOW,
    TRUST,
    ago,
    build_run,
    gate_run,
    waiver,
)
from tooling.attest.sbom import PackageList, PythonPackage, sbom_statement
from tooling.attest.statement import Statement, StatementError
from tooling.errors import BusyError, InputError
from tooling.gates.records import Verdict
from tooling.registry.attach import attach
from tooling.registry.errors import NotFoundError, TagConflictError
from tooling.registry.layout import Layout, export_layout, import_layout
from tooling.registry.repository import Repository, fallback_tag, record_tag
from tooling.release.channels import promote, read_log, resolve
from tooling.release.errors import (
    ContradictionError,
    ExpiredWaiverError,
    MissingRecordError,
    MovedTagError,
    ReleaseRefusedError,
)
from tooling.release.evidence import collect_directory
from tooling.release.publish import Released, previous_release, release
from tooling.release.records import ReleaseFacts, ReleaseRecord, Status
from tooling.release.verify import list_releases, verify
from tooling.sign.bundle import BUNDLE_MEDIA_TYPE, sign
from tooling.sign.errors import TamperedError, WrongKeyError
from tooling.sign.keys import SigningKey, Trust

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.container.release.registry_server import Server
    from tooling.registry.manifest import Manifest

pytestmark = pytest.mark.container

STRANGER = SigningKey.generate()


def test_a_release_is_made_read_back_and_listed(bench: Bench):
    done = bench.release()
    assert done.name == f"cpu-0.2.9-20261129-{bench.image.digest[7:19]}"
    assert done.image == f"{bench.repository.name}@{bench.image.digest}"
    assert bench.repository.digest_of_tag(done.name) == bench.image.digest
    found = verify(bench.repository, done.name, TRUST, now=NOW)
    assert found.status is Status.QUALIFIED
    assert found.release.assessment.hardware == ("Example CPU (cpu-x86-64)",)
    assert [(item.kind, item.name) for item in found.release.attestations] == [
        ("gate", "correctness"),
        ("provenance", "provenance"),
    ]
    (listed,) = list_releases(bench.repository, TRUST, now=NOW)
    assert (listed.name, listed.status, listed.problem) == (done.name, Status.QUALIFIED, "")
    assert verify(bench.repository, bench.image.digest, TRUST, now=NOW).release.name == done.name


def test_releasing_twice_changes_nothing(bench: Bench):
    first = bench.release()
    tags = bench.repository.tags()
    again = bench.release(later=timedelta(minutes=5))
    assert again.verification.record_sha256 == first.verification.record_sha256
    assert bench.repository.tags() == tags


def test_without_evidence_the_checklist_says_what_is_missing_and_nothing_is_written(
    repository: Repository, tmp_path: Path
):
    image = push_image(repository, "gpu")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest), gate_run("correctness", digest=image.digest))
    before = repository.tags()
    with pytest.raises(ReleaseRefusedError) as caught:
        bench.release(bench.request(policy=GPU_POLICY, stack="cu130"))
    text = str(caught.value)
    assert "stack cu130 is not released: 3 requirements open" in text
    assert "device cpu never stands in for cuda" in text
    assert "run gate throughput on a machine of class rtx-pro-6000-x8" in text
    assert repository.tags() == before


def test_evidence_of_another_machine_counts_when_it_is_for_this_image_and_its_key_is_trusted(
    repository: Repository, tmp_path: Path
):
    image = push_image(repository, "remote")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    bench.add(gate_run(digest=image.digest), key=STRANGER)
    with pytest.raises(ReleaseRefusedError, match="not trusted here"):
        bench.release()
    both = Trust((KEY.public, STRANGER.public))
    done = release(bench.request(), repository, image.digest, key=KEY, trust=both, now=NOW)
    assert {item.key_id for item in done.verification.release.attestations} == {KEY.id, STRANGER.id}
    with pytest.raises(WrongKeyError):  # who trusts only one of them does not believe the release
        verify(repository, done.name, Trust((SigningKey.generate().public,)), now=NOW)


def test_replayed_evidence_of_another_image_does_not_count(repository: Repository, tmp_path: Path):
    old = push_image(repository, "old")
    new = push_image(repository, "new")
    bench = Bench(repository, new, tmp_path)
    bench.add(build_run(digest=new.digest), gate_run(digest=old.digest))
    with pytest.raises(ReleaseRefusedError, match="another image"):
        bench.release()


def test_evidence_with_an_edited_number_does_not_count(bench: Bench):
    file = next(bench.evidence.glob("correctness-*"))
    document = json.loads(file.read_text())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    assert b"3740.0" in payload
    document["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b"3740.0", b"9999.0")).decode()
    file.write_text(json.dumps(document))
    with pytest.raises(ReleaseRefusedError, match="changed after it was signed"):
        bench.release()


def test_a_predicate_under_another_type_does_not_count(repository: Repository, tmp_path: Path):
    image = push_image(repository, "swapped")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    gate = gate_run(digest=image.digest)
    swapped = gate.model_copy(update={"predicate_type": build_run().predicate_type})
    (tmp_path / "swapped.sigstore.json").write_bytes(sign(swapped, KEY))
    with pytest.raises(ReleaseRefusedError, match="does not have the shape"):
        bench.release()


def test_a_verdict_that_contradicts_its_checks_does_not_count_even_when_it_is_signed(
    repository: Repository, tmp_path: Path
):
    image = push_image(repository, "typed by hand")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    gate = gate_run(digest=image.digest, verdict=Verdict.FAIL)
    text = json.dumps(gate.predicate).replace('"FAILED"', '"PASSED"')
    forged = gate.model_copy(update={"predicate": json.loads(text)})
    (tmp_path / "forged.sigstore.json").write_bytes(sign(forged, KEY))
    with pytest.raises(ReleaseRefusedError, match="does not have the shape"):
        bench.release()


def test_an_empty_directory_of_evidence_is_its_own_error(repository: Repository, tmp_path: Path):
    with pytest.raises(InputError, match="no evidence"):
        Bench(repository, push_image(repository, "x"), tmp_path).release()


def test_a_key_that_nobody_trusts_releases_nothing(bench: Bench):
    with pytest.raises(WrongKeyError, match="nobody could verify"):
        release(bench.request(), bench.repository, bench.image.digest, key=STRANGER, trust=TRUST, now=NOW)


def test_an_image_without_one_of_its_layers_is_not_released(bench: Bench, open_server: Server):
    link = open_server.storage / "docker/registry/v2/repositories" / bench.repository.reference.repository
    digest = bench.image.layers[0].digest.removeprefix("sha256:")
    (link / "_layers/sha256" / digest / "link").unlink()
    with pytest.raises(NotFoundError, match="not complete"):
        bench.release()


def test_an_index_is_not_released(bench: Bench):
    index = push_index(bench.repository, bench.image)
    with pytest.raises(InputError, match="index of several images"):
        release(bench.request(), bench.repository, index.digest, key=KEY, trust=TRUST, now=NOW)


def test_a_moved_release_tag_is_found_and_never_moved_by_us(bench: Bench):
    done = bench.release()
    other = push_image(bench.repository, "evil")
    bench.repository.put_manifest(other, done.name)
    with pytest.raises(MovedTagError, match="was moved"):
        verify(bench.repository, done.name, TRUST, now=NOW)
    with pytest.raises(TagConflictError):
        bench.release()
    (listed,) = list_releases(bench.repository, TRUST, now=NOW)
    assert listed.status is None
    assert "MovedTagError" in listed.problem
    assert verify(bench.repository, bench.image.digest, TRUST, now=NOW).release.name == done.name


def _record_manifest(bench: Bench, predicate_type: str) -> Manifest:
    for item in bench.repository.referrers(bench.image.digest):
        if (item.annotations or {}).get("dev.sigstore.bundle.predicateType") == predicate_type:
            return bench.repository.manifest(item.digest)
    raise AssertionError(predicate_type)


def _stored(server: Server, digest: str) -> Path:
    hexadecimal = digest.removeprefix("sha256:")
    return server.storage / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"


def test_an_image_that_was_never_released_has_no_record(bench: Bench):
    with pytest.raises(MissingRecordError, match="no signed release record"):
        verify(bench.repository, bench.image.digest, TRUST, now=NOW)


def test_evidence_that_was_removed_is_missed(bench: Bench):
    done = bench.release()
    gate = _record_manifest(bench, gate_run().predicate_type)
    keep = push_image(bench.repository, "put in its place")
    bench.repository.put_manifest(keep, record_tag(bench.image.digest, gate.digest))
    bench.repository.put_manifest(keep, fallback_tag(bench.image.digest))
    with pytest.raises(MissingRecordError):
        verify(bench.repository, done.name, TRUST, now=NOW)


def test_a_record_that_was_changed_in_the_registrys_storage_is_found(
    tmp_path: Path, collected: tuple[Server, Repository]
):
    server, repository = collected
    bench = make_bench(repository, tmp_path / "evidence")
    done = bench.release()
    gate = _record_manifest(bench, gate_run().predicate_type)
    file = _stored(server, gate.layers[0].digest)
    file.write_bytes(file.read_bytes().replace(b"hint", b"hINT"))
    with pytest.raises(MissingRecordError, match="missing, and others do not count") as caught:
        verify(repository, done.name, TRUST, now=NOW)
    assert "does not have its digest" in str(caught.value)


def test_a_tampered_bundle_that_is_attached_beside_is_named(bench: Bench):
    done = bench.release()
    gate = _record_manifest(bench, gate_run().predicate_type)
    bundle = json.loads(bench.repository.blob(gate.layers[0]))
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"]).replace(b"3740.0", b"9999.0")
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    attach(
        bench.repository,
        bench.image,
        json.dumps(bundle).encode(),
        artifact_type=BUNDLE_MEDIA_TYPE,
        annotations={},
    )
    # The true evidence is still there, so the release holds ...
    assert verify(bench.repository, done.name, TRUST, now=NOW).status is Status.QUALIFIED
    # ... until it is gone.
    keep = push_image(bench.repository, "put in its place")
    bench.repository.put_manifest(keep, record_tag(bench.image.digest, gate.digest))
    bench.repository.put_manifest(keep, fallback_tag(bench.image.digest))
    with pytest.raises(TamperedError, match="changed after it was signed"):
        verify(bench.repository, done.name, TRUST, now=NOW)


def test_a_release_record_that_claims_more_than_its_evidence_is_a_contradiction(
    repository: Repository, tmp_path: Path
):
    image = push_image(repository, "boasting")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    waived = bench.request(waivers=(waiver("gate:correctness"),))
    done = bench.release(waived)
    assert done.verification.status is Status.SOURCE_QUALIFIED
    honest = done.verification.release
    boast = honest.model_copy(
        update={
            "created": (NOW + timedelta(seconds=1)).isoformat(),
            "assessment": honest.assessment.model_copy(update={"status": Status.QUALIFIED}),
        }
    )
    statement = Statement.about(repository.name, image.digest, boast)
    attach(repository, image, sign(statement, KEY), artifact_type=BUNDLE_MEDIA_TYPE, annotations={"x": "y"})
    with pytest.raises(ContradictionError, match="its evidence says source-qualified"):
        verify(repository, done.name, TRUST, now=NOW)


def test_a_release_from_the_future_is_a_wrong_clock(bench: Bench):
    bench.release(later=timedelta(hours=2))
    with pytest.raises(ContradictionError, match="a clock is wrong"):
        verify(bench.repository, bench.image.digest, TRUST, now=NOW)
    assert verify(bench.repository, bench.image.digest, TRUST, now=NOW + timedelta(hours=2))


def test_waivers_are_shown_and_end(repository: Repository, tmp_path: Path):
    image = push_image(repository, "waived")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    done = bench.release(bench.request(waivers=(waiver("gate:correctness"),)))
    assert done.verification.status is Status.SOURCE_QUALIFIED
    (listed,) = list_releases(repository, TRUST, now=NOW)
    assert "A. Releaser" in listed.waivers[0]
    after = NOW + timedelta(days=11)
    with pytest.raises(ExpiredWaiverError, match="rests on a waiver that has expired"):
        verify(repository, done.name, TRUST, now=after)
    shown = verify(repository, done.name, TRUST, now=after, allow_expired_waivers=True)
    assert len(shown.expired_waivers) == 1
    (listed,) = list_releases(repository, TRUST, now=after)
    assert listed.waivers[0].startswith("EXPIRED")
    with pytest.raises(ReleaseRefusedError, match="it expired on"):
        bench.release(bench.request(waivers=(waiver("gate:correctness", expires=ago(minutes=1)),)))


def test_a_policy_of_ones_own_is_held_against_the_evidence(bench: Bench):
    done = bench.release()
    with pytest.raises(ReleaseRefusedError, match="does not meet this policy"):
        verify(bench.repository, done.name, TRUST, now=NOW, policy=GPU_POLICY)


def test_a_failure_that_was_attached_after_the_release_is_shown(bench: Bench):
    done = bench.release()
    late = gate_run(digest=bench.image.digest, verdict=Verdict.FAIL, ended=NOW.isoformat())
    attach(bench.repository, bench.image, sign(late, KEY), artifact_type=BUNDLE_MEDIA_TYPE, annotations={})
    (note,) = verify(bench.repository, done.name, TRUST, now=NOW).notes
    assert "gate correctness was FAIL" in note


def test_the_next_release_is_held_against_the_previous_one(
    repository: Repository, tmp_path: Path, open_server: Server
):
    del open_server
    first = make_bench(repository, tmp_path / "1", "first", layers=2).release()
    bench = make_bench(repository, tmp_path / "2", "second", layers=2)
    budget = bench.request(policy=CPU_POLICY.model_copy(update={"bytes_new_max": 10}))
    with pytest.raises(ReleaseRefusedError) as caught:
        bench.release(budget, later=timedelta(hours=1))
    assert "[missing] census-not-worse: nobody has looked" in str(caught.value)
    assert "[failed] bytes-new" in str(caught.value)
    previous = previous_release(repository, "cpu", TRUST, now=NOW, besides=bench.image.digest)
    assert previous is not None
    assert previous.name == first.name
    facts = ReleaseFacts(unjudged_arch_gates=(), census_worse=(), previous=previous.digest)
    done = bench.release(bench.request(facts=facts), later=timedelta(hours=1))
    assert done.verification.release.facts.previous == first.verification.digest
    new = sum(blob.size for blob in bench.image.blobs)
    assert done.verification.release.facts.bytes_new == new
    assert previous_release(repository, "other", TRUST, now=NOW) is None


def test_two_releasers_of_one_image_at_once_make_one_release(bench: Bench):
    def go(_: int) -> Released:
        with Repository(bench.repository.reference, quick()) as own:
            return release(bench.request(), own, bench.image.digest, key=KEY, trust=TRUST, now=NOW)

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(go, range(2))
    assert one.name == two.name
    assert verify(bench.repository, one.name, TRUST, now=NOW).digest == bench.image.digest


def test_two_releasers_of_two_images_at_once_make_two_releases(fresh: Callable[[], Repository], tmp_path: Path):
    with fresh() as repository:
        benches = [make_bench(repository, tmp_path / name, name) for name in ("a", "b")]

        def go(bench: Bench) -> Released:
            with Repository(repository.reference, quick()) as own:
                return replace(bench, repository=own).release()

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(go, benches))
        assert len({item.name for item in done}) == 2
        listed = list_releases(repository, TRUST, now=NOW)
        assert [item.status for item in listed] == [Status.QUALIFIED] * 2


def test_an_sbom_travels_along_as_information(bench: Bench):
    packages = PackageList(python=(PythonPackage(name="torch", version="2.14.1"),))
    bench.add(sbom_statement(packages, image="x", digest=bench.image.digest))
    done = bench.release()
    assert "sbom" in {item.kind for item in done.verification.release.attestations}


def test_garbage_collection_leaves_the_release_whole(tmp_path: Path, collected: tuple[Server, Repository]):
    server, repository = collected
    done = make_bench(repository, tmp_path / "evidence").release()
    server.collect_garbage("-m")
    found = verify(repository, done.name, TRUST, now=NOW)
    assert found.status is Status.QUALIFIED
    for blob in repository.manifest(found.digest).blobs:
        assert repository.blob(blob)


def test_channels_are_moved_logged_and_checked(repository: Repository, tmp_path: Path):
    first = make_bench(repository, tmp_path / "1", "first").release()
    facts = ReleaseFacts(unjudged_arch_gates=(), census_worse=(), previous=first.verification.digest)
    bench = make_bench(repository, tmp_path / "2", "second")
    second = bench.release(bench.request(facts=facts), later=timedelta(seconds=1))
    now = NOW + timedelta(minutes=1)

    def move(name: str, reason: str = "") -> None:
        promote(repository, "stable", name, key=KEY, trust=TRUST, now=now, reason=reason)

    with pytest.raises(MissingRecordError, match="ends at 0"):
        resolve(repository, "stable", TRUST)
    move(first.name)
    move(second.name)
    move(second.name)  # where it is: nothing new
    move(first.name, "rollback: p99 doubled")
    log = read_log(repository, "stable", TRUST)
    assert [item.entry.release for item in log] == [first.name, second.name, first.name]
    assert log[-1].entry.reason == "rollback: p99 doubled"
    assert resolve(repository, "stable", TRUST, seen=3).digest == first.verification.digest
    repository.put_manifest(repository.manifest(second.verification.digest), "stable")
    with pytest.raises(MovedTagError, match="does not point to what its signed log says"):
        resolve(repository, "stable", TRUST)
    move(first.name)  # completes an interrupted move
    assert resolve(repository, "stable", TRUST).digest == first.verification.digest
    with pytest.raises(MissingRecordError, match="ends at 3"):
        resolve(repository, "stable", TRUST, seen=4)
    repository.put_manifest(repository.manifest("channel-stable-00000001"), "channel-stable-00000002")
    with pytest.raises(ContradictionError, match="belongs elsewhere"):
        resolve(repository, "stable", TRUST)


def test_what_is_not_proved_far_enough_does_not_become_stable(repository: Repository, tmp_path: Path):
    image = push_image(repository, "waived")
    bench = Bench(repository, image, tmp_path)
    bench.add(build_run(digest=image.digest))
    done = bench.release(bench.request(waivers=(waiver("gate:correctness"),)))
    promote(repository, "candidate", done.name, key=KEY, trust=TRUST, now=NOW)
    with pytest.raises(ContradictionError, match="stable needs qualified"):
        promote(repository, "stable", done.name, key=KEY, trust=TRUST, now=NOW)
    for name in ("beta", done.name):
        with pytest.raises(InputError):
            promote(repository, name, done.name, key=KEY, trust=TRUST, now=NOW)


def test_two_movers_at_once_leave_tag_and_log_in_agreement(repository: Repository, tmp_path: Path):
    first = make_bench(repository, tmp_path / "1", "first").release()
    facts = ReleaseFacts(unjudged_arch_gates=(), census_worse=(), previous=first.verification.digest)
    bench = make_bench(repository, tmp_path / "2", "second")
    second = bench.release(bench.request(facts=facts), later=timedelta(seconds=1))

    def move(name: str) -> str:
        with Repository(repository.reference, quick()) as own:
            try:
                promote(own, "stable", name, key=KEY, trust=TRUST, now=NOW + timedelta(minutes=1))
            except (BusyError, MovedTagError) as error:
                return type(error).__name__
            return "moved"

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(move, [first.name, second.name]))
    assert "moved" in told
    log = read_log(repository, "stable", TRUST)
    promote(repository, "stable", log[-1].entry.release, key=KEY, trust=TRUST, now=NOW + timedelta(minutes=1))
    assert resolve(repository, "stable", TRUST).digest == log[-1].digest


def test_a_release_goes_through_a_directory_into_another_registry(
    bench: Bench, fresh: Callable[[], Repository], tmp_path: Path
):
    done = bench.release()
    layout = export_layout(bench.repository, bench.image, done.name, tmp_path / "export")
    assert layout.tags() == [done.name]
    assert verify(layout, done.name, TRUST, now=NOW).status is Status.QUALIFIED
    with fresh() as other:
        import_layout(Layout.open(tmp_path / "export"), other, done.name)
        assert verify(other, done.name, TRUST, now=NOW).digest == bench.image.digest
        for blob in bench.image.blobs:
            assert other.has_blob(blob.digest)
        import_layout(layout, other, done.name)
    with pytest.raises(InputError, match="exists already"):
        export_layout(bench.repository, bench.image, done.name, tmp_path / "export")


def test_a_damaged_export_is_not_imported(bench: Bench, fresh: Callable[[], Repository], tmp_path: Path):
    done = bench.release()
    layout = export_layout(bench.repository, bench.image, done.name, tmp_path / "export")
    blob = layout.file(bench.image.layers[0].digest)
    content = bytearray(blob.read_bytes())
    content[5] ^= 1
    blob.write_bytes(content)
    with fresh() as other:
        with pytest.raises(Exception, match="does not have its digest"):
            import_layout(layout, other, done.name)
        blob.unlink()
        with pytest.raises(NotFoundError, match="does not have"):
            import_layout(layout, other, done.name)
        assert other.tags() == []
    with pytest.raises(NotFoundError, match="has no nothing"):
        layout.manifest("nothing")


def test_evidence_files_are_named_for_what_they_hold(bench: Bench):
    names = sorted(path.name.rpartition("-")[0] for path in bench.evidence.iterdir())
    assert names == ["correctness", "provenance"]
    collected = collect_directory(bench.evidence, bench.image.digest, TRUST)
    assert len(collected.signed) == 2
    assert not collected.rejected
    with pytest.raises(StatementError):
        collected.signed[0].statement.read(ReleaseRecord)

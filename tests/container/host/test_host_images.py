"""Where images come from and stay: registries that break off, move tags or die, prunes, full disks."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.container.host.deck import RUNTIME, Deck, Line
from tests.container.host.private_engine import private_engine
from tests.container.host.wire import wire
from tests.container.release.registry_server import serve
from tests.programs import require_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.container.host.deck import Image

pytestmark = pytest.mark.container
BALLAST = 8 << 20


def test_a_registry_that_breaks_off_leaves_the_old_stack_serving(served: Line, v2: Image):
    deck = served.deck
    with wire(deck.registry.host) as through:
        big = deck.image("big", ballast=BALLAST)
        there = through.host, big.reference.partition("/")[2]
        reference = "/".join(there)
        through.cut_after = BALLAST // 4
        started = served.inspect()["State"]["StartedAt"]
        run = served.deploy(big, reference=reference)
        assert run.code == 1, run.said
        assert "cannot be reached or broke off" in run.said
        assert through.moved >= BALLAST // 4
        assert served.inspect()["State"]["StartedAt"] == started
        served.assert_right("v1")
        # Once it is whole again the same command goes through.
        through.cut_after = None
        again = served.deploy(big, reference=reference)
        assert again.code == 0, again.said
        served.assert_right("big")
        assert served.deploy(v2).code == 0


def test_a_rollback_needs_no_registry_no_tag_and_survives_a_prune(
    line: Line, deck: Deck, v2: Image, tmp_path: Path
):
    with serve(tmp_path / "registry") as registry:
        old = deck.image("old", registry=registry.host, tag="latest")
        assert line.deploy(old).code == 0
        # The tag moves, here and there; nothing was ever deployed by it.
        moved = deck.image("new", registry=registry.host, tag="latest")
        deck.engine.docker("pull", "--quiet", f"{registry.host}/stand-in:latest")
        assert line.deploy(moved).code == 0
        line.assert_right("new")
    # The registry is gone, and somebody cleans up.
    deck.engine.docker("system", "prune", "--all", "--force", "--volumes")
    assert old.image_id in deck.engine.docker("images", "--no-trunc", "--quiet").split()
    code, found = line.read("doctor")
    target = next(one for one in found["checks"] if one["check"] == "rollback-target")
    assert (code, target["ok"]) == (0, True), target
    run = line.run("rollback")
    assert run.code == 0, run.said
    line.assert_right("old")
    # Without its pin, the image is prey; the doctor says so, and the rollback refuses with the old one serving.
    deck.engine.docker("rm", "--force", f"blackwell-{line.group}-g0002-pin")
    deck.engine.docker("system", "prune", "--all", "--force")
    lost = line.run("rollback", "2")
    assert lost.code == 1, lost.said
    assert "cannot be reached" in lost.said
    line.assert_right("old")
    assert line.deploy(v2).code == 0


@pytest.mark.long
def test_old_images_make_room_by_the_keep_rule(served: Line, v2: Image):
    deck = served.deck
    images = [deck.image(f"k{number}") for number in range(3)]
    for image in images:
        assert served.deploy(image, keep=1).code == 0
    names = deck.engine.docker(
        "ps", "-a", "--format", "{{.Names}}", "--filter", f"name=blackwell-{served.group}-"
    )
    kept = {f"blackwell-{served.group}-g{number:04d}{kind}" for number in (3, 4) for kind in ("", "-pin")}
    assert set(names.split()) == kept
    here = deck.engine.docker("images", "--no-trunc", "--quiet").split()
    assert images[0].image_id not in here
    assert {images[1].image_id, images[2].image_id} <= set(here)
    # A generation whose image was given up can be fetched again, before anything stops.
    assert served.run("rollback", "2").code == 0
    served.assert_right("k0")
    assert served.deploy(v2).code == 0


@pytest.mark.long
def test_an_image_that_was_brought_here_needs_no_registry(served: Line, deck: Deck):
    carried = deck.image("carried")
    deck.engine.docker("pull", "--quiet", carried.reference)
    deck.engine.docker("tag", carried.reference, "carried:here")
    digest = "sha256:" + "c" * 64
    changes = {"pull": "present", "reference": f"127.0.0.1:1/gone@{digest}", "digest": digest}
    run = served.deploy(carried, **changes)
    assert run.code == 0, run.said
    served.assert_right("carried")
    assert "pulling" not in run.said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB."""
    require_program("mkfs.ext4", "e2fsprogs")
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(200 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_and_an_engine_restart_cost_nothing(deck: Deck, small_disk: Path, tmp_path: Path):
    """The disk fills up while the new image is pulled; then the engine restarts under the running stack."""
    first = deck.image("first")
    big = deck.image("too-big", ballast=120 << 20)
    with private_engine(*RUNTIME, "--live-restore", data=small_disk / "data") as engine:
        other = Deck(engine, deck.registry, tmp_path / "deck", base=False)
        line = Line(other, "small", 0)
        sizes = {"compressed": 1, "unpacked": 1, "margin": 0}
        assert line.deploy(first, sizes=sizes).code == 0
        free = _free(small_disk)
        started = line.inspect()["State"]
        # The sizes are a lie, so that the disk itself has to say it.
        run = line.deploy(big, sizes=sizes)
        assert run.code == 1, run.said
        assert "disk is full" in run.said
        assert line.inspect()["State"] == started
        assert _free(small_disk) > free - (8 << 20)
        # The engine goes down and comes back; the stack serves all the while.
        # Asked at its own address: what is published on loopback goes through the engine.
        address = line.inspect()["NetworkSettings"]["IPAddress"]
        engine.restart_daemon(while_down=lambda: line.version(f"{address}:8000") == "first")
        assert line.inspect()["State"]["Pid"] == started["Pid"]
        settled = line.run("reconcile")
        assert settled.code == 0, settled.said
        assert settled.result["result"]["started"] is False
        assert line.inspect()["State"]["Pid"] == started["Pid"]
        line.assert_right("first")


def _free(place: Path) -> int:
    done = subprocess.run(["stat", "-f", "-c", "%a %S", str(place)], capture_output=True, text=True, check=True)
    blocks, size = map(int, done.stdout.split())
    return blocks * size


@pytest.mark.long
def test_a_patch_moves_few_bytes_and_a_rollback_none(line: Line, deck: Deck):
    with wire(deck.registry.host) as through:
        base = deck.image("before", ballast=BALLAST)
        patched = deck.image("after", on=base)
        references = {
            one.version: f"{through.host}/{one.reference.partition('/')[2]}" for one in (base, patched)
        }
        assert line.deploy(base, reference=references["before"]).code == 0
        whole = through.moved
        assert line.deploy(patched, reference=references["after"]).code == 0
        patch = through.moved - whole
        assert line.run("rollback").code == 0
        assert through.moved - whole - patch == 0
        assert whole > BALLAST
        assert 0 < patch < 1_000_000
        line.assert_right("before")
        layers = json.loads(deck.engine.docker("inspect", base.image_id))[0]["RootFS"]["Layers"]
        assert len(layers) > 1

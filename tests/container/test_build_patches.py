"""A patch series in a real build: the last layer, refusals with their names, switches, and the selftest."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from tests.container.conftest import ROOT
from tests.unit.patch_trees import HEADER
from tests.wheelhouse import make_wheel
from tooling import console
from tooling.dockerhost.containers import read_files, run_once
from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.inspection import inspect_image
from tooling.patches.errors import Fault, PatchError
from tooling.patches.receipt import sha256
from tooling.patches.record import record_series, write_record
from tooling.patches.series import load_series

pytestmark = pytest.mark.container
SERIES = "hello-1.0.0"
SITE = "/opt/stack/lib/python3.11/site-packages"
SOURCE = """# {mark}
ADMITTED = (9, 10)


def tile(major):
    if major > 8:
        return 128
    return 64


if __name__ == "__main__":
    print(ADMITTED, tile(12))
"""
OPEN = """--- a/hello.py
+++ b/hello.py
@@ -2,2 +2,2 @@
-ADMITTED = (9, 10)
+ADMITTED = (9, 10, 12)

"""
TILE = """--- a/hello.py
+++ b/hello.py
@@ -5,3 +5,5 @@
 def tile(major):
+    if major == 12:
+        return 64
     if major > 8:
         return 128
"""


@pytest.fixture
def patched(checkout):
    """The checkout with a series of two patches over its package; `source` and `record` change it."""
    _ship(checkout, SOURCE.format(mark=checkout.root))
    folder = checkout.root / "images" / "patches" / SERIES
    folder.mkdir()
    for number, diff in (("0001-open", OPEN), ("0002-tile", TILE)):
        (folder / f"{number}.patch").write_text(HEADER.format(title=number) + "\n" + diff)
    _record(checkout, SOURCE.format(mark=checkout.root))
    checkout.edit("serve:", f"patches: [{{series: {SERIES}}}]\nserve:")
    return checkout


def _ship(checkout, source: str) -> None:
    make_wheel(checkout.index.folder, "hello", "1.0.0", {"hello.py": source})
    checkout.lock()


def _record(checkout, source: str) -> None:
    root = checkout.root / "images" / "patches"
    series = load_series(SERIES, root)
    write_record(record_series(series, lambda _: source.encode()), root / SERIES / "series.yaml")


def test_patches_are_applied_over_the_checked_packages_as_the_last_layer(patched):
    record = patched.build()
    assert run_once(patched.client, record.image_id, []).stdout == "(9, 10, 12) 64\n"
    assert record.inputs.patches.keys() == {f"{SERIES}/0001-open", f"{SERIES}/0002-tile"}
    assert record.patches[0].applied == ("0001-open", "0002-tile")
    place = f"{SITE}/hello.py"
    installed = read_files(patched.client, record.image_id, [place])[place]
    assert record.patches[0].files == {"hello.py": sha256(installed)}
    content = [layer.created_by for layer in record.layers if layer.bytes]
    assert "COPY /out/ /" in content[-1]
    assert record.contents["findings"] == []
    assert "patches" in {check["name"] for check in record.selftest["checks"]}
    script = (
        "import os; from pathlib import Path\n"
        "print({int(os.lstat(p).st_mtime) for p in Path('/opt/stack/lib').rglob('*')})"
    )
    assert run_once(patched.client, record.image_id, ["python", "-c", script]).stdout == "{1700000000}\n"


def test_a_patch_that_is_off_is_not_in_the_image_and_moves_one_layer_alone(patched):
    first = patched.build()
    patched.edit(f"series: {SERIES}", f"series: {SERIES}, disable: ['0002']")
    second = patched.build()
    assert run_once(patched.client, second.image_id, []).stdout == "(9, 10, 12) 128\n"
    assert (second.patches[0].applied, second.patches[0].off) == (("0001-open",), ("0002-tile",))
    moved = [
        other.created_by
        for one, other in zip(first.layers, second.layers, strict=True)
        if one.diff_id != other.diff_id
    ]
    assert all("stack.json" in step or "/out/ /" in step for step in moved), moved
    assert len(moved) == 2


def test_a_series_with_every_patch_off_is_refused_before_the_build(patched):
    patched.edit(f"series: {SERIES}", f"series: {SERIES}, disable: ['0001', '0002']")
    with pytest.raises(InputError, match="no patch of series hello"):
        patched.build()


def test_a_conflict_names_patch_file_and_hunk_and_leaves_no_image(patched):
    _ship(patched, SOURCE.format(mark=patched.root).replace("(9, 10)", "(9,)"))
    with pytest.raises(PatchError) as caught:
        patched.build()
    error = caught.value
    assert (error.fault, error.patch, error.file, error.hunk) == (Fault.CONFLICT, "0001-open", "hello.py", 1)
    assert "0001-open, hello.py, hunk 1" in str(error)
    assert patched.tags() == []


def test_a_patch_that_upstream_has_already_is_refused(patched):
    _ship(patched, SOURCE.format(mark=patched.root).replace("(9, 10)", "(9, 10, 12)"))
    with pytest.raises(PatchError) as caught:
        patched.build()
    assert (caught.value.fault, caught.value.patch) == (Fault.ALREADY_APPLIED, "0001-open")
    assert patched.tags() == []


def test_a_patch_that_breaks_the_import_is_refused(patched):
    path = patched.root / "images" / "patches" / SERIES / "0001-open.patch"
    path.write_text(path.read_text().replace("+ADMITTED = (9, 10, 12)", "+ADMITTED = absent"))
    _record(patched, SOURCE.format(mark=patched.root))
    with pytest.raises(PatchError, match="no longer after the patch") as caught:
        patched.build()
    assert caught.value.fault is Fault.UNUSABLE_RESULT
    assert "name 'absent' is not defined" in str(caught.value)


def test_the_selftest_finds_a_patched_file_that_was_changed_later(patched):
    record = patched.build()
    container = patched.client.containers.create(record.image_id)
    try:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            entry = tarfile.TarInfo("hello.py")
            tar.addfile(entry, io.BytesIO(b""))
        container.put_archive(SITE, stream.getvalue())
        changed = container.commit()
    finally:
        container.remove()
    selftest = run_once(patched.client, changed.id, ["selftest"])
    assert selftest.exit_code == 1
    assert "FAIL  patches      hello-1.0.0: hello.py is not the patched file" in selftest.stderr


def test_the_inspection_holds_the_image_against_its_stack(patched):
    patched.build()
    good = inspect_image(patched.name, patched.root, patched.client, console.say)
    assert good.verdict is Verdict.PASS
    assert [check.name for check in good.checks] == ["contents", "packages", f"patches: {SERIES}"]
    patched.edit(f"series: {SERIES}", f"series: {SERIES}, disable: ['0002']")
    command = [sys.executable, "-m", "tooling", "inspect", patched.name, "--json"]
    environment = {**os.environ, "BLACKWELL_STACKS_ROOT": str(patched.root), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["gate"], result["verdict"]) == ("inspection", "FAIL")
    assert result["checks"][-1]["details"] == [
        "0002-tile is applied and off in the stack",
        "hello.py is not the patched file",
    ]


def test_an_image_of_another_stack_is_not_inspected(patched):
    base = patched.build().inputs.base["reference"]
    with pytest.raises(InputError, match="is an image of stack none"):
        inspect_image(patched.name, patched.root, patched.client, console.say, base)
    with pytest.raises(InputError, match="no image 'absent:1'"):
        inspect_image(patched.name, patched.root, patched.client, console.say, "absent:1")

"""Assembling an engine for a machine without network: what is carried, and what must not be out of date."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.gpu.engine import assemble
from tests.gpu.engine.process import serve_arguments
from tooling.errors import CheckError

if TYPE_CHECKING:
    from pathlib import Path

LOCK = """\
alpha==1.0 \\
    --hash=sha256:aa
beta==2.0 \\
    --hash=sha256:bb
beta-libs-x==2.0 \\
    --hash=sha256:cc
gamma==3.0 \\
    --hash=sha256:dd
"""


def facts(**changes: object) -> assemble.Facts:
    return assemble.load_facts().model_copy(update=changes)


def names(blocks: list[str]) -> list[str]:
    return [block.split("==")[0] for block in blocks]


def test_what_the_machine_has_or_nobody_needs_stays_behind():
    left_out = (assemble.Excluded(packages=("beta-libs-*",), reason="x"),)
    chosen = facts(exclude=left_out, replace=())
    blocks = assemble.carried(LOCK, ["gamma"], chosen)
    assert names(blocks) == ["alpha", "beta"]
    assert "--hash=sha256:aa" in blocks[0]


def test_a_version_that_the_engine_does_not_take_is_replaced():
    chosen = facts(exclude=(), replace=("gamma",))
    assert "gamma" in names(assemble.carried(LOCK, ["gamma"], chosen))


STALE = assemble.Excluded(packages=("delta*",), reason="x")


@pytest.mark.parametrize("stale", [{"replace": ("delta",)}, {"exclude": (STALE,)}])
def test_an_exception_that_fits_nothing_is_refused(stale):
    with pytest.raises(CheckError, match="not among the resolved"):
        assemble.carried(LOCK, [], facts(**{"exclude": (), "replace": (), **stale}))


def test_the_committed_lock_and_facts_fit_each_other():
    machine = assemble.MACHINE.read_text(encoding="utf-8").splitlines()
    blocks = assemble.carried(assemble.LOCK.read_text(encoding="utf-8"), machine, assemble.load_facts())
    assert {"sglang", "sglang-kernel", "transformers", "dill", "docker"} <= set(names(blocks))
    assert not {"torch", "triton", "tilelang"} & set(names(blocks))
    assert all("--hash=sha256:" in block for block in blocks)


def test_a_file_to_drop_must_be_there(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    assemble.drop(tmp_path, ["bin", "**/*.a"])
    assert not (tmp_path / "bin").exists()
    with pytest.raises(CheckError, match="matches nothing"):
        assemble.drop(tmp_path, ["bin"])


def test_stubs_can_be_imported_from(tmp_path: Path):
    assemble.add_stubs(tmp_path, {"IPython.display": ("HTML",)})
    code = "from IPython.display import HTML; assert HTML is None"
    subprocess.run(["python3", "-c", code], env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"}, check=True)


def test_parts_are_small_and_make_the_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(assemble, "STREAMS", tmp_path / "streams")
    monkeypatch.setattr(assemble, "_OWN_GROUP", 100)
    work = tmp_path / "work"
    for name, text in {"site/big/a.py": "x" * 500, "site/small.py": "y", "cache/client": "z"}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    (tmp_path / "out").mkdir()
    parts = assemble.pack(work, tmp_path / "out", 150)
    assert len(parts) > 2
    assert all(0 < part.stat().st_size <= 150 for part in parts)
    (tmp_path / "again").mkdir()
    joined = b"".join(part.read_bytes() for part in parts)
    untar = ["tar", "-xJ", "--ignore-zeros", "-C", str(tmp_path / "again")]
    subprocess.run(untar, input=joined, check=True)
    found = {
        str(path.relative_to(tmp_path / "again")) for path in (tmp_path / "again").rglob("*") if path.is_file()
    }
    assert found == {"site/big/a.py", "site/small.py", "cache/client"}
    assert (tmp_path / "again" / "site/big/a.py").read_text() == "x" * 500


def test_serve_arguments_change_and_disappear():
    usual = serve_arguments()
    assert usual[usual.index("--attention-backend") + 1] == "triton"
    assert "--disable-prefill-cuda-graph" in usual
    changed = serve_arguments({"attention-backend": "flashinfer", "random-seed": None, "x": ""})
    assert changed[changed.index("--attention-backend") + 1] == "flashinfer"
    assert "--random-seed" not in changed
    assert changed[-1] == "--x"

"""Compilation at run time: seen by processes and by caches, judged by phase."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tooling.gates.jit import CacheChange, CompilerRun, JitObservation, JitWatch, Phase, cache_folders, jit_gate
from tooling.gates.jit.watch import changes, descendants, environment_of, jit_facts, snapshot
from tooling.gates.records import Verdict

if TYPE_CHECKING:
    from pathlib import Path

PTXAS = CompilerRun(program="ptxas", phase=Phase.SERVING, at_s=9.0, target="k.ptx")
CUBIN = CacheChange(cache="triton", phase=Phase.SERVING, files=2, bytes=99, examples=("a/k.cubin",))


def seen(*, warm: bool = False, looks: int = 400, gap_s: float = 0.1, **more: object) -> JitObservation:
    return JitObservation(
        boot_id="b",
        warm=warm,
        looks={Phase.BOOT: 100, Phase.SERVING: looks},
        longest_gap_s=gap_s,
        seconds={Phase.BOOT: 60.0, Phase.SERVING: 20.0},
        caches={"triton": "/root/.triton/cache"},
        **more,
    )


def verdicts(observation: JitObservation) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in jit_gate(observation, started="2026-11-29").checks}


def test_a_quiet_engine_passes():
    assert jit_gate(seen(), started="").verdict is Verdict.PASS
    assert jit_gate(seen(warm=True), started="").verdict is Verdict.PASS


@pytest.mark.parametrize("more", [{"compilers": (PTXAS,)}, {"changes": (CUBIN,)}])
def test_whatever_compiles_while_serving_fails(more):
    assert verdicts(seen(**more))["nothing-compiled-while-serving"] is Verdict.FAIL


def test_a_cold_boot_may_compile_and_a_warm_one_may_not():
    at_boot: dict[str, Any] = {"compilers": (PTXAS.model_copy(update={"phase": Phase.BOOT}),)}
    assert verdicts(seen(**at_boot))["cold-boot"] is Verdict.PASS
    assert verdicts(seen(warm=True, **at_boot))["warm-boot-compiles-nothing"] is Verdict.FAIL


@pytest.mark.parametrize("more", [{"looks": 3}, {"gap_s": 5.0}])
def test_who_did_not_look_saw_nothing(more):
    assert verdicts(seen(**more))["watched"] is Verdict.INCONCLUSIVE


def test_without_any_cache_folder_nothing_was_compared():
    assert verdicts(seen().model_copy(update={"caches": {}}))["watched"] is Verdict.INCONCLUSIVE


def test_new_and_rewritten_files_are_changes_and_old_ones_are_not(tmp_path: Path):
    (tmp_path / "old").write_text("x")
    (tmp_path / "grows").write_text("x")
    before = snapshot({"triton": tmp_path})
    (tmp_path / "grows").write_text("xyz")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "new").write_text("1234")
    (change,) = changes(before, snapshot({"triton": tmp_path}), Phase.BOOT)
    assert (change.files, change.bytes, change.examples) == (2, 7, ("deep/new", "grows"))
    assert changes(before, before, Phase.BOOT) == ()


def test_caches_follow_the_engines_environment(tmp_path: Path):
    folders = cache_folders(
        {"HOME": str(tmp_path), "TRITON_CACHE_DIR": "/t", "FLASHINFER_WORKSPACE_BASE": "/f"}
    )
    assert str(folders["triton"]) == "/t"
    assert str(folders["flashinfer"]) == "/f/.cache/flashinfer"
    assert folders["cuda-driver"] == tmp_path / ".nv" / "ComputeCache"
    assert len({fact.name for fact in jit_facts().caches}) == len(jit_facts().caches)


def test_descendants_are_found_at_any_depth():
    assert descendants({2: 1, 3: 2, 4: 3, 5: 1, 9: 8}, 2) == {3, 4}


def test_a_real_compiler_below_a_real_process_is_seen_in_its_phase(tmp_path: Path):
    compiler = tmp_path / "ptxas"
    compiler.symlink_to(sys.executable)
    code = (
        "import subprocess, sys; sys.stdin.readline(); subprocess.run([sys.argv[1], '-c', 'input()', 'k.ptx'])"
    )
    cache = tmp_path / "cache"
    engine = subprocess.Popen(
        [sys.executable, "-c", code, str(compiler)],
        stdin=subprocess.PIPE,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
    )
    assert engine.stdin is not None
    try:
        folders = {"triton": cache_folders(environment_of(engine.pid))["triton"]}
        with JitWatch(engine.pid, folders, boot_id="b", warm=False) as watch:
            watch.serving()
            engine.stdin.write(b"go\n")
            engine.stdin.flush()
            cache.mkdir()
            (cache / "k.cubin").write_text("x")
            end = time.monotonic() + 30
            while not watch.observation().compilers and time.monotonic() < end:
                time.sleep(0.02)
            engine.stdin.write(b"end\n")
            engine.stdin.close()
            engine.wait(30)
    finally:
        engine.kill()
        engine.wait()
    observation = watch.observation()
    assert [(run.program, run.phase, run.target) for run in observation.compilers] == [
        ("ptxas", Phase.SERVING, "k.ptx")
    ]
    assert [(change.cache, change.phase, change.files) for change in observation.changes] == [
        ("triton", Phase.SERVING, 1)
    ]

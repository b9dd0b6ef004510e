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


#: New files of the caches on an H200, SGLang 0.5.16 (kinds that repeat are left out): after the first answer of
#: a cold boot, and in a boot with the caches of another.
_LATE = (
    "MIH6KGW5/write_req_to_token_pool_triton.cubin",
    "MIH6KGW5/__grp__write_req_to_token_pool_triton.json",
    "EEAOIBHN/apply_token_bitmask_inplace_kernel.ptx",
    "EEAOIBHN/apply_token_bitmask_inplace_kernel.cubin",
    "CS35JF7N/__triton_launcher.cpython-312-x86_64-linux-gnu.so",
)
_LOCK = "0.6.14/90a/cached_ops/tmp/norm.lock"


def grown(cache: str, files: dict[str, int], phase: Phase) -> CacheChange:
    after = {cache: {path: (size, 1) for path, size in files.items()}}
    (change,) = changes({}, after, phase)
    return change


def test_what_a_cold_engine_compiles_while_serving_is_named():
    late = grown("triton", dict.fromkeys(_LATE, 100), Phase.SERVING)
    assert (late.files, late.code) == (5, 5)
    (check,) = (
        check
        for check in jit_gate(seen(changes=(late,)), started="").checks
        if check.name == "nothing-compiled-while-serving"
    )
    assert check.verdict is Verdict.FAIL
    assert "apply_token_bitmask_inplace_kernel, write_req_to_token_pool_triton" in check.details[0]


def test_a_lock_in_a_cache_is_no_compilation():
    lock = grown("flashinfer", {_LOCK: 0}, Phase.BOOT)
    result = jit_gate(seen(warm=True, changes=(lock,)), started="")
    assert result.verdict is Verdict.PASS
    check = result.checks[-1]
    assert "0 new cache files (and 1 without code)" in check.seen
    assert _LOCK in check.details[0]


@pytest.mark.parametrize(
    ("cache", "files", "code", "kernels"),
    [
        ("flashinfer", {_LOCK: 12, "a/cached_ops/norm/norm.so": 9}, 1, ("norm",)),
        ("flashinfer", {"a/cached_ops/norm/.ninja_log": 9, "a/cached_ops/norm/.ninja_deps": 9}, 0, ()),
        ("flashinfer", {"a/cached_ops/norm/norm.so": 0}, 0, ()),
        ("tvm-ffi", {"act_bf16/cuda_0.o": 9, "act_bf16/lock": 1, "lock": 1}, 1, ("act_bf16",)),
        ("cuda-driver", {"1/5/0f": 700}, 1, ("5",)),
        ("triton", {"X/block.cubin": 9, "X/clock.json": 9}, 2, ("block", "clock")),
        ("unheard-of", {"top.so": 9}, 1, ("top.so",)),
    ],
)
def test_files_with_code_are_told_from_bookkeeping(
    cache: str, files: dict[str, int], code: int, kernels: tuple[str, ...]
):
    change = grown(cache, files, Phase.BOOT)
    assert (change.code, change.kernels) == (code, kernels)
    verdict = verdicts(seen(warm=True, changes=(change,)))["warm-boot-compiles-nothing"]
    assert verdict is (Verdict.FAIL if code else Verdict.PASS)


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

"""The all-reduce's own source on a CPU: every GPU thread a thread, every output compared with its formula."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import require_program

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "images" / "kernels" / "csrc"
EMULATION = ROOT / "tests" / "kernels"
PATHS = ("push one-shot", "push two-shot", "pull one-shot", "pull two-shot")


def _compile(out: Path, kernels: Path, *options: str) -> Path:
    compiler = require_program("g++", "g++")
    folders = ["-I", str(kernels), "-I", str(EMULATION)]
    source = [str(EMULATION / "emulate.cpp"), "-o", str(out)]
    subprocess.run([compiler, "-std=c++20", "-O1", "-pthread", *options, *folders, *source], check=True)
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return _compile(tmp_path_factory.mktemp("emulation") / "emulate", KERNELS)


def _run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("path", range(4), ids=PATHS)
@pytest.mark.parametrize(("world", "rounds"), [(2, 32), (4, 8), (8, 2)])
def test_all_ranks_have_the_same_and_right_bits(program, world, rounds, path):
    done = _run(program, world, path, rounds, "0xfffffffd")  # the counters wrap in the third round
    assert done.returncode == 0, done.stdout
    words = done.stdout.split()
    assert words[:2] == ["rounds", str(rounds)]
    assert int(words[3]) >= rounds * world * 256, "every round compares a row of every rank at least"


@pytest.mark.parametrize("path", range(4), ids=PATHS)
def test_a_rank_that_does_not_come_is_named_and_the_kernel_stops(program, path):
    done = _run(program, 4, path, 2, 7, "absent", 2)
    assert done.returncode == 0, done.stdout
    *ranks, last = done.stdout.splitlines()
    assert last == "stopped yes"
    assert [line.split()[:2] for line in ranks] == [["rank", "0"], ["rank", "1"], ["rank", "3"]]
    reports = [line for line in ranks if "valid 1" in line]
    assert any("missed 2 round 1" in line for line in reports), ranks


def test_a_wrong_kernel_is_found(tmp_path):
    shutil.copytree(KERNELS, tmp_path / "csrc")
    source = tmp_path / "csrc" / "all_reduce.cuh"
    text = source.read_text()
    assert text.count("sum[i] + value_of(vector, i)") == 1
    source.write_text(text.replace("sum[i] + value_of(vector, i)", "sum[i] - value_of(vector, i)"))
    done = _run(_compile(tmp_path / "wrong", tmp_path / "csrc", "-DEMULATE_TWO_RANKS"), 2, 0, 4, 0)
    assert done.returncode == 1
    assert done.stdout.startswith("wrong: kind ")

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


def _compile(out: Path, kernels: Path, *options: str, source: str = "emulate.cpp") -> Path:
    compiler = require_program("g++", "g++")
    folders = ["-I", str(kernels), "-I", str(EMULATION)]
    files = [str(EMULATION / source), "-o", str(out)]
    subprocess.run([compiler, "-std=c++20", "-O1", "-pthread", *options, *folders, *files], check=True)
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return _compile(tmp_path_factory.mktemp("emulation") / "emulate", KERNELS)


@pytest.fixture(scope="module")
def mhc_program(tmp_path_factory) -> Path:
    return _compile(tmp_path_factory.mktemp("mhc") / "emulate", KERNELS, source="emulate_mhc.cpp")


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


@pytest.mark.parametrize(
    ("world", "path", "rounds"), [*((2, path, 4) for path in range(4)), (4, PATHS.index("push two-shot"), 2)]
)
def test_hyper_connections_follow_the_sum(mhc_program, world, path, rounds):
    done = _run(mhc_program, world, path, rounds, "0xfffffffe")
    assert done.returncode == 0, done.stdout
    words = done.stdout.split()
    assert words[:2] == ["rounds", str(rounds)]
    assert int(words[3]) >= rounds * world * 4 * 768, "four streams of a token at least, and what follows"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("comb + j * kStreams + i", "comb + i * kStreams + j", "wrong: streams of token"),
        ("entry = entry / (sum_of_column(entry) + eps);\n#pragma", "#pragma", "wrong: comb of token"),
        ("{ return pack(sum); }", "{ sum[0] += 1.0f; return pack(sum); }", "wrong: streams of token"),
    ],
    ids=["matrix transposed", "columns forgotten", "sum"],
)
def test_a_wrong_boundary_is_found(tmp_path, right, wrong, said):
    shutil.copytree(KERNELS, tmp_path / "csrc")
    source = tmp_path / "csrc" / "mhc.cuh"
    text = source.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    program = _compile(
        tmp_path / "wrong", tmp_path / "csrc", "-DEMULATE_ONE_PATH", "-O0", source="emulate_mhc.cpp"
    )
    done = _run(program, 2, 0, 1, 0)
    assert done.returncode == 1
    assert done.stdout.startswith(said), done.stdout


def test_a_wrong_kernel_is_found(tmp_path):
    shutil.copytree(KERNELS, tmp_path / "csrc")
    source = tmp_path / "csrc" / "all_reduce.cuh"
    text = source.read_text()
    assert text.count("sum[i] + value_of(vector, i)") == 1
    source.write_text(text.replace("sum[i] + value_of(vector, i)", "sum[i] - value_of(vector, i)"))
    done = _run(_compile(tmp_path / "wrong", tmp_path / "csrc", "-DEMULATE_TWO_RANKS"), 2, 0, 4, 0)
    assert done.returncode == 1
    assert done.stdout.startswith("wrong: kind ")

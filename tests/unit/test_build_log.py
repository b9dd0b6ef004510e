from pathlib import Path

import pytest
import yaml

from tooling.census.build_log import check_build_log, skipped_features
from tooling.gates.records import Verdict

CASE = Path(__file__).parents[1] / "cases" / "build-log-skipped-kernels.yaml"
LOG = yaml.safe_load(CASE.read_text("utf-8"))["input"]["text"]


def test_the_field_case_names_what_was_left_out():
    [check] = check_build_log(LOG, [])
    assert check.verdict is Verdict.FAIL
    assert check.seen == "left out: scaled_mm_c3x_120, NVFP4, CUTLASS MLA"
    assert check.details[0] == "line 3: Not building scaled_mm_c3x_120 as no compatible archs found"


def test_only_needed_features_fail_and_the_rest_is_listed():
    needed = check_build_log(LOG, ["nvfp4"])
    assert [check.verdict for check in needed] == [Verdict.FAIL, Verdict.FAIL]
    [first, named] = check_build_log("Building marlin for archs: 12.0\n" + LOG, ["Marlin"])
    assert (first.verdict, named.verdict) == (Verdict.PASS, Verdict.PASS)
    assert len(first.details) == 3


def test_what_may_be_left_out_passes():
    [check] = check_build_log(LOG, [], ["scaled_mm", "nvfp4", "cutlass-mla"])
    assert check.verdict is Verdict.PASS


def test_a_needed_feature_that_the_log_never_names_is_not_passed():
    checks = check_build_log("[100%] Built target _C", ["NVFP4"])
    assert [check.verdict for check in checks] == [Verdict.PASS, Verdict.INCONCLUSIVE]


@pytest.mark.parametrize("log", ["", " \n\n"])
def test_an_empty_log_fails(log: str):
    assert [check.verdict for check in check_build_log(log, [])] == [Verdict.FAIL]


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("-- Not building Marlin kernels as no compatible archs found in CUDA target architectures", "Marlin"),
        ("-- Not building scaled_mm_c2x for archs: 7.5", "scaled_mm_c2x"),
        ("CMake Warning: FA3 will not be built: no compatible architectures", "FA3"),
        ("-- FlashMLA is disabled because CUDA version is < 12.3", "FlashMLA"),
        ("[WARNING] Skipping fp4 gemm: unsupported architecture sm_121", "fp4 gemm"),
        ("Skipping compilation of DeepGEMM since compute capability 12.0 is not supported", "DeepGEMM"),
        ("-- machete kernels skipped, requires sm_90a", "machete"),
        ("-- Disabling SM100 support (CUDA version 12.4)", "SM100"),
        ("NVFP4 kernels are not supported on sm_120", "NVFP4"),
        ("will not compile moe_permute: needs CUDA architecture 9.0 or newer", "moe_permute"),
        ("note: excluding trtllm_gen from the build, no matching GPU targets", "trtllm_gen from the build"),
    ],
)
def test_other_projects_say_it_in_other_words(line: str, feature: str):
    [found] = skipped_features(line)
    assert found.feature == feature


def test_a_reason_on_the_next_line_is_read_too():
    log = (
        "CMake Warning at CMakeLists.txt:12 (message):\n  Not building NVFP4 as no\n  compatible archs found.\n"
    )
    assert [(found.feature, found.line_number) for found in skipped_features(log)] == [("NVFP4", 2)]


@pytest.mark.parametrize(
    "line",
    [
        "[100%] Built target _C",
        "-- Building Marlin kernels for archs: 8.0;12.0",
        "CUDA target architectures: 12.1a",
        "warning: variable 'x' was not used [-Wunused-variable]",
        "Skipping docs, sphinx was not found",
        "nvcc -gencode arch=compute_120a,code=sm_120a -c a.cu",
    ],
)
def test_lines_that_leave_nothing_out(line: str):
    assert skipped_features(line) == ()

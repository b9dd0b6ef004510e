"""Logs of the field and their kinds: the root cause, not the loudest line."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tooling.triage import LogTriage, Outcome, TriageReport, triage
from tooling.triage.log import _LOADED
from tooling.triage.reader import parse_line, parse_stamp, read_chunks, split_chunks
from tooling.triage.signatures import load_signatures

_CASES = Path(__file__).parents[1] / "cases"
CASES = sorted(path for kind in ("log", "boot") for path in _CASES.glob(f"{kind}-*.yaml"))

#: What each case must say, and what it must not.
SAYS = {
    "log-download-disk-full-never-exits": ("748.94 MB free for a 4915.92 MB file", "slow"),
    "log-driver-too-old-12080": ("CUDA 12.8", "12080"),
    "log-eagle3-target-loaded-as-draft": ("without a draft checkpoint", "unsupported"),
    "log-engine-silent-zero-throughput": ("3 requests wait, none runs", "idle"),
    "log-fp4-warning-is-about-the-checkpoint": ("Not a statement about the hardware", "lacks"),
    "log-gpu-memory-held-by-another": ("somebody else holds it", "RLIMIT"),
    "log-graph-capture-generic-hint": ("does not know sm_120", "mem-fraction"),
    "log-ignored-import-before-real-error": ("cut off before its last line", "glm4v"),
    "log-jit-mid-request-kills-engine": ("W4A16FusedMoeKernel", "NCCL"),
    "log-negative-kv-budget": ("-561981", "smaller"),
    "log-no-driver-in-container": ("started without the NVIDIA runtime", "vllm._C"),
    "log-ready-line-from-previous-boot": ("still on its way", "sigquit"),
    "boot-cannot-execute-binary-same-arch": ("run /usr/bin/bash as a script", "pull"),
    "boot-exec-format-error-loop": ("entry point", "line endings"),
}


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_field_cases(path: Path):
    case = yaml.safe_load(path.read_text())
    report = triage(case["input"]["text"].splitlines())
    says, not_this = SAYS[case["id"]]
    assert report.outcome == case["expected"]["verdict"]
    assert says in report.diagnosis
    assert not_this not in report.diagnosis
    assert "?" not in report.diagnosis


def test_all_field_cases_are_here():
    assert {path.stem for path in CASES} == set(SAYS)


def ids(report: TriageReport) -> list[str]:
    return [finding.signature for finding in report.findings]


def root(lines: list[str], **more: str) -> str:
    report = triage(lines, died=more.get("died", ""))
    assert report.root is not None, report
    return report.root.signature


SIGQUIT = "Received sigquit from a child process. It usually means the child failed."


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda-out-of-memory"),
        ("torch.AcceleratorError: CUDA error: out of memory", "cuda-out-of-memory"),
        ("requirement error: unsatisfied condition: cuda>=13.0, please update", "driver-too-old"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver-too-old"),
        (
            "Error 803: system has unsupported display driver / cuda driver combination",
            "driver-library-mismatch",
        ),
        ("Error 804: forward compatibility was attempted on non supported HW", "compat-library-injected"),
        ("CUDA driver error: device kernel image is invalid", "no-kernel-image"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas-too-old"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "cuda-library-missing"),
        (
            "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x)",
            "symbol-missing",
        ),
        ("OSError: [Errno 98] Address already in use", "port-in-use"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache'", "disk-full"),
        ("PermissionError: [Errno 13] Permission denied: '/models'", "permission-denied"),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot",
            "hub-offline",
        ),
        ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "hub-gated"),
        ("huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.", "hub-not-found"),
        ("ValueError: Tokenizer class X does not exist or is not currently imported.", "tokenizer-broken"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "kv-budget-none"),
        ("ValueError: Unknown quantization method: nvfp9.", "quantisation-unsupported"),
        ("ValueError: The 'fa3' backend is not supported on Blackwell GPUs", "attention-unsupported"),
        ("RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 10)", "cudnn-mismatch"),
        (
            "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376",
            "shared-memory-tile",
        ),
        (
            "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
            "no-supported-arch",
        ),
        ("ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.", "fusion-arch-gate"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "weights-damaged"),
        ("sglang serve: error: unrecognized arguments: --enable-flashinfer-mla", "unrecognised-argument"),
    ],
)
def test_the_kinds_of_causes_behind_one_symptom(line: str, cause: str):
    lines = [
        "[2026-11-29 17:48:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        line,
        SIGQUIT,
    ]
    assert root(lines) == cause
    # The same after another process's harmless line, with a rank in front, and seen by several ranks.
    noisy = ["[2026-11-29 17:47:00] Ignore import error when loading sglang.srt.models.x: No module named 'y'"]
    noisy += [f"[2026-11-29 17:48:0{rank} TP{rank}] {line}" for rank in range(4)]
    report = triage([*noisy, SIGQUIT])
    assert report.root is not None
    assert (report.root.signature, report.root.count) == (cause, 4)
    assert report.root.ranks == ("TP0", "TP1", "TP2", "TP3")


def test_the_first_cause_wins_over_its_consequences():
    assert root(
        ["torch.OutOfMemoryError: CUDA out of memory.", "CUDA error: an illegal memory access was encountered"]
    ) == ("cuda-out-of-memory")
    assert root(["RuntimeError: No CUDA GPUs are available", "NVML Shared Library Not Found"]) == (
        "no-driver-in-container"
    )
    assert root(
        ["NCCL WARN Cuda failure 217 'x'", "NCCL error in: x, unhandled cuda error (run with NCCL_DEBUG=INFO"]
    ) == ("nccl-warning")


def test_an_exception_that_nobody_knows_is_quoted_not_explained():
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "KeyError: 'wibble'",
        SIGQUIT,
    ]
    report = triage(lines)
    assert report.outcome is Outcome.FAIL
    assert "KeyError: 'wibble'" in report.diagnosis


def test_of_chained_exceptions_the_first_is_the_cause():
    lines = [
        "Traceback (most recent call last):",
        "ZeroDivisionError: first",
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        "WibbleError: second",
        SIGQUIT,
    ]
    assert "ZeroDivisionError: first" in triage(lines).diagnosis


def test_a_caught_exception_before_readiness_is_a_warning():
    lines = [
        "server_args=ServerArgs(x)",
        "Traceback (most recent call last):",
        "WibbleError: caught",
        "torch.OutOfMemoryError: CUDA out of memory. (autotune skips this shape)",
        "The server is fired up and ready to roll!",
        'INFO: "POST /v1/chat/completions HTTP/1.1" 200 OK',
    ]
    report = triage(lines)
    assert report.outcome is Outcome.WARN
    assert triage([*lines, SIGQUIT]).outcome is Outcome.FAIL
    assert triage(lines, died="exit code 1").outcome is Outcome.FAIL


def test_a_nan_is_not_got_over():
    lines = ["Detected errors during sampling! NaN in the logits.", "The server is fired up and ready to roll!"]
    assert root(lines) == "nan-in-output"


def test_a_process_that_died_silently_is_a_failure_without_a_guess():
    report = triage(["server_args=ServerArgs(x)", "Load weight begin. avail mem=1 GB"], died="exit code 137")
    assert report.outcome is Outcome.FAIL
    assert report.root is None
    assert "does not say why" in report.diagnosis


@pytest.mark.parametrize("died", ["exit code -9", "exit code 137", "killed by SIGKILL", "signal 9"])
def test_a_kill_while_loading_points_at_the_killer(died: str):
    report = triage(["server_args=ServerArgs(x)", "Load weight begin. avail mem=1 GB"], died=died)
    assert report.outcome is Outcome.FAIL
    assert "dmesg" in report.advice
    assert "dmesg" not in triage(["server_args=ServerArgs(x)"], died="exit code 1").advice


_NO_MEMORY = (
    "torch.AcceleratorError: CUDA error: out of memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of",
    "RuntimeError: CUDA driver error: out of memory",
    "NCCL WARN Cuda failure 2 'out of memory'",
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "alloc_buffer: allocating 200.00 MiB on device 0: cudaMalloc failed: out of memory",
)


@pytest.mark.parametrize("line", _NO_MEMORY)
@pytest.mark.parametrize("start", ["server_args=ServerArgs(x)", "non-default args: {'model': 'x'}"])
def test_memory_that_runs_out_before_the_weights_is_held_by_somebody_else(start: str, line: str):
    note = "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit"
    assert root([note, start, "Init torch distributed begin.", line, SIGQUIT], died="exit code -9") == (
        "gpu-memory-held"
    )


@pytest.mark.parametrize("line", _NO_MEMORY)
@pytest.mark.parametrize(
    "before",
    [
        ["server_args=ServerArgs(x)", "Load weight begin. avail mem=1 GB"],
        ["vLLM API server version 0.11.0", "Starting to load model x..."],
        ["a log that does not begin with the boot"],
    ],
)
def test_memory_that_runs_out_later_may_be_the_engines_own(before: list[str], line: str):
    assert root([*before, line, SIGQUIT], died="exit code -9") == "cuda-out-of-memory"


@pytest.mark.parametrize("lines", [[], ["hello world"], ['INFO: "GET /version HTTP/1.1" 200 OK']])
def test_a_log_that_tells_nothing_is_no_pass(lines: list[str]):
    assert triage(lines).outcome is Outcome.INCONCLUSIVE


def test_repeated_lines_are_counted_not_kept():
    report = triage(["Workspace is insufficient for problem size. x"] * 5_000)
    assert [finding.count for finding in report.findings] == [5_000]


def test_a_stall_that_ends_is_none():
    stalled = (
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 3 reqs, GPU KV cache usage: 0.0%"
    )
    idle = "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%"
    busy = (
        "Avg generation throughput: 95.1 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache usage: 1.0%"
    )
    assert root([busy, stalled, stalled]) == "stalled-requests"
    assert "2 report intervals" in triage([busy, stalled, stalled]).diagnosis
    assert "stalled-requests" not in ids(triage([stalled, busy]))
    assert "stalled-requests" not in ids(triage([busy, idle, idle]))


def test_two_ranks_that_load_one_class_are_not_a_draft():
    args = "--speculative-algorithm EAGLE3"
    load = "Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16"
    ranks = [args, f"[2026-01-01 00:00:00 TP0] {load}", f"[2026-01-01 00:00:00 TP1] {load}"]
    assert "eagle3-target-as-draft" not in ids(triage(ranks))
    twice = [args, f"[2026-01-01 00:00:00 TP0] {load}", f"[2026-01-01 00:00:09 TP0] {load}"]
    assert "eagle3-target-as-draft" in ids(triage(twice))
    given = (
        "server_args=ServerArgs(model_path='/m', speculative_algorithm='EAGLE3', speculative_draft_model_path="
    )
    with_draft = [given + "'/d')"]
    assert "eagle3-target-as-draft" not in ids(triage(with_draft + twice[1:]))
    resolved = [given + "'/m')"]
    assert "eagle3-target-as-draft" in ids(triage(resolved + twice[1:]))
    assert "eagle3-target-as-draft" not in ids(triage(twice[1:]))


def test_lines_before_since_belong_to_another_boot():
    lines = [
        "CUDA out of memory",
        "2026-06-01T12:29:58.123456789Z " + SIGQUIT,
        "  an indented line without a stamp",
        "2026-06-01T12:30:00.500000000Z server_args=ServerArgs(x)",
        "2026-06-01T12:30:41Z Load weight begin. avail mem=93.80 GB",
        "a line without a stamp",
    ]
    report = triage(lines, since=datetime(2026, 6, 1, 12, 30, 0, 400_000, tzinfo=UTC))
    assert report.outcome is Outcome.NOT_READY
    assert (report.lines_read, report.lines_of_other_boots) == (3, 3)
    unstamped = triage(["CUDA out of memory"], since=datetime(2026, 6, 1, tzinfo=UTC))
    assert "time stamp" in unstamped.notes[0]


def test_an_engine_that_starts_again_within_one_boot_failed_before():
    lines = [
        "server_args=ServerArgs(x)",
        "Load weight begin. x",
        "server_args=ServerArgs(x)",
        "Load weight begin. x",
    ]
    assert triage(lines).lines_of_other_boots == 2
    report = triage(lines, one_boot=True)
    assert report.outcome is Outcome.FAIL
    assert report.restarts == 1


def test_what_an_engine_chooses_before_its_start_line_is_no_earlier_start():
    lines = [
        "[2026-11-30 04:41:31] Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for Glm4MoeForCausalLM",
        "[2026-11-30 04:41:31] Attention backend not specified. Use triton backend by default.",
        "[2026-11-30 04:41:31] Use flashinfer_cutlass as MoE runner backend on SM110/SM120",
        "[2026-11-30 04:41:35] server_args=ServerArgs(model_path='/models/m')",
        "[2026-11-30 04:42:05 TP0] Load weight begin. avail mem=138.99 GB",
    ]
    report = triage(lines, engine="sglang", version="0.5.16", one_boot=True)
    assert (report.restarts, report.root) == (0, None)
    again = triage([*lines, *lines], engine="sglang", version="0.5.16", one_boot=True)
    assert (again.restarts, again.outcome) == (1, Outcome.FAIL)


def test_the_steps_of_a_start_are_signatures():
    assert {signature.id for signature in load_signatures()} >= _LOADED


def test_a_dry_boot_does_not_miss_the_gpu():
    lines = [
        "server_args=ServerArgs(x)",
        "RuntimeError: No CUDA GPUs are available",
        "The server is fired up and ready to roll!",
    ]
    assert triage(lines).outcome is Outcome.FAIL
    assert triage(lines, device="cpu").outcome is Outcome.OK


def test_the_log_of_a_real_dry_boot_has_nothing_but_the_warning_on_the_old_flag():
    """SGLang 0.5.23 of the cu130 image on a CPU, lines shortened."""
    lines = (CASES[0].parent / "sglang-0.5.23-dry-boot.log").read_text().splitlines()
    report = triage(lines, device="cpu", one_boot=True)
    assert report.outcome is Outcome.WARN
    assert report.ready_line
    warnings = [finding.signature for finding in report.findings if finding.outcome is not Outcome.OK]
    assert warnings == ["fusion-flag-deprecated", "orderly-stop"]
    assert triage(lines[:20], device="cpu", one_boot=True).outcome is Outcome.NOT_READY


def test_versions_choose_the_signatures():
    line = "ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."
    assert "fusion-arch-gate" in ids(triage([line], engine="sglang", version="0.5.23"))
    assert "fusion-arch-gate" not in ids(triage([line], engine="sglang", version="0.5.9"))


def test_engine_and_version_are_recognised():
    report = triage(["INFO 11-29 17:00:00 [api_server.py:1] vLLM API server version 0.19.0"])
    assert (report.engine, report.version) == ("vllm", "0.19.0")
    assert triage(["[2026-01-01 00:00:00] server_args=ServerArgs(x)"]).engine == "sglang"


def test_a_live_reader_tells_what_is_hopeless_at_its_line():
    reader = LogTriage()
    assert reader.feed("all is well") == ()
    text = "UserWarning: Not enough free disk space to download the file. The expected file size is: 1.0 MB."
    assert [finding.hopeless for finding in reader.feed(text)] == [True]
    assert reader.feed(text) == ()


def test_one_endless_line_costs_no_memory():
    def endless() -> Iterator[bytes]:
        yield b"CUDA out of memory "
        for _ in range(200):
            yield b"x" * 65536
        yield b"\nafter\n"

    lines = list(split_chunks(endless()))
    assert len(lines[0]) == 8192
    assert lines[1] == "after"


def test_hostile_bytes_are_lines(tmp_path: Path):
    file = tmp_path / "log"
    file.write_bytes(
        b"\xff\xfe\x00bad\r\nprogress 1%\rprogress 2%\r\n\n\x1b[31mCUDA out of memory\x1b[0m\n\x1b["
        + b"9" * 9000
    )
    with file.open("rb") as opened:
        lines = list(split_chunks(read_chunks(opened)))
    assert lines[1:3] == ["progress 1%", "progress 2%"]
    assert root(lines) == "cuda-out-of-memory"


def test_lines_are_split_the_same_wherever_chunks_end():
    data = b"first line\r\nsecond\n\nthird \xc3\xa9\nlast"
    whole = list(split_chunks([data]))
    assert whole == ["first line", "second", "third é", "last"]
    for size in range(1, len(data)):
        assert list(split_chunks(data[i : i + size] for i in range(0, len(data), size))) == whole


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("[2026-11-06 02:08:27 DP0 TP1] Load", "DP0 TP1", "Load"),
        ("[2026-11-06 02:08:27] Load", "", "Load"),
        ("[DP7 TP7] Load", "DP7 TP7", "Load"),
        ("2026-11-06T02:08:27.123456789Z [2026-11-06 02:08:27 TP0] Load", "TP0", "Load"),
        ("(EngineCore_DP0 pid=12) ERROR 11-06 02:08:27 [core.py:700] Load", "EngineCore_DP0 pid=12", "Load"),
        ("[rank1]:[E1129 17:00:00] Load", "rank1", "Load"),
    ],
)
def test_prefixes_are_taken_off(text: str, rank: str, message: str):
    line = parse_line(1, text)
    assert (line.rank, line.message) == (rank, message)


def test_stamps_are_read_as_docker_writes_them():
    assert parse_stamp("2026-06-01T12:30:00.123456789Z") == datetime(2026, 6, 1, 12, 30, 0, 123456, tzinfo=UTC)
    assert parse_stamp("2026-06-01T14:30:00+02:00") == datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
    assert parse_stamp("yesterday") is None
    assert parse_stamp("2026-13-41T99:00:00Z") is None

"""Kernels of a trace against what was requested: only what ran counts, and an empty trace proves nothing."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tooling.errors import InputError
from tooling.gates.dispatch import Trace, dispatch_gate, parse_trace, read_traces
from tooling.gates.records import GateResult, Verdict

if TYPE_CHECKING:
    from pathlib import Path

TRITON = ["--attention-backend", "triton", "--cuda-graph-backend-decode", "full"]


def event(name: str, category: str = "kernel", duration: float = 10.0) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "dur": duration, "ts": 1.0}


#: As SGLang with Triton attention and decode graphs shows itself.
DECODE = [
    event("_fwd_kernel", duration=40),
    event("_fwd_grouped_kernel_stage1", duration=20),
    event("_fwd_kernel_stage2"),
    event("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)"),
    event("cudaGraphLaunch", "cuda_runtime", 5),
    event("aten::mm", "cpu_op"),
    {"ph": "M", "name": "process_name"},
]


def document(events: list[Any]) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def judge(events: list[Any], arguments: list[str] = TRITON, **more: Any) -> GateResult:
    return dispatch_gate(
        parse_trace(document(events)), arguments=arguments, environment={}, started="2026-11-29", **more
    )


def by_name(result: GateResult) -> dict[str, tuple[Verdict, str]]:
    return {check.name: (check.verdict, check.seen) for check in result.checks}


def test_kernels_are_counted_by_name_and_calls_apart_from_them():
    trace = parse_trace(gzip.compress(document([*DECODE, event("_fwd_kernel", duration=2)])))
    assert trace.launches == 5
    assert (trace.kernels[0].name, trace.kernels[0].launches, trace.kernels[0].time_us) == (
        "_fwd_kernel",
        2,
        42,
    )
    assert trace.calls == {"cudaGraphLaunch": 1}
    assert "aten::mm" not in trace.names


def test_requested_backend_and_graphs_that_ran_pass():
    result = judge(DECODE)
    assert result.verdict is Verdict.PASS
    assert by_name(result)["dispatch-attention-backend"][1].startswith("ACTIVE: _fwd_kernel ran")
    assert "cudaGraphLaunch ran" in by_name(result)["dispatch-cuda-graph"][1]


def test_another_backend_ran_than_the_requested_one():
    result = judge(DECODE, ["--attention-backend=flashinfer"])
    verdict, seen = by_name(result)["dispatch-attention-backend"]
    assert verdict is Verdict.FAIL
    assert "triton's _fwd_kernel ran instead" in seen


def test_graphs_were_asked_for_and_every_kernel_was_launched_alone():
    eager = [event("cudaLaunchKernel", "cuda_runtime") if e.get("cat") == "cuda_runtime" else e for e in DECODE]
    verdict, seen = by_name(judge(eager))["dispatch-cuda-graph"]
    assert verdict is Verdict.FAIL
    assert "none of its kernels" in seen


def test_a_feature_that_may_be_inactive_does_not_fail():
    arguments = [*TRITON, "--enable-flashinfer-allreduce-fusion"]
    assert judge(DECODE, arguments).verdict is Verdict.FAIL
    allowed = judge(DECODE, arguments, allowed=["flashinfer-allreduce-fusion"])
    assert allowed.verdict is Verdict.PASS
    assert "which the stack allows" in by_name(allowed)["dispatch-flashinfer-allreduce-fusion"][1]


def test_a_trace_without_kernels_fails_even_when_calls_were_made():
    result = judge([event("cudaGraphLaunch", "cuda_runtime"), event("aten::mm", "cpu_op")])
    assert by_name(result)["kernels-ran"][0] is Verdict.FAIL


def test_nothing_provable_was_requested():
    result = judge(DECODE, ["--enable-metrics"])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert by_name(result)["dispatch-features"][0] is Verdict.INCONCLUSIVE
    assert any("metrics" in line for line in result.limitations)


def test_a_backend_without_known_kernels_is_no_proof():
    result = judge(DECODE, ["--attention-backend=some_new_one"])
    assert result.verdict is Verdict.INCONCLUSIVE


def test_ranks_are_added_up(tmp_path: Path):
    for rank in range(2):
        (tmp_path / f"{rank}.trace.json").write_bytes(document(DECODE))
    trace = read_traces(sorted(tmp_path.glob("*.json")))
    assert (trace.files, trace.launches, trace.calls["cudaGraphLaunch"]) == (2, 8, 2)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"traceEvents": 3}', gzip.compress(document(DECODE))[:-20], b"\x1f\x8bxx"]
)
def test_what_is_no_trace_is_refused_with_its_name(content: bytes):
    with pytest.raises(InputError, match="no profiler trace"):
        parse_trace(content, "rank0.trace.json.gz")


def test_no_trace_at_all_is_an_error():
    with pytest.raises(InputError, match="no trace"):
        read_traces([])
    assert Trace().launches == 0

"""Requested features: what is not shown to be active fails, unless the stack allows it."""

from __future__ import annotations

import pytest

from tooling.errors import InputError
from tooling.gates.records import Verdict
from tooling.triage import load_signatures, triage
from tooling.triage.features import (
    FeatureRow,
    FeatureState,
    feature_table,
    load_features,
    requested_features,
    split_arguments,
)
from tooling.triage.gate import triage_gate

FUSION = ["--enable-flashinfer-allreduce-fusion"]
#: What SGLang 0.5.23 reports when that argument is given.
INFO = {
    "enable_flashinfer_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": "auto",
    "enable_metrics": True,
}
READY = ["server_args=ServerArgs(x)", "The server is fired up and ready to roll!"]


def row(log: list[str], arguments: list[str], **more: object) -> FeatureRow:
    info = more.pop("server_info", INFO)
    environment = more.pop("environment", {})
    rows = feature_table(
        arguments=arguments,
        environment=environment,  # type: ignore[arg-type]
        server_info=info,  # type: ignore[arg-type]
        report=triage([*READY, *log], engine="sglang", version=str(more.pop("version", "0.5.23"))),
        **more,  # type: ignore[arg-type]
    )
    assert len(rows) == 1
    return rows[0]


def test_the_fusion_flag_that_is_accepted_and_turned_into_auto_is_not_known_to_work():
    found = row([], FUSION)
    assert found.state is FeatureState.UNKNOWN
    assert "'auto'" in found.reason


def test_a_fusion_that_the_preflight_skipped_is_disabled_whatever_the_server_reports():
    line = "FlashInfer workspace preflight: cuMemCreate probe failed on at least one rank. Skipping it."
    found = row([line], FUSION)
    assert found.state is FeatureState.DISABLED
    assert "log line 3" in found.reason


def test_a_workspace_is_no_use():
    line = "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm, rank=0, world_size=4"
    found = row([line], FUSION)
    assert found.state is FeatureState.UNKNOWN
    line = "FlashInfer workspace initialized for rank 0, world_size 4"
    old = row([line], FUSION, version="0.5.9", server_info=None)
    assert old.state is FeatureState.ACTIVE


def test_kernels_that_ran_decide():
    assert (
        row([], FUSION, kernels={"void allreduce_fusion_kernel_oneshot_lamport<x>"}).state
        is FeatureState.ACTIVE
    )
    assert row([], FUSION, kernels={"ncclDevKernel_AllReduce_Sum"}).state is FeatureState.DISABLED
    nothing = row([], FUSION, kernels=set())
    assert nothing.state is FeatureState.DISABLED
    assert "0 names in the trace" in nothing.reason


def test_reported_values_must_be_the_requested_ones():
    asked = ["--attention-backend", "flashinfer"]
    assert row([], asked, server_info={"attention_backend": "flashinfer"}).state is FeatureState.ACTIVE
    assert row([], asked, server_info={"attention_backend": "triton"}).state is FeatureState.DISABLED
    assert row([], asked, server_info={}).state is FeatureState.UNKNOWN
    assert row([], asked, server_info=None).state is FeatureState.UNKNOWN


def test_features_are_asked_for_by_arguments_variables_and_stacks():
    found = requested_features(
        ["--kv-cache-dtype", "auto", "--enable_metrics"],
        {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"},
        also=["cuda-graph"],
    )
    assert found == {
        "pcie-ipc-allreduce": ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", None),
        "metrics": ("--enable-metrics", None),
        "cuda-graph": ("stack", None),
    }
    with pytest.raises(InputError, match="unknown feature 'wibble'"):
        requested_features([], {}, also=["wibble"])
    assert not requested_features([], {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "0"})


def test_native_low_precision_fails_only_where_the_stack_requires_it():
    line = "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."
    report = triage([*READY, line])
    table = feature_table(
        arguments=[], environment={}, server_info=None, report=report, also=["native-low-precision"]
    )
    assert table[0].state is FeatureState.DISABLED
    assert triage_gate(report, table, started="t").verdict is Verdict.FAIL
    assert triage_gate(report, (), started="t").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (READY, Verdict.PASS),
        (["server_args=ServerArgs(x)"], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
        (["CUDA out of memory"], Verdict.FAIL),
        (["exec format error"], Verdict.FAIL),
    ],
)
def test_the_gate_takes_the_verdict_of_the_log(log: list[str], verdict: Verdict):
    result = triage_gate(triage(log), (), started="t")
    assert result.verdict is verdict
    assert len(result.configuration_sha256) == 64


def test_a_requested_feature_that_is_not_active_fails_the_gate_unless_allowed():
    report = triage(READY)
    arguments = [*FUSION, "--enable-metrics"]
    common = {"arguments": arguments, "environment": {}, "server_info": INFO, "report": report}
    strict = triage_gate(report, feature_table(**common), started="t")  # type: ignore[arg-type]
    assert strict.verdict is Verdict.FAIL
    assert [check.verdict for check in strict.checks] == [Verdict.PASS, Verdict.FAIL, Verdict.PASS]
    lenient = feature_table(**common, allowed=["flashinfer-allreduce-fusion"])  # type: ignore[arg-type]
    result = triage_gate(report, lenient, started="t")
    assert result.verdict is Verdict.PASS
    assert "flashinfer-allreduce-fusion is unknown" in result.limitations[0]


def test_arguments_are_split_as_engines_read_them():
    assert split_arguments(["serve", "--a", "1", "--b=2", "--c", "--d-e", "-1", "--a", "3"]) == {
        "--a": "3", "--b": "2", "--c": None, "--d-e": "-1",
    }  # fmt: skip


def test_every_feature_of_a_signature_is_known():
    known = {feature.id for feature in load_features()}
    assert {signature.feature for signature in load_signatures() if signature.feature} <= known


#: SGLang 0.5.16 on an H200: lines of its log, its arguments, and what it reported of them.
H200_LOG = [
    "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4]",
    "Capture target decode CUDA graph end. elapsed=64.69 s, mem usage=0.46 GB, avail mem=126.09 GB.",
]
H200_ARGUMENTS = [
    *("--cuda-graph-backend-decode", "full", "--cuda-graph-max-bs-decode", "256"),
    *("--attention-backend", "triton", "--disable-prefill-cuda-graph", "--enable-metrics"),
]
H200_INFO = {"attention_backend": "triton", "enable_metrics": True, "disable_cuda_graph": False}


def h200(log: list[str], info: dict[str, object] | None) -> dict[str, FeatureState]:
    rows = feature_table(
        arguments=H200_ARGUMENTS,
        environment={},
        server_info=info,
        report=triage([*READY, *log], engine="sglang", version="0.5.16"),
    )
    return {each.feature: each.state for each in rows}


def test_what_a_healthy_engine_was_asked_for_is_active_by_its_log_and_its_report():
    assert h200(H200_LOG, H200_INFO) == dict.fromkeys(
        ("cuda-graph", "attention-backend", "metrics"), FeatureState.ACTIVE
    )


def test_without_its_report_nobody_knows_and_without_graphs_neither():
    assert h200(H200_LOG, None)["metrics"] is FeatureState.UNKNOWN
    assert h200(H200_LOG, None)["attention-backend"] is FeatureState.UNKNOWN
    assert h200([], H200_INFO)["cuda-graph"] is FeatureState.UNKNOWN
    assert (
        h200(H200_LOG, H200_INFO | {"attention_backend": "fa3"})["attention-backend"] is FeatureState.DISABLED
    )

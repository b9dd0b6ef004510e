"""Cases from the field: the right diagnosis, and the same kind in other words and versions."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit import probe_examples as examples
from tooling.gates.records import Check, Verdict
from tooling.probe.compare import changes
from tooling.probe.cuda_start import diagnose
from tooling.probe.judge import judge_host
from tooling.probe.kernel_log import read_kernel_log
from tooling.probe.ladders import judge_collective, judge_ladders, judge_pairs
from tooling.probe.records import Health, Rung
from tooling.probe.report import judge

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CASES / f"{name}.yaml").read_text())
    return read


def check(checks: list[Check] | tuple[Check, ...], name: str) -> Check:
    return next(each for each in checks if each.name == name)


def reduced(size: int, outcome: str, arm: str = "default", log: str = "") -> Rung:
    return Rung(ladder="collective", rung="all-reduce", size=size, outcome=outcome, arm=arm, log=log)


# --- all-reduce fails from a size on -------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["error", "crash", "hang", "wrong-data"])
@pytest.mark.parametrize("first_bad", [64 << 10, 512 << 10, 1 << 20])
@pytest.mark.parametrize("control", [False, True])
def test_nccl_that_fails_from_a_size_on_is_named_with_the_size(outcome: str, first_bad: int, control: bool):
    sizes = (8, 16 << 10, 64 << 10, 512 << 10, 1 << 20)
    arms = ("default", "no-p2p") if control else ("default",)
    rungs = [
        reduced(size, outcome if size >= first_bad else "ok", arm, "torch 2.7.0, NCCL 2.26.2")
        for arm in arms
        for size in sizes
    ]
    seen, health = judge_collective(rungs, examples.record(examples.document()))
    assert seen.verdict is Verdict.FAIL
    size = {64 << 10: "64 KiB", 512 << 10: "512 KiB", 1 << 20: "1 MiB"}[first_bad]
    assert f"this NCCL fails on {examples.PRO_6000} (12.0) for messages of {size} and more" in seen.seen
    assert any("newer NCCL" in line for line in seen.details)
    assert any("2.26.2" in line for line in seen.details)
    assert health is not Health.HEALTHY


def test_small_sizes_alone_prove_nothing():
    rungs = [reduced(size, "ok") for size in (8, 65536, 262144)]
    seen, health = judge_collective(rungs, examples.record(examples.document()))
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert health is Health.INCONCLUSIVE
    assert "512 KiB and more not tried" in seen.seen


def test_the_case_itself_fails_from_512_kib():
    assert "524288 B" in case("probe-allreduce-fails-from-512k")["input"]["text"]
    rungs = [reduced(8 << step, "ok") for step in range(16)] + [
        reduced(524288, "error", log="CUDA error: an illegal memory access was encountered")
    ]
    seen, _ = judge_collective(rungs, examples.record(examples.document()))
    assert seen.verdict is Verdict.FAIL
    assert "512 KiB and more" in seen.seen


def test_a_right_control_arm_blames_the_peer_path_and_a_wrong_one_nobody():
    host = examples.record(examples.document())
    sizes = (8, 1 << 20)
    bad = [reduced(size, "hang") for size in sizes]
    seen, health = judge_collective([*bad, *(reduced(size, "ok", "no-p2p") for size in sizes)], host)
    assert (seen.verdict, health) == (Verdict.FAIL, Health.HANG)
    assert "fails over peer access" in seen.seen
    seen, health = judge_collective([*bad, *(reduced(size, "hang", "no-p2p") for size in sizes)], host)
    assert (seen.verdict, health) == (Verdict.INCONCLUSIVE, Health.INCONCLUSIVE)


# --- peer access granted, no bytes ---------------------------------------------------------------------------


def pair_rung(rung: str, outcome: str = "ok", **facts: Any) -> Rung:
    return Rung(ladder="pair", rung=rung, outcome=outcome, device=0, peer=1, **facts)


@pytest.mark.parametrize("outcome", ["hang", "crash", "error"])
@pytest.mark.parametrize("rung", ["copy", "push", "enable"])
def test_granted_access_without_bytes_fails(rung: str, outcome: str):
    rungs = [
        pair_rung("can-access"),
        pair_rung(rung, outcome, size=4096, call="cuMemcpyPeer", code=999, name="UNKNOWN"),
    ]
    seen, health = judge_pairs(rungs, virtual=False)
    assert seen.verdict is Verdict.FAIL
    assert "grants peer access and the bytes do not arrive" in seen.seen
    assert any("static BAR1" in line for line in seen.details)
    assert health in {Health.HANG, Health.UNUSABLE}


def test_a_matrix_of_ok_and_a_large_bar_are_no_proof():
    matrix = "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n"
    smi = {"rc": 0, "out": matrix}
    raw = examples.document(source="host", nvidia={"p2p_read": smi, "p2p_write": smi})
    report = judge(examples.record({**raw, "pci": raw["pci"]}))
    seen = check(report.result.checks, "peer-access")
    assert seen.verdict is Verdict.INCONCLUSIVE
    assert "not proved" in seen.seen
    assert report.result.verdict is not Verdict.PASS


def test_granted_and_only_copied_is_not_proved_either():
    seen, health = judge_pairs([pair_rung("can-access"), pair_rung("copy", size=4096)], virtual=False)
    assert (seen.verdict, health) == (Verdict.INCONCLUSIVE, Health.INCONCLUSIVE)


# --- a private mirror ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("virtual", [True, False])
def test_a_mirror_that_only_the_writer_sees_is_wrong_data(virtual: bool):
    rungs = [
        pair_rung("can-access"),
        pair_rung("copy", size=4096),
        pair_rung("push", "wrong-data", size=4096, wrong=1024, writer_wrong=0),
        pair_rung("speed", values={"push_gbps": 27.0, "pull_gbps": 27.0, "copy_latency_us": 1.01}),
    ]
    seen, health = judge_pairs(rungs, virtual=virtual)
    assert (seen.verdict, health) == (Verdict.FAIL, Health.WRONG_DATA)
    assert "mirror that only the writer sees" in seen.seen
    assert ("not to be trusted" in seen.seen) is virtual
    assert any("shared memory" in line for line in seen.details)


def test_wrong_bytes_that_the_writer_sees_too_are_no_mirror():
    rungs = [pair_rung("can-access"), pair_rung("push", "wrong-data", size=4096, wrong=7, writer_wrong=7)]
    seen, health = judge_pairs(rungs, virtual=False)
    assert "does not find what its peer wrote" in seen.seen
    assert health is Health.WRONG_DATA


# --- 804: an injected compatibility library ------------------------------------------------------------------


def broken_start(code: int, name: str, **sections: Any) -> dict[str, Any]:
    raw = examples.document(1, **sections)
    raw["rungs"] = [examples.start(0, outcome="error", call="cuInit", code=code, name=name)]
    raw["nvml"]["gpus"] = [examples.gpu(0, name="NVIDIA GeForce RTX 5090")]
    return raw


@pytest.mark.parametrize(
    "path",
    [
        "/usr/local/cuda/compat/libcuda.so.1",
        "/usr/local/cuda-13.0/compat/libcuda.so.1",
        "/opt/compat/libcuda.so.580.65",
    ],
)
@pytest.mark.parametrize(
    ("code", "name"), [(804, "COMPAT_NOT_SUPPORTED_ON_DEVICE"), (803, "SYSTEM_DRIVER_MISMATCH")]
)
def test_an_injected_compat_library_is_found_although_nvml_works(path: str, code: int, name: str):
    raw = broken_start(code, name, nvidia={"libraries": [["libcuda.so.1", path]]})
    found = check(judge_host(examples.record(raw)), "cuda-init")
    assert found.verdict is Verdict.FAIL
    assert "compatibility libcuda of the image is loaded in place of the host's" in found.seen
    assert "data-centre parts only" in found.seen
    assert any("loader path" in line for line in found.details)
    assert any("proves nothing" in line for line in found.details)
    assert any(path in line for line in found.details)


def test_804_is_understood_without_the_loader_line():
    found = check(judge_host(examples.record(broken_start(804, "COMPAT_NOT_SUPPORTED_ON_DEVICE"))), "cuda-init")
    assert "compatibility libcuda" in found.seen


# --- nvidia-smi fine, cuInit not -----------------------------------------------------------------------------


def toolkit(version: str) -> dict[str, Any]:
    return {"toolkit": {"rc": 0, "out": f"NVIDIA Container Toolkit CLI version {version}\ncommit: 1\n"}}


@pytest.mark.parametrize(("before", "after"), [("1.19.0", "1.19.1"), ("1.17.8", "1.18.0")])
def test_a_toolkit_update_is_blamed_when_it_is_what_changed(before: str, after: str):
    good = examples.record(examples.document(1, engine=toolkit(before)))
    bad = examples.record(broken_start(999, "UNKNOWN", engine=toolkit(after)))
    changed = changes(good, bad)
    assert f"container toolkit: {before} -> {after}" in changed
    found = check(judge_host(bad, changed), "cuda-init")
    assert found.verdict is Verdict.FAIL
    assert "driver and image are not at fault" in found.seen
    assert f"{before} -> {after}" in found.seen
    assert any("hold the package" in line for line in found.details)


def test_the_known_bad_toolkit_needs_no_earlier_record():
    found = check(
        judge_host(examples.record(broken_start(999, "UNKNOWN", engine=toolkit("1.19.1")))), "cuda-init"
    )
    assert "1.19.1" in found.seen
    assert "driver and image are not at fault" in found.seen


def test_without_a_suspect_nobody_is_blamed():
    found = check(judge_host(examples.record(broken_start(999, "UNKNOWN"))), "cuda-init")
    assert found.verdict is Verdict.FAIL
    assert found.seen == "CUDA does not start although nvidia-smi works"
    assert any("--last-good" in line for line in found.details)


def test_a_changed_driver_is_not_laid_on_the_toolkit():
    bad = examples.record(broken_start(999, "UNKNOWN"))
    found = diagnose(bad, ("driver: 570.86.10 -> 580.95.05", "container toolkit: 1.18.0 -> 1.19.0"))
    assert found is not None
    assert "since the driver changed" in found.what


@pytest.mark.parametrize("nodes", [{}, {"/dev/nvidia-uvm": False}])
def test_a_missing_uvm_node_is_the_cause_where_it_is_missing(nodes: dict[str, bool]):
    raw = broken_start(999, "UNKNOWN", nvidia={"device_nodes": nodes})
    found = check(judge_host(examples.record(raw)), "cuda-init")
    assert "/dev/nvidia-uvm" in found.seen


# --- Xid behind a silent hang --------------------------------------------------------------------------------


def test_the_watchdog_and_xid_8_of_the_case():
    lines = [
        line for line in case("doctor-xid-behind-a-silent-hang")["input"]["text"].splitlines() if "NVRM" in line
    ]
    raw = examples.document(1, kernel_log={"readable": True, "lines": lines})
    found = check(judge_host(examples.record(raw)), "kernel-log")
    assert found.verdict is Verdict.FAIL
    assert found.seen.startswith("Xid 8: the GPU stopped processing")
    assert any("before anything is started, swapped or rolled back" in line for line in found.details)
    assert any("RC watchdog" in line for line in found.details)


@pytest.mark.parametrize(
    ("line", "number", "fails"),
    [
        ("[12.5] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus.", 79, True),
        ("NVRM: Xid (0000:41:00): 119, pid=1, Timeout after 6s of waiting for RPC from GPU0 GSP!", 119, True),
        ("kernel: NVRM: Xid (PCI:0001:C1:00.0): 31, pid=7, name=python3, MMU Fault", 31, False),
        ("NVRM: Xid (PCI:0000:01:00): 777, something new", 777, True),
        ("Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)", 154, True),
        ("Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)", 154, False),
        ("NVRM: Xid (PCI:0000:01:00): 43, pid=3, name=python3, channel 0x10", 43, False),
    ],
)
def test_xids_in_other_words(line: str, number: int, fails: bool):
    (found,) = read_kernel_log(["systemd: hello", line])
    assert (found.kind, found.number, found.fails) == ("xid", number, fails)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout: 7", "gpu-locked"),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0012 address=0x1]", "iommu-fault"),
        ("DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x0", "iommu-fault"),
        ("NVRM: this GPU requires use of the NVIDIA open kernel modules.", "needs-open-modules"),
        ("NVRM: API mismatch: the client has the version 580.95.05", "version-mismatch"),
        ("pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received", "pcie-uncorrectable"),
    ],
)
def test_other_lines_that_speak_against_a_gpu(line: str, kind: str):
    (found,) = read_kernel_log([line])
    assert (found.kind, found.fails) == (kind, True)


def test_a_kernel_log_that_may_not_be_read_is_a_limitation_and_no_pass():
    raw = examples.document(
        1, kernel_log={"readable": False, "why": ["dmesg: Operation not permitted"], "lines": []}
    )
    report = judge(examples.record(raw))
    assert not any(each.name == "kernel-log" for each in report.result.checks)
    assert any("no Xid is known" in line for line in report.result.limitations)


# --- engine and driver ---------------------------------------------------------------------------------------


def test_an_engine_that_refuses_the_client_leaves_the_service_alone():
    text = case("host-docker-29-refuses-old-clients")["input"]["text"].splitlines()[0]
    raw = examples.document(1, source="host", engine={"client": {"rc": 1, "out": text}})
    found = check(judge_host(examples.record(raw)), "engine-api")
    assert found.verdict is Verdict.FAIL
    assert "1.43" in found.seen
    assert "minimum is 1.44" in found.seen
    assert any("do not touch the service" in line for line in found.details)


def test_a_driver_that_is_too_old_is_compared_with_driver_versions_not_with_12080():
    raw = examples.document(1)
    raw["nvml"]["driver"] = raw["host"]["nvidia"]["module_version"] = "570.86.10"
    raw["rungs"] = [examples.start(1, values={"version": 12080, "count": 1})]
    found = check(judge_host(examples.record(raw)), "driver-version")
    assert found.verdict is Verdict.FAIL
    assert "driver 570.86.10 is too old: CUDA 13.0 of the image needs 580.65.06" in found.seen
    assert "CUDA 12.8 (12080)" in found.seen


def test_a_container_without_injection_is_not_the_image_s_fault():
    raw = examples.document(0, nvidia={"cuda": {"rc": 0, "out": json.dumps({"error": "libcuda.so.1: no"})}})
    raw["nvml"] = {"error": {"message": "NVML Shared Library Not Found"}}
    raw["rungs"] = [
        {"ladder": "driver", "rung": "devices", "outcome": "unavailable", "log": "libcuda.so.1 is not here"}
    ]
    host = examples.record(
        {**raw, "host": {**raw["host"], "pci": [{"address": "0000:01:00.0", "driver": "nvidia"}]}}
    )
    found = check(judge_host(host), "cuda-init")
    assert "without the NVIDIA runtime" in found.seen
    assert any("do not rebuild" in line for line in found.details)


def test_the_healthy_example_is_healthy():
    host = examples.record(examples.document(8))
    checks, health = judge_ladders(host)
    assert {each.verdict for each in [*checks, *judge_host(host)]} == {Verdict.PASS}
    assert set(health.values()) == {Health.HEALTHY}

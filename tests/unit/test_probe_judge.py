"""Records of real machines, hostile documents, ladders, advice, fit and fingerprint."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit import probe_examples as examples
from tooling.errors import InputError
from tooling.gates.records import SIMULATION, Check, Verdict
from tooling.probe.fingerprint import fingerprint
from tooling.probe.fit import GIB, FitRequest, FitVerdict, fit
from tooling.probe.kernel_log import read_kernel_log
from tooling.probe.parse import read_document
from tooling.probe.records import Health, HostRecord, ProbeReport, Source, Urgency
from tooling.probe.report import exit_code, judge
from tooling.probe.smi import SmiError, read_matrix, read_smi
from tooling.probe.tables import codes, kernel_lines, requirements, xids
from tooling.stack import load_stack

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "probe"


def recorded(name: str) -> HostRecord:
    return read_document((DATA / f"{name}.json").read_text(), where=name)


def failing(report: ProbeReport) -> list[Check]:
    return [check for check in report.result.checks if check.verdict is Verdict.FAIL]


def test_a_real_h200_is_read_with_everything_it_said():
    host = recorded("h200")
    (gpu,) = host.gpus
    assert (gpu.name, gpu.compute_capability, gpu.pcie_generation, gpu.pcie_width) == (
        "NVIDIA H200",
        "9.0",
        5,
        16,
    )
    assert (host.driver, host.driver_kind, host.cuda_api, host.cuda_init) == ("580.159.04", "open", 13000, 0)
    assert host.virtualisation == "vm (Firecracker)"
    report = judge(host)
    assert report.result.verdict is Verdict.PASS
    assert report.ladders == {"memory": Health.HEALTHY}
    memory = next(check for check in report.result.checks if check.name == "memory-ladder")
    assert any("NOT_PERMITTED (800), rightly so without an NVLink fabric" in line for line in memory.details)
    assert "one GPU: nothing is known of peer access and collectives" in report.result.limitations


def test_two_real_h200_have_all_ladders_and_one_fingerprint_for_probe_and_doctor():
    probe, doctor = recorded("h200-x2"), recorded("h200-x2-doctor")
    assert (probe.source, doctor.source) == (Source.IMAGE, Source.HOST)
    assert set(judge(probe).ladders.values()) == {Health.HEALTHY}
    assert [link.level for link in probe.links] == ["NV18"]
    assert fingerprint(probe) == fingerprint(doctor)
    advice = {each.topic: each for each in judge(probe).recommendations}
    assert "NVLink" in advice["all-reduce"].advice
    assert advice["push or pull"].advice == "push"
    proof = next(check for check in judge(doctor).result.checks if check.name == "peer-access")
    assert proof.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", ["probe-h200", "probe-h200-x2"])
def test_committed_evidence_reads_and_says_what_it_does_not_show(name: str):
    report = ProbeReport.model_validate_json((ROOT / "stacks" / "evidence" / f"{name}.json").read_text())
    assert report.host.gpus[0].name == "NVIDIA H200"
    assert any("SM120" in line for line in report.result.limitations)
    assert not report.host.simulated


def test_identifiers_stay_out_of_recorded_documents():
    for path in [*DATA.glob("*.json"), *(ROOT / "stacks" / "evidence").glob("probe-*.json")]:
        assert "GPU-" not in path.read_text().replace("GPU-Direct", "")
        assert "<serial>" not in path.read_text()


def test_fingerprint_keys_on_hardware_and_not_on_the_day():
    base = examples.record(examples.document(2))
    warm = base.model_copy(update={"gpus": tuple(g.model_copy(update={"power_w": 400.0}) for g in base.gpus)})
    capped = base.model_copy(
        update={"gpus": tuple(g.model_copy(update={"power_limit_w": 300.0}) for g in base.gpus)}
    )
    assert fingerprint(warm) == fingerprint(base)
    assert fingerprint(capped) != fingerprint(base)
    assert fingerprint(base.model_copy(update={"simulated": True})) != fingerprint(base)


# --- hostile input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 1}', '{"format": 9, "system": {"a": 1}}', "nonsense", "[" * 100_000]
)
def test_what_is_no_document_is_one_message(text: str):
    with pytest.raises(InputError) as caught:
        read_document(text, where="there")
    assert caught.value.where == "there"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = ["system", "grants", "nvidia", "pci", "iommu", "kernel_log", "engine", "disks", "ports"]


@settings(max_examples=40, deadline=None)
@given(section=st.sampled_from(SECTIONS), value=JSON)
def test_a_section_of_any_shape_never_breaks_the_reader(section: str, value: Any):
    raw = examples.document(2)
    raw["host"] = {**raw["host"], section: value}
    try:
        report = judge(examples.record(raw))
    except InputError:
        assert section == "system"
    else:
        assert report.result.checks


@settings(max_examples=40, deadline=None)
@given(field=st.sampled_from(["nvml", "devices", "idle_before", "idle_after", "image"]), value=JSON)
def test_a_field_of_any_shape_never_breaks_the_judgement(field: str, value: Any):
    assert judge(examples.record({**examples.document(2), field: value})).result.checks


@pytest.mark.parametrize("rungs", [[{"ladder": "memory", "rung": 3}], [{"outcome": "ok"}]])
def test_a_rung_that_is_none_is_one_message(rungs: list[Any]):
    with pytest.raises(InputError, match="rung"):
        examples.record({**examples.document(1), "rungs": rungs})


@pytest.mark.parametrize(
    "text", ["", "<a/>", "<nvidia_smi_log>", '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log/>']
)
def test_what_is_not_nvidia_smi_is_refused(text: str):
    with pytest.raises(SmiError):
        read_smi(text)


@given(st.lists(st.text(max_size=60), max_size=5))
def test_any_kernel_log_is_read(lines: list[str]):
    assert len(read_kernel_log(lines)) <= len(lines)


def test_a_matrix_with_network_cards_and_colours():
    text = (
        "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m\nGPU0\t X \tNODE\tPHB\t0-31\n"
        "GPU1\tNODE\t X \tSYS\t0-31\nNIC0\tPHB\tSYS\t X\n"
    )
    cells = read_matrix(text)
    assert cells[0, 1] == cells[1, 0] == "NODE"


# --- states of machines --------------------------------------------------------------------------------------


def test_no_gpu_has_its_own_exit_code_and_sentence():
    raw = examples.document(
        0, source="host", nvidia={"smi": {"error": "nvidia-smi: No such file or directory"}}
    )
    raw["nvidia"]["cuda"] = {"rc": 0, "out": '{"error": "libcuda.so.1: cannot open"}'}
    report = judge(examples.record({**raw, "pci": []}))
    assert exit_code(report) == 3
    assert failing(report)[0].seen == "no NVIDIA GPU is to be seen here"


@pytest.mark.parametrize(
    ("driver", "smi", "said"),
    [
        ("nouveau", {"error": "absent"}, "no driver answers"),
        ("vfio-pci", {"error": "absent"}, "virtual machines"),
        ("nvidia", {"error": "did not end within 20 s", "hang": True}, "does not come back"),
        ("nvidia", {"rc": 9, "out": "NVIDIA-SMI has failed"}, "no driver answers"),
    ],
)
def test_a_card_without_a_working_driver(driver: str, smi: dict[str, Any], said: str):
    raw = examples.document(1, source="host", nvidia={"smi": smi})
    report = judge(examples.record({**raw, "pci": [{"address": "0000:01:00.0", "driver": driver}]}))
    assert exit_code(report) == 1
    assert said in failing(report)[0].seen


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"throttle_reasons": 0x8}, "clocks"),
        ({"throttle_reasons": 0x80}, "clocks"),
        ({"ecc_uncorrected": 3}, "ecc"),
        ({"remapped_rows": {"pending": 1, "failed": 0}}, "memory-rows"),
        ({"remapped_rows": {"pending": 0, "failed": 1}}, "memory-rows"),
    ],
)
def test_a_sick_gpu_fails(changed: dict[str, Any], name: str):
    raw = examples.document(1)
    raw["nvml"]["gpus"] = [examples.gpu(0, **changed)]
    assert [check.name for check in failing(judge(examples.record(raw)))] == [name]


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"grants": {"shm_bytes": 64 << 20}}, "shared-memory"),
        ({"nvidia": {"module_version": "570.86.10"}}, "driver-one-version"),
        (
            {"nvidia": {"proc_version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05"}},
            "driver-kind",
        ),
        ({"engine": {"cdi": [{"kind": "nvidia.com/gpu", "driver": ["570.1.2"]}]}}, "cdi-specification"),
    ],
)
def test_a_misfit_around_healthy_gpus_fails(sections: dict[str, Any], name: str):
    assert [check.name for check in failing(judge(examples.record(examples.document(2, **sections))))] == [name]


def test_out_of_memory_is_not_called_a_missing_feature():
    raw = examples.document(1)
    raw["rungs"] += [
        {"ladder": "memory", "rung": "create", "outcome": "error", "device": 0, "handle": "posix_fd",
         "rdma": False, "size": 2**29, "size_name": "workspace", "free": 2**27, "code": 2,
         "call": "cuMemCreate",
         "name": "OUT_OF_MEMORY"}
    ]  # fmt: skip
    (check,) = failing(judge(examples.record(raw)))
    assert check.seen == "out of memory at 512 MiB; free at that moment: 128 MiB: not a missing feature"


@pytest.mark.parametrize("outcome", ["wrong-data", "hang", "crash"])
def test_corrupt_memory_fails_with_any_handle(outcome: str):
    raw = examples.document(1)
    raw["rungs"].append(
        {
            "ladder": "memory",
            "rung": "import",
            "outcome": outcome,
            "device": 0,
            "handle": "posix_fd",
            "route": "pidfd",
            "wrong": 1,
        }
    )
    assert [check.name for check in failing(judge(examples.record(raw)))] == ["memory-ladder"]


def test_a_ladder_of_refusals_alone_is_inconclusive():
    raw = examples.document(1)
    raw["rungs"] = [rung for rung in raw["rungs"] if rung.get("handle") in {None, "fabric"}]
    check = next(each for each in judge(examples.record(raw)).result.checks if each.name == "memory-ladder")
    assert check.verdict is Verdict.INCONCLUSIVE


def test_a_gpu_that_stays_busy_fails():
    raw = examples.document(2)
    raw["idle_after"][1] = {"utilisation": 100, "power_mw": 120_000}
    (check,) = failing(judge(examples.record(raw)))
    assert check.seen == "a GPU did not come to rest after the ladders: GPU 1: 100 %, 120 W"


@pytest.mark.parametrize(
    ("sysfs", "nvml", "node"),
    [("1", [0], 1), ("-1", [0], 0), ("", [1], 1), ("", [0, 1], None), ("", None, None)],
    ids=["sysfs-wins", "sysfs-unset", "no-sysfs", "two-nodes", "nobody-knows"],
)
def test_a_numa_node_comes_from_sysfs_or_else_from_nvml(sysfs: str, nvml: list[int] | None, node: int | None):
    raw = examples.document(1)
    raw["host"]["pci"][0]["numa_node"] = sysfs
    raw["nvml"]["gpus"][0]["numa_nodes"] = nvml
    assert examples.record(raw).gpus[0].numa_node == node


@pytest.mark.parametrize("where", ["probe", "collector"])
def test_a_stand_in_is_recorded_wherever_it_was_seen(where: str):
    raw = examples.document(1)
    if where == "probe":
        raw["simulated"] = True
    else:
        raw["host"]["nvidia"]["cuda"] = {"rc": 0, "out": '{"init": 0, "simulated": true}'}
    report = judge(examples.record(raw))
    assert report.host.simulated
    assert SIMULATION in report.result.limitations


@pytest.mark.parametrize(("container", "outer"), [("", False), ("lxc", True)])
def test_a_limit_of_locked_memory_is_lifted_where_it_is_set(container: str, outer: bool):
    raw = examples.document(
        1, system={"outer_container": container}, grants={"shm_bytes": 2**37, "memlock_bytes": 2**23}
    )
    (advice,) = [each for each in judge(examples.record(raw)).recommendations if "memlock=-1" in each.advice]
    assert advice.evidence == "locked memory is limited to 8388608 B"
    assert ("lxc.prlimit.memlock: unlimited" in advice.advice) is outer


def test_advice_of_a_dual_socket_pcie_host():
    raw = examples.document(8, iommu={"groups": 9, "domains": {"DMA": 9}})
    for function in raw["host"]["pci"]:
        function["bridges"] = [{"acs_control": 0x1D}]
    advice = judge(examples.record(raw)).recommendations
    text = {each.topic + ": " + each.advice for each in advice}
    assert any("boot with iommu=pt" in line for line in text)
    assert any("ACS request" in line for line in text)
    assert any("TP4" in line for line in text)
    assert any("one-shot over CUDA IPC" in line for line in text)
    assert all(each.evidence for each in advice)


@pytest.mark.parametrize(
    ("push", "pull", "advice", "urgency"),
    [(2.6, 52.0, "pull", Urgency.MUST), (50.0, 42.0, "push", Urgency.MAY)],
)
def test_push_or_pull_is_measured(push: float, pull: float, advice: str, urgency: Urgency):
    raw = examples.document(2)
    for rung in raw["rungs"]:
        if rung["rung"] == "speed":
            rung["values"] = {"push_gbps": push, "pull_gbps": pull}
    found = next(each for each in judge(examples.record(raw)).recommendations if each.topic == "push or pull")
    assert (found.advice, found.urgency) == (advice, urgency)


def test_a_host_without_peer_access_is_told_to_use_shared_memory():
    raw = examples.document(2)
    raw["rungs"] = [
        {**rung, "outcome": "unusable"} if rung["rung"] == "can-access" else rung
        for rung in raw["rungs"] if rung["rung"] not in {"enable", "push", "pull", "speed"}
    ]  # fmt: skip
    report = judge(examples.record(raw))
    assert report.ladders["pair"] is Health.UNUSABLE
    assert report.result.verdict is Verdict.PASS
    assert "NCCL_P2P_DISABLE=1" in report.recommendations[0].advice


# --- fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "verdict", "said"),
    [
        (FitRequest(weights_bytes=60 * GIB), FitVerdict.COMPATIBLE, ""),
        (FitRequest(weights_bytes=120 * GIB), FitVerdict.NOT, "needs 123.0 GiB on each GPU"),
        (FitRequest(weights_bytes=120 * GIB, gpus=2), FitVerdict.COMPATIBLE, ""),
        (FitRequest(weights_bytes=10 * GIB, gpus=4), FitVerdict.NOT, "needs 4 GPU(s)"),
        (FitRequest(weights_bytes=10 * GIB, image_bytes=4096 * GIB), FitVerdict.NOT, "GiB of disk"),
    ],
)
def test_fit_on_two_cards(request_: FitRequest, verdict: FitVerdict, said: str):
    answer = fit(examples.record(examples.document(2)), load_stack("cu130", ROOT).stack, request_)
    assert answer.verdict is verdict
    assert said in " ".join(answer.reasons)


def test_fit_refuses_other_capabilities_and_old_drivers_and_reserves_optional_targets():
    stack = load_stack("cu130", ROOT).stack
    small = FitRequest(weights_bytes=10 * GIB)
    assert fit(recorded("h200"), stack, small).verdict is FitVerdict.NOT
    raw = examples.document(1)
    raw["nvml"]["driver"] = "570.86.10"
    assert "CUDA 13.0 of the image needs 580.65.06" in " ".join(fit(examples.record(raw), stack, small).reasons)
    raw = examples.document(1)
    raw["nvml"]["gpus"] = [examples.gpu(0, name="NVIDIA GB10", compute_capability="12.1")]
    assert fit(examples.record(raw), stack, small).verdict is FitVerdict.RUNNABLE


# --- tables --------------------------------------------------------------------------------------------------


def test_the_tables_hold_what_they_promise():
    assert codes().results[800].on("container").endswith("the CDI device for it")
    assert codes().results[217].on("vm") != codes().results[217].on("bare")
    assert xids()[79].state == "hardware"
    assert len({line.id for line in kernel_lines()}) == len(kernel_lines())
    assert requirements().capability_driver["12.0"] == "570.26"

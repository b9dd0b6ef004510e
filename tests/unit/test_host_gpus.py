"""What nvidia-smi says, and what follows from it for a swap."""

from __future__ import annotations

import os

import pytest

from tests.unit.host_examples import request
from tooling.errors import CheckError, InputError
from tooling.host import gpus, preflight
from tooling.host.gpus import Gpu, Holder
from tooling.host.request import Requirements
from tooling.host.state import Generation

TABLE = """\
0, GPU-aaaaaaaa-0000-0000-0000-000000000000, NVIDIA RTX PRO 6000 Blackwell, 580.95.05, 12.0, 4, 97887
1, GPU-bbbbbbbb-0000-0000-0000-000000000000, NVIDIA RTX PRO 6000 Blackwell, 580.95.05, 12.0, [N/A], [N/A]
"""
HERE = gpus.parse_gpus(TABLE)


def test_the_table_is_read():
    assert [gpu.index for gpu in HERE] == ["0", "1"]
    assert (HERE[0].used_mib, HERE[0].total_mib, HERE[1].total_mib) == (4, 97887, 0)
    with pytest.raises(CheckError, match="not understood"):
        gpus.parse_gpus("No devices were found")


def test_processes_are_read_and_prose_is_not():
    text = "GPU-aaaaaaaa-0000-0000-0000-000000000000, 4711, /opt/a, b/python\nNo running processes found\n"
    (holder,) = gpus.parse_holders(text)
    assert (holder.pid, holder.name) == (4711, "/opt/a, b/python")


def test_named_gpus_are_there():
    assert gpus.chosen(HERE, ["1", HERE[0].uuid]) == (HERE[1], HERE[0])
    with pytest.raises(CheckError, match="GPU 7 is not on this host"):
        gpus.chosen(HERE, ["7"])


@pytest.mark.parametrize(
    ("requirements", "lack"),
    [
        (Requirements("580.65.06", "sm_120", 2), ""),
        (Requirements("580.95.05", "sm_120f", 2), ""),
        (Requirements(), ""),
        (Requirements("580.100", "", 0), "older than 580.100"),  # as numbers, not as text
        (Requirements("590.1", "", 0), "older than 590.1"),
        (Requirements("", "sm_121", 0), "compute capability 12.0, the release is for 12.1"),
        (Requirements("", "sm_100a", 0), "the release is for 10.0"),
        (Requirements("", "", 8), "needs 8 GPUs, 2 are named"),
    ],
)
def test_what_the_host_lacks(requirements, lack):
    found = gpus.unmet(HERE, requirements, 2)
    assert (lack in " ".join(found)) if lack else found == []


class FakeSmi(gpus.Smi):
    """Answers as it is told; the program itself is a real one in the container tests."""

    def __init__(self, holders: list[Holder], used: int = 4) -> None:
        super().__init__()
        self._holders, self._used = holders, used

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(g.index, g.uuid, g.name, g.driver, g.capability, self._used, 97887) for g in HERE)

    def holders(self) -> tuple[Holder, ...]:
        return tuple(self._holders)


def test_a_stranger_on_the_gpus_is_named_before_anything_stops():
    own = FakeSmi([Holder(HERE[0].uuid, os.getpid(), "python")])
    with pytest.raises(CheckError, match=f"process {os.getpid()}, which is not ours"):
        preflight.check_strangers(own, preflight.check_gpus(own, request()), ["f" * 64])
    elsewhere = FakeSmi([Holder("GPU-other", os.getpid(), "python")])
    assert preflight.check_gpus(elsewhere, request()) == list(elsewhere.gpus())
    preflight.check_strangers(elsewhere, elsewhere.gpus(), [])


def test_a_gpu_that_stays_held_is_refused_by_process_or_by_memory():
    with pytest.raises(CheckError, match=r"by process 4711"):
        gpus.wait_free(FakeSmi([Holder(HERE[0].uuid, 4711, "python")]), ["0"], 0)
    with pytest.raises(CheckError, match="not to be seen from here") as caught:
        gpus.wait_free(FakeSmi([], used=90_000), ["0"], 0)
    assert "90000 of 97887 MiB" in caught.value.details[0]
    assert gpus.wait_free(FakeSmi([]), ["0"], 0) < 1


def test_a_missing_or_failing_nvidia_smi_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv(gpus.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(CheckError, match="not on this host"):
        gpus.Smi().gpus()
    wedged = tmp_path / "smi"
    wedged.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch' >&2\nexit 18\n"
    )
    wedged.chmod(0o755)
    monkeypatch.setenv(gpus.VARIABLE, str(wedged))
    with pytest.raises(CheckError, match="version mismatch"):
        gpus.Smi().holders()


def test_groups_share_neither_gpus_nor_ports():
    def other(**changes: object) -> Generation:
        return Generation(1, request(group="b", **changes), "sha256:" + "1" * 64, 0, "", "")

    apart = [{"address": "", "host": 1, "container": 1}]
    preflight.check_disjoint(HERE, request(), [other(contract__gpus=["2"], contract__ports=apart)])
    with pytest.raises(InputError, match="belongs to group b"):  # by index here, by UUID there
        preflight.check_disjoint(HERE, request(), [other(contract__gpus=[HERE[1].uuid], contract__ports=apart)])
    with pytest.raises(InputError, match="port 30000 belongs to group b"):
        preflight.check_disjoint(HERE, request(), [other(contract__gpus=["2"])])

"""Which GPUs a gate looks at: those of the engine, on a host that has more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tooling.gates.throughput.sampling import NvmlReader, chosen_gpus

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        (" 3 , 0 ", [3, 0]),
        ("GPU-bb33,GPU-aa1", [2, 0]),
        ("", []),
        ("1,7,2", [1]),
        ("1,-1,2", [1]),
        ("GPU-aa,1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(visible, chosen):
    assert chosen_gpus(UUIDS, visible) == chosen


def _nvml() -> SimpleNamespace:
    """Four GPUs of 100, 110, 120 and 130 W by NVML's functions."""
    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=UUIDS.__getitem__,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=50),
        nvmlDeviceGetPowerUsage=lambda handle: 100_000 + 10_000 * handle,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 600_000,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0,
        nvmlDeviceGetTemperature=lambda *_: 40,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 1000 * (handle + 1),
    )


def test_only_the_engines_gpus_are_sampled_and_keep_their_numbers():
    reader = NvmlReader(_nvml(), "2,3")
    assert [(sample.gpu, sample.power_w) for sample in reader.sample()] == [(2, 120.0), (3, 130.0)]
    assert reader.energy_j() == 7.0
    assert NvmlReader(_nvml()).energy_j() == 10.0


def test_no_gpu_left_is_nothing_sampled():
    reader = NvmlReader(_nvml(), "")
    assert reader.sample() == []
    assert reader.energy_j() is None

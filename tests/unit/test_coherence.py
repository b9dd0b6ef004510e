"""The rules over pins, with the cases from the field that they come from."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.errors import CheckError
from tooling.lock.coherence import KNOWN_FAULTS, Pin, check_coherence, load_known_faults, refuse_if_incoherent
from tooling.lock.cuda import Cuda, cuda_of, minor_constraints
from tooling.lock.requirements import parse_requirements
from tooling.stack.model import Platform

ROOT = Path(__file__).resolve().parents[2]
FAULTS = load_known_faults(ROOT / KNOWN_FAULTS)
PLATFORM = Platform(glibc="2.36", python="3.11")


def _pins(text: str) -> list[Pin]:
    return parse_requirements(text, Path("pins.txt"))


def _rules(text: str, **options: Any) -> dict[str, tuple[str, ...]]:
    findings = check_coherence(_pins(text), known_faults=FAULTS, **options)
    return {finding.rule: finding.packages for finding in findings}


def _case(name: str) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "cases" / f"{name}.yaml").read_text())
    return case


def test_case_cu12_torch_with_cu13_libraries():
    case = _case("lock-cu12-torch-with-cu13-libraries")
    found = _rules(case["input"]["text"])
    assert case["expected"]["verdict"] == "REFUSE"
    assert set(found["cuda-major"]) == {
        "nvidia-cuda-nvcc==13.3.33",
        "nvidia-cuda-nvrtc==13.3.33",
        "nvidia-cuda-runtime==13.3.29",
        "nvidia-cutlass-dsl-libs-cu13==4.5.2",
    }


def test_case_cu12_the_other_way_round():
    found = _rules("torch==2.11.0+cu130\nnvidia-cudnn-cu12==9.10.2\nnvidia-cublas==13.0.0.19")
    assert found == {"cuda-major": ("nvidia-cudnn-cu12==9.10.2",)}


def test_case_package_index_not_recorded():
    pin = Pin(name="flashinfer-cubin", version="0.6.14", index="")
    (finding,) = check_coherence([pin])
    assert finding.rule == "index"
    assert "cannot repeat it" in finding.what
    assert "keep the version" in finding.advice


def test_case_cudnn_wheel_without_a_sublibrary():
    assert "known-fault" in _rules("nvidia-cudnn-cu13==9.20.0.48")
    assert _rules("nvidia-cudnn-cu13==9.21.0.82") == {}


def test_case_cutlass_wheels_that_own_the_same_file():
    found = _rules("nvidia-cutlass-dsl-libs-base==4.5.2\nnvidia-cutlass-dsl-libs-cu13==4.5.2")
    assert found["known-fault"] == (
        "nvidia-cutlass-dsl-libs-base==4.5.2",
        "nvidia-cutlass-dsl-libs-cu13==4.5.2",
    )
    assert _rules("nvidia-cutlass-dsl-libs-base==4.8.0\nnvidia-cutlass-dsl-libs-cu13==4.8.0") == {}


def test_a_plain_resolution_of_the_engine_mixes_toolkit_minors():
    found = _rules(
        "nvidia-cuda-nvcc==13.5.37\nnvidia-nvvm==13.5.37\nnvidia-cuda-runtime==13.0.96\nnvidia-cublas==13.1.1.3",
        cuda="13.0",
    )
    assert found == {"cuda-minor": ("nvidia-cuda-nvcc==13.5.37", "nvidia-nvvm==13.5.37")}


def test_the_minor_is_torchs_where_no_stack_says():
    found = _rules("torch==2.9.1+cu130\nnvidia-cuda-nvrtc==13.0.88\nnvidia-nvjitlink==13.1.80")
    assert found == {"cuda-minor": ("nvidia-nvjitlink==13.1.80",)}


def test_a_stack_of_one_cuda_does_not_take_a_lock_of_another():
    assert "cuda-major" in _rules("torch==2.8.0+cu128\nnvidia-cudnn-cu12==9.10.2", cuda="13.0")
    assert "cuda-minor" in _rules("torch==2.12.0+cu132", cuda="13.0")


@pytest.mark.parametrize(
    ("text", "coherent"),
    [
        ("torch==2.14.1\ntorchvision==0.29.2\ntorchaudio==2.11.0", True),
        ("torch==2.9.1+cu130\ntorchvision==0.24.1+cu130\ntorchaudio==2.9.1+cu130", True),
        ("torch==2.9.1+cu130\ntorchvision==0.24.1+cu128", False),
        ("torch==2.14.1\ntorchvision==0.28.0", False),
        ("torch==2.9.1\ntorchaudio==2.8.0", False),
        ("torch==2.9.1\ntorchaudio==2.11.0", False),
    ],
)
def test_torch_family(text, coherent):
    assert ("torch-family" not in _rules(text)) is coherent


def test_flashinfer_parts_of_two_versions():
    assert "flashinfer" in _rules("flashinfer-python==0.6.16.post3\nflashinfer-cubin==0.6.13")
    assert _rules("flashinfer-python==0.6.4\nflashinfer-jit-cache==0.6.4+cu130", cuda="13.0") == {}


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl", True),
        ("sglang-0.5.23-cp38-abi3-manylinux_2_31_x86_64.whl", True),
        ("sglang-0.5.23-py3-none-any.whl", True),
        ("sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl", False),
        ("sglang-0.5.23-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("sglang-0.5.23-cp311-cp311-manylinux_2_34_aarch64.whl", False),
        ("sglang-0.5.22-py3-none-any.whl", False),
        ("sglang-0.5.23.tar.gz", False),
    ],
)
def test_tags(wheel, fits):
    findings = check_coherence([Pin(name="sglang", version="0.5.23", wheel=wheel)], platform=PLATFORM)
    assert (not findings) is fits


def test_a_package_pinned_twice_and_one_without_hash():
    pins = [Pin(name="a", version="1"), Pin(name="a", version="2"), Pin(name="b", version="1", hashed=False)]
    assert {finding.rule for finding in check_coherence(pins)} == {"duplicate", "hash"}


def test_no_pins_at_all_prove_nothing():
    with pytest.raises(CheckError, match="empty lock proves nothing"):
        check_coherence([])


def test_an_incoherent_set_is_one_error_with_every_package():
    findings = check_coherence(_pins("torch==2.11.0+cu129\nnvidia-cuda-nvcc==13.3.33"))
    with pytest.raises(CheckError) as caught:
        refuse_if_incoherent(findings, "x.lock.txt")
    assert "nvidia-cuda-nvcc==13.3.33" in str(caught.value)
    assert "one CUDA major" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "version", "cuda"),
    [
        ("torch", "2.11.0+cu129", Cuda(12, 9)),
        ("torch", "2.14.1", None),
        ("torch", "2.13.0+cpu", None),
        ("sgl-kernel", "0.3.21+cu130", Cuda(13, 0)),
        ("flashinfer-python", "0.6.18+1ac6942.cu133", Cuda(13, 3)),
        ("nvidia-cuda-nvrtc-cu12", "12.9.86", Cuda(12, 9)),
        ("nvidia-cuda-runtime", "13.0.96", Cuda(13, 0)),
        ("nvidia-cudnn-cu13", "9.24.0.43", Cuda(13)),
        ("nvidia-cufft", "12.0.0.61", Cuda(13)),
        ("nvidia-cublas-cu12", "12.8.4.1", Cuda(12)),
        ("cupy-cuda12x", "13.6.0", Cuda(12)),
        ("cuda-bindings", "12.9.4", Cuda(12)),
        ("nvidia-ml-py", "13.615.71", None),
        ("nvidia-cutlass-dsl-libs-base", "4.8.0", None),
        ("nvidia-mathdx", "25.6.0", None),
    ],
)
def test_cuda_of(name, version, cuda):
    assert cuda_of(name, version) == cuda


def test_the_whole_toolkit_is_constrained():
    constraints = minor_constraints("13.0")
    for part in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-cccl", "nvjitlink", "cuda-runtime", "cuda-nvrtc"):
        assert f"nvidia-{part}==13.0.*" in constraints


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==2.*", "not a requirement !"])
def test_a_line_that_is_no_pin_is_refused(line):
    with pytest.raises(Exception, match="not a"):
        _pins(line)

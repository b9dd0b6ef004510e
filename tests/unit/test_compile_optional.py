"""Optional kernel modules: which are chosen, what the build step is asked for, where its result is read."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.test_build import ADDED, BASE, LOCK
from tooling.build.context import render_dockerfile
from tooling.build.job import Job
from tooling.build.kernels import kernel_inputs
from tooling.build.optional import chosen, with_module
from tooling.errors import InputError
from tooling.stack import load_stack
from tooling.stack.model import Kernels

ROOT = Path(__file__).resolve().parents[2]
STACK = load_stack("cu130", ROOT).stack


def test_the_default_image_does_not_compile_what_is_optional():
    assert STACK.kernels is not None
    assert STACK.kernels.optional == ("trtllm_comm",)
    assert "trtllm_comm" not in STACK.kernels.names
    text = render_dockerfile(STACK, BASE, ADDED, ROOT / "images", {}, ca=False)
    assert "trtllm_comm" not in text


def test_all_optional_modules_or_those_that_are_named():
    assert chosen(STACK, []) == ("trtllm_comm",)
    assert chosen(STACK, ["trtllm_comm"]) == ("trtllm_comm",)
    with pytest.raises(InputError, match="not optional kernel modules of cu130: pcie_ipc_comm"):
        chosen(STACK, ["pcie_ipc_comm", "trtllm_comm"])


def test_a_stack_without_optional_modules_says_so():
    with pytest.raises(InputError, match="stack cpu has no optional kernel modules"):
        chosen(load_stack("cpu", ROOT).stack, [])
    with pytest.raises(InputError, match="stack cpu compiles no kernels"):
        with_module(load_stack("cpu", ROOT).stack, "trtllm_comm")


def test_a_module_has_a_step_of_its_own_that_a_build_can_end_at():
    alone = with_module(STACK, "trtllm_comm")
    text = render_dockerfile(alone, BASE, ADDED, ROOT / "images", {}, ca=False)
    assert "FROM kernel-sources AS kernel-trtllm_comm\n" in text
    assert "compile_kernel.py flashinfer.jit.comm trtllm_comm /out" in text
    assert "pcie_ipc_comm" not in text


def test_moving_the_name_to_modules_finds_what_was_compiled_before():
    """The hash of the inputs, under which a compiled module is kept, is the same both ways."""
    alone = kernel_inputs(with_module(STACK, "trtllm_comm"), LOCK, BASE, (), ROOT / "images")
    assert STACK.kernels is not None
    modules = (*STACK.kernels.modules, "trtllm_comm")
    kernels = STACK.kernels.model_copy(update={"modules": modules, "optional": ()})
    whole = kernel_inputs(STACK.model_copy(update={"kernels": kernels}), LOCK, BASE, (), ROOT / "images")
    assert alone.keys() == {"trtllm_comm"}
    assert whole["trtllm_comm"] == alone["trtllm_comm"]
    assert len(set(whole.values())) == len(whole)


def test_a_bound_on_spills_is_of_one_module():
    kernels = Kernels.model_validate(
        {"architecture": "12.0a", "modules": ["one", "two"], "spill_bytes": {"two": 20}}
    )
    assert [kernels.spill_bytes.get(name, 0) for name in kernels.modules] == [0, 20]
    with pytest.raises(ValidationError, match="spill_bytes names three, which is no module here"):
        Kernels.model_validate({"architecture": "12.0a", "modules": ["one"], "spill_bytes": {"three": 20}})


@pytest.mark.parametrize("where", ["modules", "native"])
def test_a_module_cannot_be_both_optional_and_there(where: str):
    there = {"modules": ["one"]} | ({"native": {"two": "12.0f"}} if where == "native" else {})
    name = "two" if where == "native" else "one"
    with pytest.raises(ValidationError, match="a module is listed twice"):
        Kernels.model_validate({"architecture": "12.0a", "optional": [name], **there})


def test_logs_and_dockerfile_of_a_step_do_not_replace_those_of_the_image(tmp_path: Path):
    fields = {"stack": STACK, "client": None, "builder": None, "directory": tmp_path, "temporary": tmp_path}
    whole = Job(**fields, started="2026-01-01T00:00:00+0000")  # type: ignore[arg-type]
    step = Job(**fields, started="2026-01-01T00:00:00+0000", target="kernel-one")  # type: ignore[arg-type]
    assert whole.dockerfile == tmp_path / "Dockerfile"
    assert step.dockerfile == tmp_path / "Dockerfile.kernel-one"
    assert json.dumps(str(step.log)).endswith('.log"')

import re
import struct
from pathlib import Path

import pytest

from tooling.census.bench import find_cuobjdump
from tooling.census.kernels import KernelLimits, check_kernels
from tooling.census.reader.cubin import KernelUsage, read_kernels
from tooling.census.reader.elf import read_elf
from tooling.census.reader.span import MalformedError, Span
from tooling.errors import InputError
from tooling.gates.records import Check, Verdict
from tooling.runner import run

DATA = Path(__file__).parents[1] / "data" / "census"
CUBINS = ("kernels_120a.cubin", "kernels_90a_cuda12.cubin", "adds_120f.cubin", "stub_120a.cubin")
_SECTION_ROW = 64
_SIZE_FIELD = 32


def usage(name: str) -> dict[str, KernelUsage]:
    return {kernel.name: kernel for kernel in read_kernels(Span((DATA / name).read_bytes()))[1]}


def checks(path: Path, device: str = "12.0", **limits: object) -> dict[str, Check]:
    return {check.name: check for check in check_kernels(path, device, KernelLimits.model_validate(limits))[1]}


@pytest.mark.parametrize("name", CUBINS)
def test_same_resources_as_cuobjdump(name: str):
    printed = run([str(find_cuobjdump()), "--dump-resource-usage", str(DATA / name)]).stdout
    expected = {
        kernel: tuple(map(int, numbers))
        for kernel, *numbers in re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", printed)
    }
    found = {kernel.name: (kernel.registers, kernel.stack, kernel.shared) for kernel in usage(name).values()}
    assert expected
    assert found == expected


def test_spills_are_the_bytes_that_ptxas_reports():
    spilling = usage("kernels_120a.cubin")["spills"]
    assert spilling.spill_stores > 0
    assert spilling.spill_loads >= spilling.spill_stores
    assert spilling.stack >= spilling.spill_stores
    assert usage("kernels_120a.cubin")["calls_a_function"].spill_stores == 0


def test_static_shared_memory_and_the_part_that_is_the_drivers():
    kernel = usage("kernels_120a.cubin")["uses_shared"]
    assert kernel.shared - kernel.shared_reserved == 256 * 4


def test_kernels_that_compiled_to_nothing_fail_and_the_least_useful_one_does_not():
    found = checks(DATA / "kernels_120a.cubin", spill_bytes=1 << 20)["kernels-not-empty"]
    assert found.verdict is Verdict.FAIL
    assert [line.partition(":")[0] for line in found.details] == [
        "emptied_by_a_guard",
        "only_dependent_launch",
        "only_traps",
    ]


def test_kernels_that_are_meant_to_be_empty_pass():
    allowed = ("emptied_by", "only_dependent", "only_traps")
    assert (
        checks(DATA / "kernels_120a.cubin", may_be_empty=allowed)["kernels-not-empty"].verdict is Verdict.PASS
    )


def test_the_kernel_that_cub_leaves_empty_on_purpose_passes(tmp_path: Path):
    data = (DATA / "kernels_120a.cubin").read_bytes()
    assert b"emptied_by_a_guard" in data
    path = tmp_path / "cub.cubin"
    path.write_bytes(data.replace(b"emptied_by_a_guard", b"my_EmptyKernelIvEv"))
    found = checks(path)["kernels-not-empty"]
    assert [line.partition(":")[0] for line in found.details] == ["only_dependent_launch", "only_traps"]


def test_a_kernel_without_exit_fails():
    found = checks(DATA / "kernels_120a.cubin")["kernels-can-end"]
    assert found.verdict is Verdict.FAIL
    assert found.details == ("only_traps: 1 traps",)


def test_a_kernel_that_only_prints_that_it_was_left_out_fails():
    found = checks(DATA / "stub_120a.cubin")
    assert found["no-stub-messages"].verdict is Verdict.FAIL
    assert found["kernels-not-empty"].verdict is Verdict.PASS
    assert checks(DATA / "adds_120f.cubin")["no-stub-messages"].verdict is Verdict.PASS


def test_spills_over_the_limit_fail():
    most = max(kernel.spill_loads for kernel in usage("kernels_120a.cubin").values())
    assert checks(DATA / "kernels_120a.cubin", spill_bytes=most)["spills"].verdict is Verdict.PASS
    found = checks(DATA / "kernels_120a.cubin", spill_bytes=most - 1)["spills"]
    assert found.verdict is Verdict.FAIL
    assert found.details[0].startswith("spills: ")


def test_multimem_fails_in_machine_code_and_in_ptx():
    machine = checks(DATA / "kernels_120a.cubin")["instructions"]
    assert machine.verdict is Verdict.FAIL
    assert machine.details == ("reduces_by_multicast: 1 multimem instructions",)
    text = checks(DATA / "kernels_120a.ptx")["instructions"]
    assert text.verdict is Verdict.FAIL
    assert "multimem.ld_reduce" in text.details[0]


@pytest.mark.parametrize("line", ["wgmma.fence.sync.aligned;", "tcgen05.wait::ld.sync.aligned;"])
def test_instructions_of_other_chips_in_ptx_fail(tmp_path: Path, line: str):
    path = tmp_path / "x.ptx"
    path.write_text(f".version 9.0\n.target sm_120\n.address_size 64\n// {line}\n")
    assert checks(path)["instructions"].verdict is Verdict.PASS
    path.write_text(f".version 9.0\n.target sm_120\n.address_size 64\n{line}\n")
    assert checks(path)["instructions"].verdict is Verdict.FAIL


def test_shared_memory_over_what_a_block_can_have_fails(tmp_path: Path):
    data = bytearray((DATA / "kernels_120a.cubin").read_bytes())
    index = [section.name for section in read_elf(Span(bytes(data))).sections].index(".nv.shared.uses_shared")
    table = struct.unpack_from("<Q", data, 40)[0]
    for size, verdict in ((101_376, Verdict.PASS), (101_377, Verdict.FAIL)):
        reserved = usage("kernels_120a.cubin")["uses_shared"].shared_reserved
        struct.pack_into("<Q", data, table + index * _SECTION_ROW + _SIZE_FIELD, size + reserved)
        path = tmp_path / "big.cubin"
        path.write_bytes(data)
        assert checks(path)["shared-memory"].verdict is verdict


def test_a_device_whose_shared_memory_is_unknown_is_not_passed():
    assert checks(DATA / "adds_120f.cubin", "12.9")["kernels-found"].verdict is Verdict.FAIL
    assert checks(DATA / "adds_120f.cubin", "12.9")["shared-memory"].verdict is Verdict.INCONCLUSIVE


def test_compressed_kernels_in_a_library_are_read_and_other_targets_left_alone():
    kernels, found = check_kernels(DATA / "two_containers.so", "12.0", KernelLimits())
    assert [(kernel.name, kernel.target) for kernel in kernels] == [("adds", "12.0a")]
    assert {check.verdict for check in found} == {Verdict.PASS}
    expanded = {
        kernel.name: kernel for kernel in check_kernels(DATA / "kernels.fatbin", "12.0", KernelLimits())[0]
    }
    bare = {name: kernel for name, kernel in usage("kernels_120a.cubin").items() if name != "spills"}
    assert set(expanded) == {*bare, "spills"}
    assert {name: expanded[name].registers for name in bare} == {
        name: kernel.registers for name, kernel in bare.items()
    }


def test_no_kernel_for_the_target_fails():
    found = checks(DATA / "kernels_90a_cuda12.cubin")["kernels-found"]
    assert found.verdict is Verdict.FAIL
    assert "nothing was checked" in found.seen


def test_a_payload_that_lies_about_its_size_is_an_error(tmp_path: Path):
    data = bytearray((DATA / "kernels.fatbin").read_bytes())
    data[16 + 56] ^= 1
    path = tmp_path / "x.fatbin"
    path.write_bytes(data)
    with pytest.raises(InputError, match="expand"):
        checks(path)


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF"])
def test_files_that_hold_no_kernels_are_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        checks(path)


def test_a_host_library_is_not_a_cubin():
    with pytest.raises(MalformedError, match="not a cubin"):
        read_kernels(Span((DATA / "host_only.so").read_bytes()))

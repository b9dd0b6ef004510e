"""Files that lie: whatever the bytes, the reader answers with device code or with one clear error, soon."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tooling.census.reader import elf, fatbin
from tooling.census.reader.cubin import read_kernels
from tooling.census.reader.files import DeviceCode, kind_of, read_bytes
from tooling.census.reader.span import MalformedError, Span

DATA = Path(__file__).parents[1] / "data" / "census"
NAMES = (
    "embedded.so",
    "two_containers.so",
    "left_behind.so",
    "static.a",
    "several.fatbin",
    "kernels.fatbin",
    "adds_120f.cubin",
)
FILES = {name: (DATA / name).read_bytes() for name in NAMES}
CUBINS = {
    name: (DATA / name).read_bytes() for name in ("adds_120f.cubin", "stub_120a.cubin", "kernels_120a.cubin")
}

lies = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8))),
    min_size=1,
    max_size=6,
)
fuzzed = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def lied(data: bytes, changes: list[tuple[int, bytes]], length: int) -> bytes:
    changed = bytearray(data)
    for where, what in changes:
        at = where % len(changed)
        changed[at : at + len(what)] = what
    return bytes(changed[:length])


def answer(data: bytes) -> DeviceCode | str:
    kind = kind_of(data[:8])
    if kind is None:
        return "other"
    try:
        return read_bytes(data, kind)
    except MalformedError as error:
        return str(error)


def well_formed(result: DeviceCode | str, size: int) -> bool:
    """An error has words; an answer stays inside the file."""
    if isinstance(result, str):
        return bool(result) and "\n" not in result
    return all(
        0 <= container.offset <= entry.header_offset <= entry.payload_offset <= entry.end <= size
        for container in result.containers
        for entry in container.entries
    )


@fuzzed
@given(st.sampled_from(NAMES), lies, st.integers(0, 40_000))
def test_a_real_file_with_lies_in_it(name: str, changes: list[tuple[int, bytes]], length: int):
    data = lied(FILES[name], changes, length)
    assert well_formed(answer(data), len(data))


@fuzzed
@given(st.sampled_from(NAMES), st.integers(0, 20), st.integers(0, 255))
def test_a_lie_in_the_first_headers(name: str, index: int, value: int):
    data = bytearray(FILES[name])
    data[4 + index * 3] = value
    assert well_formed(answer(bytes(data)), len(data))


@fuzzed
@given(st.sampled_from([b"\x7fELF", b"!<arch>\n", fatbin.MAGIC]), st.binary(max_size=400))
def test_noise_behind_a_good_beginning(magic: bytes, noise: bytes):
    data = magic + noise
    assert well_formed(answer(data), len(data))


@fuzzed
@given(st.sampled_from(sorted(CUBINS)), lies)
def test_a_cubin_with_lies_gives_kernels_or_an_error(name: str, changes: list[tuple[int, bytes]]):
    data = lied(CUBINS[name], changes, len(CUBINS[name]))
    try:
        target, kernels = read_kernels(Span(data))
    except MalformedError as error:
        target, kernels = str(error), ()
    assert target
    assert all(kernel.registers > 0 and kernel.name for kernel in kernels)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_anywhere_is_an_error_and_never_a_shorter_answer(name: str):
    whole = FILES[name]
    complete = answer(whole)
    assert isinstance(complete, DeviceCode)
    for length in range(8, len(whole) - 1, max(1, len(whole) // 97)):
        cut = answer(whole[:length])
        if isinstance(cut, DeviceCode):
            assert cut.kind == "archive" or cut.containers == complete.containers


def entry(kind: int = 2, header: int = 64, payload: int = 0, stored: int = 0) -> bytes:
    return struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, header, payload, stored, 0, 8, 1, 120, 0, 0, 0x11, 0, 0)


def container(body: bytes, size: int | None = None, version: int = 1, header: int = 16) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(body) if size is None else size) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (container(entry(), size=1 << 60), "outside"),
        (container(entry(header=0)), "header of 0 bytes"),
        (container(entry(payload=1 << 63)), "ends at"),
        (container(entry(payload=8, stored=9) + bytes(8)), "9 bytes stored in 8"),
        (container(entry()[:40]), "cut off"),
        (container(entry(), version=2), "version 2"),
        (container(entry(), header=8), "header of 8"),
        (container(entry()) + b"garbage!", "no fat binary container at|cut off"),
    ],
    ids=["size", "no-header", "payload", "stored", "cut", "version", "header", "garbage"],
)
def test_each_lie_of_a_container_has_its_message(data: bytes, message: str):
    with pytest.raises(MalformedError, match=message):
        read_bytes(data, "fatbin")


def test_empty_containers_and_padding_are_fine():
    code = read_bytes(container(b"") + bytes(4096) + container(entry()) + bytes(24), "fatbin")
    assert [len(item.entries) for item in code.containers] == [0, 1]


def test_a_kind_of_entry_that_nobody_knows_is_named_by_its_number():
    [found] = read_bytes(container(entry(kind=64)), "fatbin").containers[0].entries
    assert found.kind == "kind-64"


def test_more_entries_than_any_library_has_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fatbin, "MAX_ENTRIES", 3)
    assert read_bytes(container(entry() * 3), "fatbin").containers
    with pytest.raises(MalformedError, match="more than 3"):
        read_bytes(container(entry() * 4), "fatbin")


def test_more_sections_than_any_object_has_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elf, "MAX_SECTIONS", 3)
    with pytest.raises(MalformedError, match="more than 3"):
        read_bytes(FILES["two_containers.so"], "elf")


def test_a_library_without_section_table_is_not_called_free_of_device_code():
    data = bytearray(FILES["two_containers.so"])
    data[40:48] = bytes(8)
    with pytest.raises(MalformedError, match="no section table"):
        read_bytes(bytes(data), "elf")


def test_ptx_without_directives_is_an_error():
    with pytest.raises(MalformedError, match="a PTX file without"):
        read_bytes(b"// nothing\n", "ptx")

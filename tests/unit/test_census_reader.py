import os
from pathlib import Path

import pytest

from tooling.census.bench import find_cuobjdump, list_command, listing, parse_listing
from tooling.census.reader.fatbin import find_containers
from tooling.census.reader.files import DeviceCode, kind_of, read_bytes, read_file
from tooling.census.reader.scan import scan
from tooling.census.reader.span import MalformedError, Span
from tooling.runner import run

DATA = Path(__file__).parents[1] / "data" / "census"
WITH_CODE = sorted(
    path
    for path in DATA.iterdir()
    if path.suffix in (".so", ".a", ".fatbin", ".cubin") and path.stem not in ("host_only", "embedded")
)


def read(name: str) -> DeviceCode:
    code = read_file(DATA / name)
    assert code is not None
    return code


def targets(code: DeviceCode) -> list[tuple[str, str]]:
    return [(entry.kind, entry.arch) for container in code.containers for entry in container.entries]


def test_a_fat_binary_lists_each_target_with_its_suffix():
    code = read("several.fatbin")
    assert code.kind == "fatbin"
    assert targets(code) == [("sass", "12.0a"), ("sass", "12.1a"), ("sass", "8.0"), ("ptx", "9.0")]


def test_family_specific_is_told_from_plain_and_arch_specific():
    assert sorted(targets(read("family.fatbin"))) == [("ptx", "12.0f"), ("sass", "12.0f")]
    assert sorted(targets(read("plain.fatbin"))) == [("ptx", "12.0a"), ("sass", "12.0")]


def test_ptx_has_the_isa_version_of_its_compiler():
    [entry] = read("ptx_only.fatbin").containers[0].entries
    assert (entry.kind, entry.arch, entry.version, entry.compression) == ("ptx", "12.0", (9, 0), "")


def test_compressed_entries_say_so_and_have_both_sizes():
    for entry in read("several.fatbin").containers[0].entries:
        assert entry.compression == "zstd"
        assert entry.stored_size < entry.expanded_size
        assert entry.stored_size <= entry.payload_size


def test_every_container_of_a_shared_library_is_found():
    code = read("two_containers.so")
    assert code.kind == "elf"
    assert [len(container.entries) for container in code.containers] == [2, 1]
    assert targets(code) == [("sass", "12.0a"), ("ptx", "9.0"), ("sass", "9.0a")]


def test_offsets_lead_to_the_payload():
    data = (DATA / "two_containers.so").read_bytes()
    for container in read("two_containers.so").containers:
        assert data[container.offset : container.offset + 4] == b"\x50\xed\x55\xba"
        at = container.offset + container.header_size
        for entry in container.entries:
            assert entry.header_offset == at
            assert data[entry.payload_offset : entry.payload_offset + 4] == b"\x28\xb5\x2f\xfd"  # zstd
            at = entry.end
        assert at == container.offset + container.header_size + container.size


def test_relocatable_code_left_in_a_library_is_kept_apart():
    sections = {container.section for container in read("left_behind.so").containers}
    assert sections == {".nv_fatbin", "__nv_relfatbin"}
    document = scan(str(DATA))
    [library] = [item for item in document["libraries"] if item["path"] == "left_behind.so"]
    assert {(item["arch"], item["place"]) for item in library["targets"]} == {
        ("9.0", "loadable"),
        ("9.0", "relocatable"),
        ("12.0", "relocatable"),
    }


def test_code_among_other_data_is_found_where_cuobjdump_sees_none():
    code = read("embedded.so")
    assert {container.section for container in code.containers} == {".cask_resource"}
    assert sorted(targets(code)) == [("ptx", "12.0a"), ("sass", "12.0")]
    assert listing(code) == {}
    [library] = [item for item in scan(str(DATA))["libraries"] if item["path"] == "embedded.so"]
    assert {item["place"] for item in library["targets"]} == {"embedded"}


def test_what_only_looks_like_a_container_among_other_data_is_passed_over():
    fake = b"\x50\xed\x55\xba\x01\x00\x10\x00"
    real = (DATA / "plain.fatbin").read_bytes()
    data = fake + b"\xff" * 8 + real + fake + bytes(8) + fake[:6]
    assert [container.offset for container in find_containers(Span(data), ".ldata")] == [16]


def test_archive_members_are_named_also_when_the_name_is_long():
    members = [container.member for container in read("static.a").containers]
    assert members == ["a_member_with_a_name_longer_than_its_field.o", "two.o"]


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("kernels_120a.cubin", "12.0a"),
        ("adds_120f.cubin", "12.0f"),
        ("kernels_90a_cuda12.cubin", "9.0a"),
        ("stub_120a.cubin", "12.0a"),
    ],
)
def test_a_bare_cubin_has_one_target(name: str, arch: str):
    code = read(name)
    assert code.kind == "cubin"
    assert targets(code) == [("sass", arch)]


def test_ptx_text_is_read_by_its_directives():
    code = read("kernels_120a.ptx")
    assert targets(code) == [("ptx", "12.0a")]
    assert code.containers[0].entries[0].version == (9, 0)


def test_a_host_library_has_no_device_code_and_other_files_are_none():
    assert read("host_only.so").containers == ()
    assert read_file(DATA / "adds.cu") is None
    assert kind_of(b"") is None


def test_thirty_two_bit_and_big_endian_libraries_are_read():
    header = b"\x7fELF\x01\x02\x01" + bytes(9)
    fields = [
        (3, 2),
        (20, 2),
        (1, 4),
        (0, 4),
        (0, 4),
        (52, 4),
        (0, 4),
        (52, 2),
        (0, 2),
        (0, 2),
        (40, 2),
        (2, 2),
        (1, 2),
    ]
    names = b"\0.shstrtab\0"
    null = bytes(40)
    row = b"".join(value.to_bytes(4, "big") for value in (1, 3, 0, 0, 52 + 80, len(names), 0, 0, 1, 0))
    data = header + b"".join(value.to_bytes(size, "big") for value, size in fields) + null + row + names
    assert read_bytes(data, "elf") == DeviceCode("elf", len(data), ())


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.name)
def test_same_answer_as_cuobjdump(path: Path):
    printed = run(list_command(find_cuobjdump(), path, "--list-elf", "--list-ptx")).stdout
    expected = parse_listing(printed)
    assert expected
    assert listing(read_file(path)) == expected


def test_a_thin_archive_is_refused():
    with pytest.raises(MalformedError, match="thin archive"):
        read_bytes(b"!<thin>\n", "archive")


def test_the_scan_lists_what_it_cannot_read(tmp_path: Path):
    (tmp_path / "cut.so").write_bytes((DATA / "two_containers.so").read_bytes()[:5000])
    (tmp_path / "good.so").write_bytes((DATA / "two_containers.so").read_bytes())
    document = scan(str(tmp_path))
    assert [item["path"] for item in document["libraries"]] == ["good.so"]
    [unread] = document["unread"]
    assert unread["path"] == "cut.so"
    assert "cut off" in unread["reason"] or "outside" in unread["reason"]
    assert document["files_seen"] == 2


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs", b"MZ\x90\0", bytes(64)])
@pytest.mark.parametrize("name", ["libx.so", "libx.so.1.2", "libx.a", "x.cubin"])
def test_a_file_named_like_a_library_that_is_none_is_listed(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    [unread] = scan(str(tmp_path))["unread"]
    assert unread["path"] == name
    assert "named like a library" in unread["reason"]


def test_a_linker_script_is_no_library(tmp_path: Path):
    (tmp_path / "libm.so").write_text("/* GNU ld script */\nGROUP ( /lib/libm.so.6 )\n")
    (tmp_path / "libncurses.so").write_text("INPUT(libncurses.so.6 -ltinfo)\n")
    document = scan(str(tmp_path))
    assert document["libraries"] == document["unread"] == []


def test_the_scan_never_follows_a_link_nor_opens_a_pipe(tmp_path: Path):
    inside = tmp_path / "root"
    (inside / "loop").mkdir(parents=True)
    (inside / "loop" / "again").symlink_to(inside)
    (inside / "out.so").symlink_to(DATA / "two_containers.so")
    (inside / "away").symlink_to(DATA)
    os.mkfifo(inside / "pipe.so")
    document = scan(str(inside))
    assert document["files_seen"] == 0
    assert document["libraries"] == document["unread"] == []


def test_a_name_that_is_not_unicode_comes_out_escaped(tmp_path: Path):
    (tmp_path / b"bad\xff.so".decode("utf-8", "surrogateescape")).write_bytes(
        (DATA / "host_only.so").read_bytes()
    )
    assert scan(str(tmp_path))["libraries"][0]["path"] == "bad\\xff.so"


def test_folders_can_be_left_out(tmp_path: Path):
    for name in ("proc", "lib"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.so").write_bytes((DATA / "host_only.so").read_bytes())
    assert [item["path"] for item in scan(str(tmp_path), ["proc"])["libraries"]] == ["lib/x.so"]

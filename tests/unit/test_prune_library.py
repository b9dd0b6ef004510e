"""Pruning a library that the loader really loads: same program, same kept code, same addresses, less file."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.prune_samples import CONTAINERS, Code, build_library, container, entry
from tooling.census.bench import find_cuobjdump
from tooling.census.reader.compatibility import parse
from tooling.census.reader.fatbin import read_containers
from tooling.census.reader.files import read_file
from tooling.census.reader.span import Span
from tooling.prune import plan as plan_module
from tooling.prune.containers import Policy, new_head, slim
from tooling.prune.layout import Range, read_layout, shrink
from tooling.prune.plan import make_plan
from tooling.prune.refusal import NotUnderstoodError
from tooling.prune.rewrite import rewrite, write
from tooling.prune.verify import verify

DATA = Path(__file__).parents[1] / "data" / "census"
SM120 = Policy((parse("12.0"),))

#: Loads a library and prints what it computes and, as hex, the memory from the first container on.
PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.container.restype = ctypes.c_void_p
first = library.container(0)
print(library.answer(), [library.container(i) - first for i in range(int(sys.argv[2]))])
sys.stdout.flush()
sys.stdout.buffer.write(ctypes.string_at(first, int(sys.argv[3])))
"""


def loaded(library: Path, containers: int = 3, size: int = 0) -> tuple[str, bytes]:
    """What a process sees that loads the library: results, and memory from the first container on."""
    command = [sys.executable, "-c", PROBE, str(library), str(containers), str(size)]
    line, _, memory = subprocess.run(command, check=True, capture_output=True).stdout.partition(b"\n")
    return line.decode(), memory


def pruned(library: Path, policy: Policy = SM120):
    code = read_file(library)
    assert code is not None
    done = rewrite(str(library), library.name, code, policy)
    assert done is not None
    return done.plan


def entries(library: Path) -> list[list[bytes]]:
    """The entries with content, container by container, as raw bytes."""
    code, data = read_file(library), library.read_bytes()
    assert code is not None
    return [[data[item.header_offset : item.end] for item in found.entries] for found in code.containers]


def expected_entries() -> list[list[bytes]]:
    kept = [[1, 3], [], [1]]
    return [
        [entry(CONTAINERS[index][at], index * 100 + at) for at in places] for index, places in enumerate(kept)
    ]


def test_shrunk_library_is_the_same_program_with_the_same_kept_code(tmp_path: Path):
    library = build_library(tmp_path)
    memory_size = sum(len(container(codes)) for codes in CONTAINERS)
    before = loaded(library, size=memory_size)
    size = library.stat().st_size
    plan = pruned(library)
    after = loaded(library, size=memory_size)

    assert plan.shrunk is not None
    assert before[0].startswith("42 ")
    assert after[0] == before[0]
    removed = 200_000 + 150_000 + 100_000 + 120_000 + 90_000
    assert removed - 6 * 65536 < size - library.stat().st_size < removed + 4096
    assert entries(library) == expected_entries()
    # In memory, too: the kept entries behind the header of their container, then zeros up to the next one.
    first, kept = after[1], b"".join(expected_entries()[0])
    assert first[16 : 16 + len(kept)] == kept
    end = len(container(CONTAINERS[0]))
    assert not first[16 + len(kept) : end].strip(b"\0")
    assert before[1][16 + len(kept) : end].strip(b"\0")


@pytest.mark.parametrize(
    "options",
    [
        ("-Wl,-z,noseparate-code",),
        ("-Wl,-z,max-page-size=0x200000",),
        ("-Wl,-z,max-page-size=0x200000", "-Wl,-z,noseparate-code", "-g"),
        ("-Wl,-z,pack-relative-relocs",),
        ("-s",),
        ("-Wl,-z,norelro", "-Wl,--hash-style=gnu"),
    ],
    ids=" ".join,
)
def test_other_ways_of_linking(tmp_path: Path, options: tuple[str, ...]):
    library = build_library(tmp_path, CONTAINERS, *options)
    before = loaded(library)
    plan = pruned(library)
    assert plan.shrunk is not None
    assert loaded(library) == before
    assert entries(library) == expected_entries()


def test_a_program_keeps_its_size_and_runs(tmp_path: Path):
    main = '\n#include <stdio.h>\nint main(void) { printf("%d\\n", answer()); return 0; }\n'
    program = build_library(tmp_path, CONTAINERS, "-pie", name="program", more=main)
    size = program.stat().st_size
    plan = pruned(program)
    assert plan.shrunk is None
    assert "a program" in plan.not_shrunk
    assert program.stat().st_size == size
    assert subprocess.run([str(program)], check=True, capture_output=True).stdout == b"42\n"
    assert entries(program) == expected_entries()


def test_small_ranges_stay_as_zeros(tmp_path: Path):
    library = build_library(tmp_path, ((Code(90, 30_000), Code(120, 500)),))
    size = library.stat().st_size
    plan = pruned(library)
    assert plan.shrunk is None
    assert "as large as 65536" in plan.not_shrunk
    assert library.stat().st_size == size
    assert loaded(library, 1)[0] == "42 [0]"
    assert entries(library) == [[entry(Code(120, 500), 1)]]


def test_only_foreign_code_leaves_an_empty_container(tmp_path: Path):
    library = build_library(tmp_path, ((Code(80, 100_000), Code(90, 100_000)),))
    plan = pruned(library)
    assert [item.kept for item in plan.slimmed] == [()]
    code = read_file(library)
    assert code is not None
    assert [(found.size, found.entries) for found in code.containers] == [(0, ())]
    assert loaded(library, 1)[0] == "42 [0]"


def test_second_run_has_nothing_to_do(tmp_path: Path):
    library = build_library(tmp_path)
    pruned(library)
    data, times = library.read_bytes(), library.stat().st_mtime_ns
    code = read_file(library)
    assert code is not None
    assert rewrite(str(library), library.name, code, SM120) is None
    assert (library.read_bytes(), library.stat().st_mtime_ns) == (data, times)


def test_a_library_can_be_pruned_further(tmp_path: Path):
    library = build_library(tmp_path)
    pruned(library, Policy((parse("12.0"), parse("9.0"))))
    pruned(library)
    assert entries(library) == expected_entries()
    assert loaded(library)[0].startswith("42 ")


def test_mode_times_and_other_names_of_the_file_stay(tmp_path: Path):
    library = build_library(tmp_path)
    library.chmod(0o640)
    os.utime(library, ns=(1_000_000_007, 2_000_000_011))
    cached = tmp_path / "in-the-cache.so"
    cached.hardlink_to(library)
    os.utime(tmp_path, ns=(5, 6))
    old = library.read_bytes()
    pruned(library)
    assert library.stat().st_mode & 0o777 == 0o640
    assert library.stat().st_mtime_ns == 2_000_000_011
    assert tmp_path.stat().st_mtime_ns == 6
    assert cached.read_bytes() == old != library.read_bytes()


@pytest.mark.parametrize("options", [(), ("-Wl,-z,pack-relative-relocs",)])
def test_a_pointer_into_a_container_leaves_the_file_alone(tmp_path: Path, options: tuple[str, ...]):
    library = build_library(tmp_path, CONTAINERS, *options, pointer="blob%d + 16")
    data, code = library.read_bytes(), read_file(library)
    assert code is not None
    with pytest.raises(NotUnderstoodError, match="where no container begins"):
        rewrite(str(library), library.name, code, SM120)
    assert library.read_bytes() == data


def test_an_exported_symbol_inside_a_container_leaves_the_file_alone(tmp_path: Path):
    more = (
        '\n__asm__(".globl inside\\n.type inside, @object\\n.set inside, blob0 + 80\\n.size inside, 8\\n");\n'
    )
    library = build_library(tmp_path, more=more)
    code = read_file(library)
    assert code is not None
    with pytest.raises(NotUnderstoodError, match="a symbol points at"):
        rewrite(str(library), library.name, code, SM120)


def test_a_program_at_fixed_addresses_is_not_understood(tmp_path: Path):
    library = build_library(tmp_path)
    data = bytearray(library.read_bytes())
    data[16] = 2
    library.write_bytes(data)
    code = read_file(library)
    assert code is not None
    with pytest.raises(NotUnderstoodError, match="not a shared library"):
        rewrite(str(library), library.name, code, SM120)
    assert library.read_bytes() == data


def test_ranges_with_something_else_in_them_are_refused(tmp_path: Path):
    library = build_library(tmp_path)
    layout = read_layout(Span(library.read_bytes()))
    whole = max(segment.file_end for segment in layout.loads())
    with pytest.raises(NotUnderstoodError, match="something at 0x0"):
        shrink(layout, [Range(0, whole)], 4096)
    code = max(layout.sections, key=lambda section: section.size)
    intruder = code._replace(offset=code.offset + 100_000, size=1)
    with pytest.raises(NotUnderstoodError, match="not in one section"):
        shrink(
            layout._replace(sections=(*layout.sections, intruder)), [Range(code.offset, code.file_end)], 4096
        )


@pytest.mark.parametrize("where", ["kept code", "text", "header", "unmapped"])
def test_the_proof_notices_one_wrong_byte(tmp_path: Path, where: str):
    library = build_library(tmp_path)
    old, code = Span(library.read_bytes()), read_file(library)
    assert code is not None
    plan = make_plan(old, library.name, code, SM120)
    assert plan is not None
    target = tmp_path / "new.so"
    with target.open("wb") as file:
        write(file, old, plan)
    good = target.read_bytes()
    verify(old, Span(good), plan)
    strings = plan.layout.sections[plan.layout.header.shstrndx]
    places = {
        "kept code": plan.moved(plan.slimmed[0].start) + 16 + 100,
        "text": plan.layout.header.entry or plan.layout.loads()[1].offset,
        "header": 24,
        "unmapped": plan.moved(strings.offset) + strings.size - 2,
    }
    bad = bytearray(good)
    bad[places[where]] ^= 1
    with pytest.raises(NotUnderstoodError, match=r"changed|not the code that was to stay"):
        verify(old, Span(bytes(bad)), plan)


def test_larger_pages_of_another_machine(tmp_path: Path):
    library = build_library(tmp_path, CONTAINERS, "-Wl,-z,max-page-size=0x10000")
    data = bytearray(library.read_bytes())
    struct.pack_into("<H", data, 18, 183)
    library.write_bytes(data)
    plan = pruned(library)
    assert plan.shrunk is not None
    assert all(
        hole.start % 65536 == hole.end % 65536 == 0 and hole.end - hole.start >= 65536 for hole in plan.holes
    )
    assert entries(library) == expected_entries()


sizes = st.integers(0, 400)
codes = st.lists(
    st.builds(
        Code, st.sampled_from([75, 80, 90, 120, 121]), sizes, st.sampled_from([1, 2, 64]), flags=st.just(0)
    ),
    min_size=1,
    max_size=6,
)


@given(codes)
def test_kept_entries_are_the_old_ones_in_their_order(made: list[Code]):
    data = container(tuple(made), 7)
    (old,) = read_containers(Span(data))
    slimmed = slim(old, SM120)
    foreign = [code for code in made if code.kind != 64 and not runs(code)]
    if not foreign:
        assert slimmed is None
        return
    assert slimmed is not None
    parts = [new_head(data, slimmed), *(data[item.header_offset : item.end] for item in slimmed.kept)]
    (new,) = read_containers(Span(b"".join(parts) + bytes(64)))
    rest = [entry(code, 700 + index) for index, code in enumerate(made) if code.kind == 64 or runs(code)]
    found = b"".join(parts)
    kept = [found[item.header_offset : item.end] for item in new.entries]
    assert kept == rest


def runs(code: Code) -> bool:
    """By hand, for 12.0: its own machine code, and PTX that is not newer."""
    return code.arch == 120 if code.kind == 2 else code.arch <= 120


lies = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_library(tmp_path_factory.mktemp("sample"), ((Code(90, 9000), Code(120, 300)),)).read_bytes()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(changes=lies, tables=st.booleans())
def test_damaged_files_are_refused_or_pruned_right(
    sample: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[tuple[int, bytes]],
    tables: bool,
):
    """Whatever the bytes, the answer is a proved file or the old one; some lies are in the first tables."""
    monkeypatch.setattr(plan_module, "LEAST_HOLE", 4096)
    data = bytearray(sample)
    for where, what in changes:
        at = where % (4096 if tables else len(data))
        data[at : at + len(what)] = what
    library = tmp_path / "damaged.so"
    library.write_bytes(data[: len(sample)])
    before = library.read_bytes()
    try:
        code = read_file(library)
        done = rewrite(str(library), library.name, code, SM120) if code else None
    except ValueError:
        done = None
    if done is None:
        assert library.read_bytes() == before
    else:
        verify(Span(before), Span(library.read_bytes()), done.plan)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.so"]


def test_cuobjdump_agrees(tmp_path: Path):
    """NVIDIA's own reader finds what is kept and nothing else, with zeros between containers and empty ones."""
    blobs = [(DATA / name).read_bytes() for name in ("several.fatbin", "plain.fatbin", "kernels.fatbin")]
    blobs[1:1] = [foreign_only(blobs[0])] * 2
    library = build_library(tmp_path, tuple(blobs))
    listing = [str(find_cuobjdump()), "--list-elf", str(library)]

    def listed() -> list[str]:
        lines = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.splitlines()
        return [line.rsplit(".", 2)[1] for line in lines]

    assert sorted(listed()) == sorted(["sm_120a", "sm_121a", "sm_80"] + ["sm_80"] * 2 + ["sm_120", "sm_120a"])
    pruned(library)
    assert sorted(listed()) == ["sm_120", "sm_120a", "sm_120a"]


def foreign_only(data: bytes) -> bytes:
    """A container with the entry for 8.0 of another one, alone."""
    (whole,) = read_containers(Span(data))
    entry_80 = next(item for item in whole.entries if item.arch == "8.0")
    size = entry_80.end - entry_80.header_offset
    return data[:8] + struct.pack("<Q", size) + data[entry_80.header_offset : entry_80.end]

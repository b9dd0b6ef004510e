"""Symbols, copies and listed files that leave a tree: what goes, what stays byte by byte, what is refused."""

import ctypes
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from typer.testing import CliRunner

from tests.programs import require_program
from tests.unit.prune_samples import CONTAINERS, build_library
from tooling import console
from tooling.census.reader.span import Span
from tooling.census.take import census
from tooling.cli import app
from tooling.errors import CheckError
from tooling.prune.inplace import main
from tooling.prune.layout import read_layout
from tooling.prune.records import PruneReport, PruneRules
from tooling.prune.refusal import NotUnderstoodError
from tooling.prune.run import check_whole, prune_tree
from tooling.prune.symbols import plan_strip, verify_strip

COUNT = 300
#: Enough functions for symbols and debugging information that are worth removing.
_C = "".join(
    f"static __attribute__((noinline)) int f{i}(int x) {{ return x * {i} + {i}; }}\n" for i in range(COUNT)
)
_C += "int total(int x) { return " + " + ".join(f"f{i}(x)" for i in range(COUNT)) + "; }\n"
TOTAL_OF_2 = sum(2 * i + i for i in range(COUNT))
STRIP = PruneRules(strip={"*.so*": "no loader maps them"})


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library with symbols and debugging information, and no device code."""
    require_program("gcc", "gcc")
    folder = tmp_path_factory.mktemp("linked")
    source, made = folder / "total.c", folder / "libtotal.so"
    source.write_text(_C)
    subprocess.run(["gcc", "-g", "-O1", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made.read_bytes()


@pytest.fixture
def library(linked: bytes, tmp_path: Path) -> Path:
    """A copy of the library, alone in its folder."""
    made = tmp_path / "lib" / "libtotal.so.1.2"
    made.parent.mkdir()
    made.write_bytes(linked)
    made.chmod(0o755)
    return made


def mapped_bytes(path: Path) -> dict[int, bytes]:
    """Content of every loaded segment by address, without the header of the file and its table of segments."""
    content = path.read_bytes()
    layout = read_layout(Span(content))
    first = layout.header.ehsize + 56 * layout.header.phnum
    return {
        segment.address: content[max(segment.offset, first) : segment.file_end] for segment in layout.loads()
    }


def test_symbols_go_and_everything_that_is_mapped_stays(library: Path):
    before, content = mapped_bytes(library), library.read_bytes()
    mode = library.stat().st_mode
    report = prune_tree(library.parent, ["12.0"], STRIP)
    (record,) = report.stripped
    assert (record.status, record.rule, record.path) == ("stripped", "*.so*", "libtotal.so.1.2")
    assert record.sha256_before == hashlib.sha256(content).hexdigest()
    assert record.sha256_after == hashlib.sha256(library.read_bytes()).hexdigest()
    assert record.bytes_after == library.stat().st_size < len(content) // 2
    assert report.totals["bytes_stripped"] == len(content) - library.stat().st_size
    assert mapped_bytes(library) == before
    assert library.stat().st_mode == mode
    assert ctypes.CDLL(str(library)).total(2) == TOTAL_OF_2
    with library.open("rb") as file:
        sections = list(ELFFile(file).iter_sections())
        dynamic = next(s for s in sections if isinstance(s, SymbolTableSection))
        total = next(symbol for symbol in dynamic.iter_symbols() if symbol.name == "total")
    assert not [s.name for s in sections if s.name.startswith(".debug") or s.name == ".symtab"]
    assert sections[total["st_shndx"]].name == ".text", "numbers of sections in dynamic symbols stay true"
    assert report.accepts(record.path, record.sha256_before, record.sha256_after)
    assert not report.accepts(record.path, "0" * 64, record.sha256_after)


def test_the_binutils_read_the_result_and_link_against_it(library: Path, tmp_path: Path):
    require_program("readelf", "binutils")
    prune_tree(library.parent, ["12.0"], STRIP)
    done = subprocess.run(["readelf", "-aW", str(library)], capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr + done.stdout
    user = tmp_path / "user.c"
    user.write_text(f"int total(int); int main(void) {{ return total(2) == {TOTAL_OF_2} ? 0 : 1; }}")
    program = tmp_path / "user"
    subprocess.run(["gcc", "-o", str(program), str(user), str(library)], check=True)
    subprocess.run([str(program)], check=True)


def test_symbols_between_segments_leave_whole_pages_and_zeros(library: Path):
    """As tools leave it that put segments behind the section table."""
    content = bytearray(library.read_bytes())
    layout = read_layout(Span(bytes(content)))
    page = layout.page
    end = -(-len(content) // page) * page
    content += bytes(end - len(content)) + b"behind" * 100
    index = next(i for i, s in enumerate(layout.segments) if s.type not in {1, 2, 6} and s.file_size)
    address = max(s.address + s.memory_size for s in layout.loads())
    address = -(-address // page) * page
    row = layout.segments[index]._replace(
        type=1,
        flags=4,
        offset=end,
        address=address,
        physical=address,
        file_size=600,
        memory_size=600,
        alignment=page,
    )
    moved = [*(s for i, s in enumerate(layout.segments) if i != index), row]
    place = layout.header.phoff
    for number, segment in enumerate(moved):
        content[place + 56 * number : place + 56 * (number + 1)] = _segment(segment)
    library.write_bytes(content)
    before = mapped_bytes(library)
    assert ctypes.CDLL(str(library)).total(2) == TOTAL_OF_2
    prune_tree(library.parent, ["12.0"], STRIP)
    assert mapped_bytes(library) == before
    gain = len(content) - library.stat().st_size
    assert gain > 0
    assert gain % page == 0
    copy = library.with_name("copy.so")
    copy.write_bytes(library.read_bytes())
    assert ctypes.CDLL(str(copy)).total(2) == TOTAL_OF_2


def _segment(segment: tuple[int, ...]) -> bytes:
    from tooling.prune.layout import SEGMENT  # noqa: PLC0415

    return SEGMENT.pack(*segment)


def test_a_library_with_something_behind_its_sections_is_kept_with_the_reason(library: Path):
    library.write_bytes(library.read_bytes() + b"an archive of its own")
    content = library.read_bytes()
    with pytest.raises(CheckError, match="no file with device code was found"):
        prune_tree(library.parent, ["12.0"], STRIP)
    assert library.read_bytes() == content
    place = library.parent / "report.json"
    assert (
        main(["--keep", "12.0", "--strip", "*.so*", "--partial", "--report", str(place), str(library.parent)])
        == 0
    )
    (record,) = PruneReport.model_validate_json(place.read_bytes()).stripped
    assert (record.status, record.bytes_after) == ("kept", len(content))
    assert "bytes lie behind its last section" in record.reason


def test_a_file_that_differs_from_the_plan_is_refused(library: Path):
    old = Span(library.read_bytes())
    plan = plan_strip(old)
    assert plan is not None
    prune_tree(library.parent, ["12.0"], STRIP)
    good = library.read_bytes()
    verify_strip(old, Span(good), plan)
    text = next(segment for segment in plan.new.loads() if segment.flags & 1)
    broken = bytearray(good)
    broken[text.offset + 8] ^= 1
    with pytest.raises(NotUnderstoodError, match=r"bytes at .* changed"):
        verify_strip(old, Span(bytes(broken)), plan)
    broken = bytearray(good)
    broken[plan.new.header.phoff + 16] ^= 1
    with pytest.raises(NotUnderstoodError, match=r"segment|planned"):
        verify_strip(old, Span(bytes(broken)), plan)


def test_little_is_left_alone(tmp_path: Path):
    require_program("gcc", "gcc")
    source = tmp_path / "few.c"
    source.write_text("int one(void) { return 1; }")
    made = tmp_path / "few.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    assert plan_strip(Span(made.read_bytes())) is None


def test_symbols_go_before_device_code_and_the_report_holds_both_steps(tmp_path: Path):
    made = build_library(tmp_path, CONTAINERS, "-g", more=_C)
    wheel = hashlib.sha256(made.read_bytes()).hexdigest()
    targets = {(t.kind, t.arch) for t in census(tmp_path).libraries[0].targets if t.arch.startswith("12.0")}
    report = prune_tree(tmp_path, ["12.0"], STRIP)
    (symbols,) = report.stripped
    (code,) = report.with_status("pruned")
    now = hashlib.sha256(made.read_bytes()).hexdigest()
    assert (symbols.sha256_before, symbols.sha256_after) == (wheel, code.sha256_before)
    assert code.sha256_after == now
    assert report.accepts(code.path, wheel, now)
    assert not report.accepts(code.path, symbols.sha256_after, now)
    assert not report.accepts(code.path, wheel, symbols.sha256_after)
    assert {(t.kind, t.arch) for t in census(tmp_path).libraries[0].targets} >= targets
    assert ctypes.CDLL(str(made)).answer() == 42


def test_a_layer_does_not_touch_what_a_layer_before_it_pruned(tmp_path: Path):
    made = build_library(tmp_path, CONTAINERS, "-g", more=_C)
    place = tmp_path / "report.json"
    assert main(["--keep", "12.0", "--report", str(place), str(tmp_path)]) == 0
    content = made.read_bytes()
    assert main(["--keep", "12.0", "--strip", "*.so*", "--partial", "--report", str(place), str(tmp_path)]) == 0
    assert made.read_bytes() == content
    (record,) = PruneReport.model_validate_json(place.read_bytes()).stripped
    assert "symbols go first" in record.reason


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two packages with tests, and a library under three names."""
    root = tmp_path / "site-packages"
    for package in ("alpha", "beta"):
        (root / package / "tests" / "data").mkdir(parents=True)
        (root / package / "__init__.py").write_text(f"name = '{package}'\n")
        (root / package / "tests" / "test_it.py").write_text("assert True\n")
        (root / package / "tests" / "data" / "numbers.csv").write_text("1,2\n")
    (root / "lib").mkdir()
    for name in ("libz.so", "libz.so.4", "libz.so.4.15"):
        (root / "lib" / name).write_bytes(b"\x7fELF" + b"z" * 100)
    (root / "lib" / "libother.so").write_bytes(b"\x7fELF" + b"y" * 100)
    (root / "beta" / "libz.so").write_bytes(b"\x7fELF" + b"z" * 100)
    return root


def test_listed_files_go_with_their_empty_folders_and_are_all_named(tree: Path):
    told: list[str] = []
    rules = PruneRules(drop={"alpha/tests/*": "tests", "beta/tests/*.csv": "data of tests"})
    report = prune_tree(tree, ["12.0"], rules, progress=told.append)
    assert [(file.path, file.rule) for file in report.dropped] == [
        ("alpha/tests/data/numbers.csv", "alpha/tests/*"),
        ("alpha/tests/test_it.py", "alpha/tests/*"),
        ("beta/tests/data/numbers.csv", "beta/tests/*.csv"),
    ]
    assert report.dropped[0].sha256 == hashlib.sha256(b"1,2\n").hexdigest()
    assert (report.totals["dropped"], report.totals["bytes_dropped"]) == (3, 4 + 12 + 4)
    assert not (tree / "alpha" / "tests").exists()
    assert not (tree / "beta" / "tests" / "data").exists()
    assert (tree / "beta" / "tests" / "test_it.py").exists()
    assert told == ["dropped alpha/tests/*: 2 files, 16 bytes", "dropped beta/tests/*.csv: 1 files, 4 bytes"]
    check_whole(report, rules)


@pytest.mark.parametrize("field", ["drop", "strip", "link"])
def test_a_rule_that_matches_nothing_is_an_error(tree: Path, field: str):
    before = sorted(tree.rglob("*"))
    rules = PruneRules.model_validate({field: {"gone/*": "was there once"}})
    with pytest.raises(CheckError, match=rf"{field} 'gone/\*' matches no file"):
        prune_tree(tree, ["12.0"], rules)
    assert sorted(tree.rglob("*")) == before
    report = prune_tree(tree, ["12.0"], PruneRules(drop={"alpha/tests/*": "tests"}))
    with pytest.raises(CheckError, match=rf"{field} 'gone/\*' matches no file"):
        check_whole(report, rules)


def test_a_listed_file_with_code_that_a_target_runs_stays(tree: Path):
    made = build_library(tree / "alpha" / "tests")
    with pytest.raises(CheckError, match=r"alpha/tests/libsample\.so is to be deleted, but has code"):
        prune_tree(tree, ["12.0"], PruneRules(drop={"alpha/tests/*": "tests"}))
    assert made.exists()
    assert (tree / "alpha" / "tests" / "test_it.py").exists(), "found before the first file changes"
    prune_tree(tree, ["7.0"], PruneRules(drop={"alpha/tests/*": "tests"}))
    assert not made.exists()


def test_equal_files_of_one_folder_become_one_file(tree: Path):
    rules = PruneRules(link={"*.so*": "a wheel has no links"})
    report = prune_tree(tree, ["12.0"], rules)
    assert [(file.path, file.to, file.bytes) for file in report.linked] == [
        ("lib/libz.so.4", "lib/libz.so", 104),
        ("lib/libz.so.4.15", "lib/libz.so", 104),
    ]
    assert (tree / "lib" / "libz.so").stat().st_nlink == 3
    assert (tree / "lib" / "libz.so.4").read_bytes() == b"\x7fELF" + b"z" * 100
    assert (tree / "beta" / "libz.so").stat().st_nlink == 1, "another folder may lie in another layer"
    assert (tree / "lib" / "libother.so").stat().st_nlink == 1
    check_whole(report, rules)
    with pytest.raises(CheckError, match=r"nothing was pruned|no file with device code"):
        prune_tree(tree, ["12.0"], rules)


def test_files_of_different_modes_are_not_made_one(tree: Path):
    (tree / "lib" / "libz.so.4").chmod(0o600)
    report = prune_tree(tree, ["12.0"], PruneRules(link={"*.so*": "a wheel has no links"}))
    assert [file.path for file in report.linked] == ["lib/libz.so.4.15"]


def test_the_report_of_the_layers_before_is_carried_on(tree: Path, tmp_path: Path):
    place = tmp_path / "report.json"
    arguments = ["--keep", "12.0", "--partial", "--report", str(place), str(tree)]
    rules = ["--drop", "*/tests/*", "--link", "*.so*"]
    assert main([*rules, *arguments]) == 0
    first = json.loads(place.read_text())
    (tree / "gamma" / "tests").mkdir(parents=True)
    (tree / "gamma" / "tests" / "test_it.py").write_text("assert True\n")
    assert main([*rules, *arguments]) == 0
    second = PruneReport.model_validate_json(place.read_bytes())
    assert [file.path for file in second.dropped] == [
        *(file["path"] for file in first["dropped"]),
        "gamma/tests/test_it.py",
    ]
    assert [file.path for file in second.linked] == [file["path"] for file in first["linked"]]
    assert second.totals["dropped"] == 5


def test_the_command_shows_what_left_besides_device_code(
    tree: Path, linked: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Whatever this run's own terminal is.
    monkeypatch.setattr(console.out, "_width", 240)
    (tree / "alpha" / "libtotal.so").write_bytes(linked)
    (tree / "beta" / "libtotal.so").write_bytes(linked + b"more")
    rules = tmp_path / "rules.yaml"
    rules.write_text('strip: {"*.so*": a}\nlink: {"*.so*": a}\ndrop: {"*/tests/*": a}\n')
    shown = CliRunner().invoke(app, ["prune", str(tree), "--keep", "sm_120", "--rules", str(rules)])
    assert shown.exit_code == 0
    for text in ("without symbols", "4 files", "2 files", "copies linked", "symbols kept", "bytes lie behind"):
        assert text in shown.stdout

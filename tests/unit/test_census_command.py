import io
import json
import tarfile
from pathlib import Path

import pytest

from tooling import cli
from tooling.census.records import CensusRecord
from tooling.census.take import census, container_options, reader_tar, scan_tar
from tooling.errors import CheckError, InputError
from tooling.inspection.sources import unpack_files
from tooling.runner import run

DATA = Path(__file__).parents[1] / "data" / "census"


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the console script."""
    monkeypatch.setattr("sys.argv", ["blackwell-stacks", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    printed = capsys.readouterr()
    code = exit_.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


def test_census_prints_a_record_that_a_later_one_is_held_against(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    folder, earlier = tmp_path / "lib", tmp_path / "earlier.json"
    folder.mkdir()
    (folder / "x.so").write_bytes((DATA / "two_containers.so").read_bytes())
    code, out, _ = command(monkeypatch, capsys, "census", str(folder), "--output", str(earlier), "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "PASS"
    assert CensusRecord.model_validate_json(earlier.read_text()).libraries[0].path == "x.so"
    (folder / "x.so").write_bytes((DATA / "left_behind.so").read_bytes())
    code, out, _ = command(monkeypatch, capsys, "census", str(folder), "--against", str(earlier), "--json")
    assert code == 1
    assert json.loads(out)["checks"][-1]["details"] == ["x.so: had 1 SASS entries, 1 PTX, has only 9.0"]


def test_census_judges_by_rules(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: adds, files: [two_containers.so], expect: sass}]")
    code, out, err = command(monkeypatch, capsys, "census", str(DATA), "--rules", str(rules))
    assert code == 1
    assert "left_behind.so" in out
    assert "no unexplained gap" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["census", "/nowhere"], "is not a folder"),
        (["census", str(DATA), "--device", "twelve"], "not a GPU architecture"),
        (["census", str(DATA), "--rules", "/nowhere.yaml"], "cannot be read"),
        (["census", str(DATA), "--against", str(DATA / "adds.cu")], "not an earlier census"),
        (["kernels", "/nowhere.so"], "cannot be read"),
        (["check-archs", "native", str(DATA)], "does not say which"),
        (["check-build-log", "/nowhere.log"], "cannot be read"),
        (["bench-census", "/nowhere"], "is not a folder"),
        (["bench-census", str(DATA), "--cuobjdump", "/nowhere"], "no cuobjdump"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_bad_input_is_one_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert code in (1, 2)
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_kernels_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, out, _ = command(monkeypatch, capsys, "kernels", str(DATA / "two_containers.so"), "--json")
    assert code == 0
    assert json.loads(out)["kernels"][0]["name"] == "adds"
    code, out, _ = command(monkeypatch, capsys, "kernels", str(DATA / "kernels_120a.cubin"))
    assert code == 1
    assert "emptied_by_a_guard" in out


def test_check_archs_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    library = str(DATA / "two_containers.so")
    code, out, _ = command(monkeypatch, capsys, "check-archs", "9.0a;12.0a", library, "--device", "12.0")
    assert (code, "FAIL" in out) == (0, False)
    code, out, _ = command(monkeypatch, capsys, "check-archs", "12.0", library, "--device", "12.1")
    assert (code, "12.0a instead" in out) == (1, True)


def test_check_build_log_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    log = tmp_path / "build.log"
    log.write_text("Not building NVFP4 as no compatible archs were found.\n")
    assert command(monkeypatch, capsys, "check-build-log", str(log))[0] == 1
    assert command(monkeypatch, capsys, "check-build-log", str(log), "--expect", "NVFP4")[0] == 0


def test_bench_compares_every_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, out, _ = command(monkeypatch, capsys, "bench-census", str(DATA), "--passes", "1", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["differences"] == []
    assert result["with_device_code"] >= 10


def test_bench_fails_on_another_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    liar = tmp_path / "cuobjdump"
    liar.write_text("#!/bin/sh\necho 'ELF file    1: x.1.sm_35.cubin'\n")
    liar.chmod(0o755)
    arguments = ("bench-census", str(DATA), "--passes", "1", "--cuobjdump", str(liar))
    code, _, err = command(monkeypatch, capsys, *arguments)
    assert code == 1
    assert "1xsm_35.cubin" in err


def test_a_folder_without_libraries_is_a_failure(tmp_path: Path):
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(CheckError, match="nothing was checked"):
        census(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        census(tmp_path / "readme.txt")


def test_the_reader_that_goes_into_an_image_needs_the_standard_library_alone(tmp_path: Path):
    with tarfile.open(fileobj=io.BytesIO(reader_tar())) as tar:
        unpack_files(tar, tmp_path)
    place = tmp_path / "blackwell-census"
    program = (
        f"import sys; sys.path.insert(0, {str(place)!r}); from tooling.census.reader.scan import main; main()"
    )
    output = tmp_path / "document.json"
    run(["python3", "-I", "-S", "-c", program, str(DATA), str(output)])
    assert len(json.loads(output.read_text())["libraries"]) == len(census(DATA).libraries)


def test_the_container_of_an_image_has_no_network_and_not_its_entrypoint():
    options = container_options()
    assert options["network_mode"] == "none"
    assert options["entrypoint"][:2] == ["/bin/sh", "-c"]


def test_an_exported_image_gives_the_same_answer_also_for_hard_links(tmp_path: Path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(DATA, "lib")
        cut = tmp_path / "cut.so"
        cut.write_bytes((DATA / "two_containers.so").read_bytes()[:6000])
        tar.add(cut, "lib/cut.so")
        link = tarfile.TarInfo("lib/same.so")
        link.type, link.linkname = tarfile.LNKTYPE, "lib/two_containers.so"
        tar.addfile(link)
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        document = scan_tar(tar)
    found = {library["path"]: library for library in document["libraries"]}
    assert [item["path"] for item in document["unread"]] == ["lib/cut.so"]
    assert found.pop("lib/same.so")["targets"] == found["lib/two_containers.so"]["targets"]
    assert set(found) == {f"lib/{library.path}" for library in census(DATA).libraries}

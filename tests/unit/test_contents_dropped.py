"""Files that a stack drops, held against everything that stays: needs, imports, packages, hashes."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import distributions
import dropped
import libraries
import pytest

from tests.programs import require_program
from tests.wheelhouse import make_wheel

FILES = {
    "alpha/__init__.py": "from alpha import core\n",
    "alpha/core.py": "x = 1\n",
    "alpha/fast.py": "y = 1\n",
    "alpha/tests/test_it.py": "import alpha\n",
    "alpha/tests/deep/test_that.py": "from alpha.tests import test_it\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with one in it."""
    folder = tmp_path / "site-packages"
    with zipfile.ZipFile(make_wheel(tmp_path / "wheels", "alpha", "1.0", FILES)) as archive:
        archive.extractall(folder)
    return folder


def drop(site: Path, *paths: str) -> dict[str, Any]:
    """Delete files, and write of it what the pruner writes."""
    entries = []
    for path in paths:
        content = (site / path).read_bytes()
        entries.append({"path": path, "sha256": hashlib.sha256(content).hexdigest()})
        (site / path).unlink()
        for folder in (site / path).parents:
            if any(folder.iterdir()):
                break
            folder.rmdir()
    return {"files": [], "dropped": entries}


def judge(site: Path, report: dict[str, Any]) -> list[str]:
    return dropped.judge_dropped(
        site, distributions.read_distributions(site), libraries.read_libraries(site), report
    )


def write(site: Path, name: str, source: str) -> None:
    """Add a module to the installed package, as its RECORD would have it."""
    (site / name).write_text(source)
    with (site / "alpha-1.0.dist-info" / "RECORD").open("a") as record:
        record.write(f"{name},,\n")


def test_tests_that_nothing_imports_may_go(site: Path):
    report = drop(site, "alpha/tests/test_it.py", "alpha/tests/deep/test_that.py")
    assert judge(site, report) == []
    found = distributions.read_distributions(site)
    assert distributions.altered_files(found, distributions.read_pruned(site, report))[0] == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import alpha.tests.test_it\n", 1),
        ("from alpha import tests\n", 1),
        ("\nfrom alpha.tests import test_it as one\n", 2),
        ("from . import tests\n", 1),
        ("from .tests.deep import test_that\n", 1),
        ("from alpha import (\n    core,\n    tests,\n)\n", 1),
        ("def run():\n    import alpha.tests.test_it\n", 2),
        ("try:\n    import alpha.tests\nexcept ValueError:\n    pass\n", 2),
        ("try:\n    x = 1\nexcept ImportError:\n    import alpha.tests\n", 4),
    ],
)
def test_an_import_of_a_dropped_module_is_found(site: Path, source: str, line: int):
    report = drop(site, "alpha/tests/test_it.py", "alpha/tests/deep/test_that.py")
    write(site, "alpha/user.py", source)
    (finding,) = judge(site, report)
    assert finding.startswith(f"alpha/user.py:{line} imports alpha.tests")
    assert finding.endswith("which the stack drops")


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import alpha.fast\nexcept ImportError:\n    fast = None\n",
        "try:\n    from alpha import fast\nexcept:\n    raise ImportError('not available')\n",
        "try:\n    from .fast import y\nexcept (OSError, ModuleNotFoundError):\n    y = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import alpha.fast\n",
        "# from alpha import fast\n",
        "import beta.fast\n",
        "from alpha import fast is no Python\n",
    ],
)
def test_an_import_that_is_ready_for_the_absence_is_none_of_them(site: Path, source: str):
    report = drop(site, "alpha/fast.py")
    write(site, "alpha/user.py", source)
    assert judge(site, report) == []


def test_a_package_without_any_module_left_is_found(site: Path):
    report = drop(site, *FILES)
    assert "alpha: the stack drops every module of alpha" in judge(site, report)


def test_a_package_that_loses_its_beginning_is_found(site: Path):
    report = drop(site, "alpha/__init__.py")
    found = judge(site, report)
    assert "alpha: the stack drops alpha/__init__.py, without which alpha is no package" in found


def _link(folder: Path, name: str, *options: str) -> None:
    require_program("gcc", "gcc")
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    argv = ["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(source), "-L", str(folder), *options]
    subprocess.run(argv, check=True)
    source.unlink()


@pytest.fixture
def needing(site: Path) -> Path:
    """A site whose libuser.so needs libbase.so.3, which is there as libbase.so.3.1.4 and as libbase.so.3."""
    _link(site / "alpha", "libbase.so.3.1.4", "-Wl,-soname,libbase.so.3")
    (site / "alpha" / "libbase.so.3").write_bytes((site / "alpha" / "libbase.so.3.1.4").read_bytes())
    _link(site / "alpha", "libuser.so", "-Wl,--no-as-needed", "-l:libbase.so.3.1.4")
    return site


def test_a_dropped_library_that_another_one_needs_is_found(needing: Path):
    report = drop(needing, "alpha/libbase.so.3", "alpha/libbase.so.3.1.4")
    assert judge(needing, report) == [
        "libuser.so needs libbase.so.3, and the stack drops alpha/libbase.so.3.1.4"
    ]


def test_a_copy_that_stays_answers_the_need(needing: Path):
    assert judge(needing, drop(needing, "alpha/libbase.so.3")) == []


def test_both_going_together_leaves_nobody_in_need(needing: Path):
    assert (
        judge(needing, drop(needing, "alpha/libbase.so.3", "alpha/libbase.so.3.1.4", "alpha/libuser.so")) == []
    )


def test_no_dropped_file_means_no_question(site: Path):
    assert judge(site, {"files": []}) == []


def test_a_dropped_file_that_is_there_or_was_another_one_is_found(site: Path):
    content = (site / "alpha/fast.py").read_bytes()
    report = drop(site, "alpha/fast.py")
    found = distributions.read_distributions(site)
    (site / "alpha/fast.py").write_bytes(content)
    altered = distributions.altered_files(found, distributions.read_pruned(site, report))[0]
    assert altered == ["alpha: alpha/fast.py is not as it was pruned"]
    report["dropped"][0]["sha256"] = "0" * 64
    altered = distributions.altered_files(found, distributions.read_pruned(site, report))[0]
    assert altered == ["alpha: alpha/fast.py was not as in its wheel when it was pruned"]


def test_symbols_first_and_device_code_second_are_one_chain(site: Path):
    path = "alpha/core.py"
    wheel, between, now = (site / path).read_bytes(), b"x\n", b"y\n"
    digest = {content: hashlib.sha256(content).hexdigest() for content in (wheel, between, now)}
    stripped = {
        "path": path,
        "status": "stripped",
        "sha256_before": digest[wheel],
        "sha256_after": digest[between],
    }
    pruned = {"path": path, "status": "pruned", "sha256_before": digest[between], "sha256_after": digest[now]}
    found = distributions.read_distributions(site)

    def altered(report: dict[str, Any], content: bytes) -> list[str]:
        (site / path).write_bytes(content)
        return distributions.altered_files(found, distributions.read_pruned(site, report))[0]

    both = {"files": [pruned], "stripped": [stripped]}
    assert altered(both, now) == []
    assert altered(both, between) == ["alpha: alpha/core.py is not as it was pruned"]
    assert altered({"files": [], "stripped": [stripped]}, between) == []
    kept = {**stripped, "status": "kept", "sha256_before": "", "sha256_after": ""}
    assert altered({"files": [], "stripped": [kept]}, wheel) == []
    torn = {"files": [{**pruned, "sha256_before": digest[wheel]}], "stripped": [stripped]}
    assert altered(torn, now) == ["alpha: alpha/core.py was not as in its wheel when it was pruned"]

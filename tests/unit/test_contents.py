"""The checks that run inside an image while it is built, on small trees."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import distributions
import libraries
import pytest
import torch_build
import yaml

from tests.programs import require_program
from tests.wheelhouse import make_wheel

ROOT = Path(__file__).resolve().parents[2]


def _install(site: Path, name: str, files: dict[str, str], requires: list[str] | None = None) -> None:
    wheel = make_wheel(site.parent / "wheels", name, "1.0", files, requires)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with one package."""
    folder = tmp_path / "site-packages"
    _install(folder, "alpha", {"alpha.py": "x = 1\n"}, ["beta>=2; extra == 'more'"])
    return folder


def test_an_untouched_tree_has_no_findings(site):
    found = distributions.read_distributions(site)
    assert distributions.altered_files(found)[0] == []
    assert distributions.altered_files(found)[1] == 3
    assert distributions.compare_with_lock(found, {"alpha": "1.0"}) == []
    assert distributions.unmet_requirements(found) == []
    assert distributions.wrong_tags(found) == []
    assert found["alpha"].size > 0


def test_a_changed_file_and_a_missing_one_are_found(site):
    found = distributions.read_distributions(site)
    (site / "alpha.py").write_text("x = 2\n")
    assert distributions.altered_files(found)[0] == ["alpha: alpha.py is not as in its wheel"]
    (site / "alpha.py").unlink()
    assert distributions.altered_files(found)[0] == ["alpha: alpha.py of its wheel is missing"]


def _report(path: str, before: bytes, after: bytes | None) -> dict[str, object]:
    """What the pruner writes of one file; see tooling/prune/records.py."""
    return {
        "files": [
            {
                "path": path,
                "status": "deleted" if after is None else "pruned",
                "sha256_before": hashlib.sha256(before).hexdigest(),
                "sha256_after": "" if after is None else hashlib.sha256(after).hexdigest(),
            },
            {"path": "other.so", "status": "unchanged", "sha256_before": "", "sha256_after": ""},
        ]
    }


def test_a_file_may_be_as_the_pruner_left_it_and_no_other_way(site):
    found = distributions.read_distributions(site)
    before, after = (site / "alpha.py").read_bytes(), b"x = 0\n"
    pruned = distributions.read_pruned(site, _report("alpha.py", before, after))
    (site / "alpha.py").write_bytes(after)
    assert distributions.altered_files(found, pruned)[0] == []
    assert distributions.altered_files(found)[0] == ["alpha: alpha.py is not as in its wheel"]
    for content in (before, b"x = 3\n"):
        (site / "alpha.py").write_bytes(content)
        assert distributions.altered_files(found, pruned)[0] == ["alpha: alpha.py is not as it was pruned"]
    (site / "alpha.py").unlink()
    assert distributions.altered_files(found, pruned)[0] == ["alpha: alpha.py of its wheel is missing"]


def test_a_file_that_the_pruner_deleted_may_be_gone(site):
    found = distributions.read_distributions(site)
    pruned = distributions.read_pruned(site, _report("alpha.py", (site / "alpha.py").read_bytes(), None))
    assert distributions.altered_files(found, pruned)[0] == ["alpha: alpha.py is not as it was pruned"]
    (site / "alpha.py").unlink()
    assert distributions.altered_files(found, pruned)[0] == []


def test_a_report_cannot_excuse_a_file_that_differed_before_or_that_no_wheel_has(site):
    found = distributions.read_distributions(site)
    (site / "alpha.py").write_bytes(b"x = 0\n")
    forged = distributions.read_pruned(site, _report("alpha.py", b"something else", b"x = 0\n"))
    assert distributions.altered_files(found, forged)[0] == [
        "alpha: alpha.py was not as in its wheel when it was pruned"
    ]
    (site / "alpha.py").write_bytes(b"x = 1\n")
    stray = distributions.read_pruned(site, _report("gamma.so", b"1", b"2"))
    assert distributions.altered_files(found, stray)[0] == ["gamma.so was pruned, and no wheel has recorded it"]


def test_a_tree_without_hashes_proves_nothing(tmp_path):
    (tmp_path / "site-packages").mkdir()
    found = distributions.read_distributions(tmp_path / "site-packages")
    assert "nothing was verified" in distributions.altered_files(found)[0][0]
    assert "nothing can be compared" in distributions.compare_with_lock(found, {})[0]


def test_the_lock_and_the_image_are_compared_both_ways(site):
    found = distributions.read_distributions(site)
    assert distributions.compare_with_lock(found, {"alpha": "2.0", "beta": "1"}) == [
        "alpha is 1.0 in the image and 2.0 in the lock",
        "beta is absent in the image and 1 in the lock",
    ]


def test_case_one_file_with_two_owners(site):
    case = yaml.safe_load((ROOT / "tests/cases/lock-one-file-two-owners.yaml").read_text())
    assert case["expected"]["verdict"] == "REFUSE"
    core = "dsl/cute/core.py"
    _install(site, "libs_base", {core: "A\n"})
    _install(site, "libs_cu13", {core: "B\n"})
    found = distributions.read_distributions(site)
    assert distributions.shared_files(found) == [f"{core} belongs to libs-base and libs-cu13"]


def test_two_owners_with_the_same_content_do_no_harm(site):
    for name in ("one", "two"):
        _install(site, name, {"common/__init__.py": ""})
    assert distributions.shared_files(distributions.read_distributions(site)) == []


def test_requirements_are_checked_with_the_pins_of_cuda_toolkit(site):
    _install(site, "cuda_toolkit", {}, ["alpha==2.*; extra == 'all'", "gone; extra == 'all'"])
    _install(site, "gamma", {}, ["delta", "alpha>=3"])
    assert distributions.unmet_requirements(distributions.read_distributions(site)) == [
        "cuda-toolkit requires alpha==2.*, and 1.0 is installed",
        "gamma requires delta, which is not installed",
        "gamma requires alpha>=3, and 1.0 is installed",
    ]


def test_a_wheel_for_another_interpreter_is_found(site):
    info = site / "alpha-1.0.dist-info" / "WHEEL"
    info.write_text(info.read_text().replace("py3-none-any", "cp27-cp27mu-manylinux1_x86_64"))
    assert "does not fit this image" in distributions.wrong_tags(distributions.read_distributions(site))[0]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small shared libraries, one of which asks for symbols of the C library."""
    require_program("gcc", "g++")
    folder = tmp_path_factory.mktemp("libraries")
    source = folder / "a.c"
    source.write_text(
        '#include <math.h>\nconst char *other = "libcudnn_absent.so.9";\n'
        "double f(double x) { return exp(x); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libcudnn_a.so.9", source, "-lm"], check=True)
    return folder


def test_case_a_wheel_whose_tag_understates_the_c_library(compiled):
    case = yaml.safe_load((ROOT / "tests/cases/lock-wheel-tag-understates-glibc.yaml").read_text())
    assert case["expected"]["verdict"] == "REFUSE"
    found = libraries.read_libraries(compiled)
    assert found[0].needs["GLIBC"] >= (2, 29)
    assert "needs GLIBC 2." in libraries.too_new_symbols(found, "glibc 2.17", compiled)[0]
    assert libraries.too_new_symbols(found, "glibc 2.99", compiled) == []


def test_no_library_at_all_is_a_finding():
    assert "nothing was checked" in libraries.too_new_symbols([], "glibc 2.36", Path("/nowhere"))[0]


def test_case_a_cudnn_that_lacks_a_sublibrary(compiled):
    case = yaml.safe_load((ROOT / "tests/cases/lock-cudnn-wheel-lacks-a-sublibrary.yaml").read_text())
    assert "omits one sublibrary" in case["expected"]["diagnosis"]
    found = libraries.split_families(libraries.read_libraries(compiled))
    assert found == ["libcudnn_a.so.9 loads libcudnn_absent.so.9, which its wheel does not bring"]


def test_a_family_in_two_places_is_found_and_variants_are_not(tmp_path, compiled):
    source = compiled / "libcudnn_a.so.9"
    for place, extra in (("wheel/lib", b""), ("system", b"x")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "libcudnn.so.9").write_bytes(source.read_bytes() + extra)
    (finding, *_) = libraries.split_families(libraries.read_libraries(tmp_path))
    assert "cudnn: libcudnn.so.9 is there twice" in finding
    (tmp_path / "wheel").rename(tmp_path / "cu12")
    (tmp_path / "system").rename(tmp_path / "cu13")
    (tmp_path / "cu12" / "lib" / "libcudnn.so.9").rename(tmp_path / "cu12" / "libcudnn.so.9")
    assert not any("twice" in line for line in libraries.split_families(libraries.read_libraries(tmp_path)))


def test_a_broken_library_is_named(tmp_path):
    (tmp_path / "broken.so").write_bytes(b"\x7fELF" + b"\0" * 4)
    with pytest.raises(SystemExit, match=r"broken\.so is not a readable library"):
        libraries.read_libraries(tmp_path)


ANSWER = {"cuda": "13.0", "cudnn": 92400, "nccl": [2, 30, 7], "targets": ["sm_90", "sm_120"]}
VERSIONS = {"nvidia-cudnn-cu13": "9.24.0.43", "nvidia-nccl-cu13": "2.30.7"}


def test_what_torch_was_built_for():
    assert torch_build.judge(ANSWER, VERSIONS, "13.0", ["sm_120"]) == []
    assert torch_build.judge(ANSWER, VERSIONS, "13.0", ["sm_121"]) == ["torch has no sm_121 code"]
    assert torch_build.judge({**ANSWER, "cuda": "12.9"}, VERSIONS, "13.0", []) == [
        "torch is built for CUDA 12.9, the stack is CUDA 13.0"
    ]
    assert torch_build.judge({**ANSWER, "cuda": None}, {}, "13.0", [])[0].startswith(
        "torch is built for CUDA none"
    )
    older = {**VERSIONS, "nvidia-cudnn-cu13": "9.20.0.48", "nvidia-nccl-cu13": "2.28.9"}
    assert torch_build.judge(ANSWER, older, "13.0", []) == [
        "torch uses cudnn 9.24.0, and nvidia-cudnn-cu13 is 9.20.0.48",
        "torch uses nccl 2.30.7, and nvidia-nccl-cu13 is 2.28.9",
    ]

"""A package of this repository in an image: its own steps, a RECORD that holds, a selftest that looks."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import install_package
import pytest
import selftest
from distributions import altered_files, read_distributions

from tooling.base.bootstrap import BaseImage
from tooling.build.context import Ingredients, render_dockerfile
from tooling.build.local import local_packages
from tooling.errors import InputError
from tooling.stack import Stack, load_stack

ROOT = Path(__file__).resolve().parents[2]
STACK = load_stack("cu130", ROOT).stack
BASE = BaseImage(reference="base:1", image_id="sha256:1", packages={"libc6": "1"}, drift=(), epoch=86400)
SITE = Path("/opt/stack/lib/python3.11/site-packages")
PROJECT = """[project]
name = "some-thing"
version = "1.2"
description = "a thing"
[project.entry-points."sglang.srt.plugins"]
some-thing = "some_thing:register"
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "images" / "thing"
    (folder / "some_thing" / "__pycache__").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "some_thing" / "__init__.py").write_text("register = print\n")
    (folder / "some_thing" / "__pycache__" / "x.pyc").write_text("")
    shutil.copytree(ROOT / "images" / "packaging", tmp_path / "images" / "packaging")
    return folder


def _install(source: Path, out: Path, monkeypatch, *more: Path) -> Path:
    monkeypatch.setenv("EPOCH", "86400")
    monkeypatch.setattr("sys.argv", ["install", str(source), str(SITE), str(out), *map(str, more)])
    assert install_package.main() == 0
    return out / SITE.relative_to("/")


def test_it_is_an_installed_distribution_whose_files_are_recorded(source, tmp_path, monkeypatch):
    site = _install(source, tmp_path / "out", monkeypatch)
    (found,) = importlib.metadata.distributions(path=[str(site)])
    (point,) = found.entry_points
    assert (found.name, found.version, point.group) == ("some-thing", "1.2", "sglang.srt.plugins")
    assert point.value == "some_thing:register"
    distributions = read_distributions(site)
    findings, files, _ = altered_files(distributions)
    assert (findings, files) == ([], 5), "the image's own check of packages accepts it"
    (site / "some_thing" / "__init__.py").write_text("changed\n")
    findings, _, _ = altered_files(read_distributions(site))
    assert findings == ["some-thing: some_thing/__init__.py is not as in its wheel"]


def test_equal_inputs_give_equal_files(source, tmp_path, monkeypatch):
    first = _install(source, tmp_path / "a", monkeypatch)
    second = _install(source, tmp_path / "b", monkeypatch)
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert len(names) == 6
    assert "some_thing/__pycache__/x.pyc" not in names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert (first / name).stat().st_mtime == 86400


def test_compiled_files_go_into_the_package(source, tmp_path, monkeypatch):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "lib.so").write_bytes(b"code")
    site = _install(source, tmp_path / "out", monkeypatch, tmp_path / "compiled")
    assert (site / "some_thing" / "lib.so").stat().st_mode & 0o111
    assert "Root-Is-Purelib: false" in (site / "some_thing-1.2.dist-info" / "WHEEL").read_text()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: (s / "pyproject.toml").unlink(), "has no project"),
        (lambda s: (s / "pyproject.toml").write_text("[project]\nname = 'a'\n"), "does not say"),
        (lambda s: shutil.rmtree(s / "some_thing"), "has no package"),
        (
            lambda s: (s / "pyproject.toml").write_text(
                PROJECT.replace("[project.", "dependencies = ['x']\n[project.")
            ),
            "no requirements",
        ),
    ],
)
def test_what_is_no_package_is_refused(  # noqa: PLR0917
    source, tmp_path, monkeypatch, capsys, edit, message
):
    edit(source)
    monkeypatch.setattr("sys.argv", ["install", str(source), str(SITE), str(tmp_path / "out")])
    assert install_package.main() == 1
    assert message in capsys.readouterr().err


def test_a_name_that_site_packages_has_is_refused(source, tmp_path):
    (tmp_path / "site" / "some_thing").mkdir(parents=True)
    with pytest.raises(install_package.RefusedError, match="has some_thing already"):
        install_package.install(source, tmp_path / "site", tmp_path / "out")


def _selftest(tmp_path: Path, monkeypatch, folders: list[str]) -> selftest.Result:
    monkeypatch.setattr(selftest, "SHARE", tmp_path / "out" / "opt/stack/share")
    for path in (tmp_path / "out" / "opt/stack/share/local").glob("*.json"):
        receipt = json.loads(path.read_text())
        if not receipt["record"].startswith(str(tmp_path)):
            receipt["record"] = str(tmp_path / "out" / receipt["record"].lstrip("/"))
            path.write_text(json.dumps(receipt))
    return selftest.check_local_packages({"local_packages": folders}, {})


def test_the_selftest_looks_at_every_file(source, tmp_path, monkeypatch):
    site = _install(source, tmp_path / "out", monkeypatch)
    good = _selftest(tmp_path, monkeypatch, ["thing"])
    assert (good.passed, good.seen) == (True, "some-thing 1.2: 5 files as built")
    assert not _selftest(tmp_path, monkeypatch, ["thing", "another"]).passed
    (site / "some_thing" / "__init__.py").write_text("changed\n")
    assert (
        "some_thing/__init__.py is missing or not as built" in _selftest(tmp_path, monkeypatch, ["thing"]).seen
    )


def test_the_selftest_fails_where_nothing_was_laid_in(tmp_path, monkeypatch):
    assert not _selftest(tmp_path, monkeypatch, ["thing"]).passed


def test_python_files_and_sources_to_compile_are_apart(source, tmp_path):
    (source / "csrc").mkdir()
    (source / "csrc" / "a.cu").touch()
    (source / "build_native.py").touch()
    (package,) = local_packages(_with_native({"some_thing": "12.0f"}), source.parent)
    assert (package.native, package.targets) == (True, "120f")
    assert list(package.native_files()) == ["build_native.py", "csrc/a.cu"]
    package.put(tmp_path / "context")
    found = {str(path.relative_to(tmp_path / "context")) for path in (tmp_path / "context").rglob("*.*")}
    assert found == {
        "packaging/install_package.py",
        "local/thing/python/pyproject.toml",
        "local/thing/python/some_thing/__init__.py",
        "local/thing/native/build_native.py",
        "local/thing/native/csrc/a.cu",
    }


def _with_native(native: dict[str, str]) -> Stack:
    assert STACK.kernels is not None
    kernels = STACK.kernels.model_copy(update={"native": native})
    return STACK.model_copy(update={"local_packages": ("thing",), "kernels": kernels})


@pytest.mark.parametrize(
    ("compiled", "native", "message"),
    [
        (True, {}, "does not say for which architecture"),
        (False, {"some_thing": "12.0f"}, "has no build_native.py, and the stack compiles it for 12.0f"),
        (True, {"some_thing": "12.0f", "other": "12.0f"}, "no local package is other"),
    ],
)
def test_stack_and_package_agree_on_what_is_compiled(source, compiled, native, message):
    if compiled:
        (source / "build_native.py").touch()
    with pytest.raises(InputError, match=message):
        local_packages(_with_native(native), source.parent)


def test_a_folder_without_a_package_is_refused(tmp_path):
    with pytest.raises(InputError, match="is no package"):
        local_packages(STACK, tmp_path)


def test_its_steps_come_last_and_touch_no_package_layer():
    text = render_dockerfile(STACK, BASE, Ingredients(), ROOT / "images", {}, ca=False)
    assert STACK.kernels is not None
    kernels = STACK.kernels.model_copy(update={"native": {}})
    bare = STACK.model_copy(update={"local_packages": (), "kernels": kernels})
    without = render_dockerfile(bare, BASE, Ingredients(), ROOT / "images", {}, ca=False)
    stage = "FROM packages AS local-kernels\n"
    assert stage in text
    assert text.startswith(without.partition("FROM packages AS image")[0]), "no earlier step knows of it"
    copies = re.findall(r"^COPY .*$", text, flags=re.MULTILINE)
    assert copies[-2:] == [
        "COPY --from=native-kernels /out/receipt/ /",
        "COPY --from=local-kernels /out/ /",
    ]
    native = text.partition("FROM packages AS native-kernels\n")[2].partition("\nFROM ")[0]
    assert "--architectures 120f" in native
    assert "source=imported/blackwell_kernels,target=/run/build/imported" in native
    assert "--out /out/library/libblackwell_kernels.so" in native
    assert "sharing=locked" in native
    assert "local/kernels/python" not in native, "Python files do not make it compile"

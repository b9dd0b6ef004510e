"""What holds for every file of the repository."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
).stdout.splitlines()
CODE = [name for name in FILES if name.endswith((".py", ".sh", ".cu", ".cuh", ".j2")) or "/" not in name]
#: Put together here, so that this file does not match itself.
HOSTS = [
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("deb.debian", "org"), ("npmjs", "org"))
]


def test_there_is_something_to_look_at():
    assert len(CODE) > 30


def test_no_registry_host_is_named():
    for name in FILES:
        content = (ROOT / name).read_bytes()
        assert not [host for host in HOSTS if host.encode() in content], name


@pytest.mark.parametrize("name", CODE)
def test_files_are_small_and_checks_can_fail(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        assert text.count("\n") <= 600
    assert not re.search(r"\|\| true\b", text) or name == "tests/unit/test_repository.py"
    assert not re.search(r"^\s*except:\s*$", text, re.MULTILINE)


def test_no_file_is_large():
    assert [name for name in FILES if (ROOT / name).stat().st_size > 4_000_000] == []

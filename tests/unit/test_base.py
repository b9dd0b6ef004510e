from pathlib import Path

import pytest

from tooling.base.bootstrap import mmdebstrap_argv, read_base_lock
from tooling.base.packages import BaseLock, drift, parse_base_lock, parse_dpkg, render_base_lock
from tooling.base.sources import sources_for
from tooling.errors import InputError
from tooling.stack.loading import load_stack
from tooling.stack.model import Bootstrap

ROOT = Path(__file__).resolve().parents[2]
TARGETS = [
    "http://mirror.example/debian/|bookworm|main|",
    "http://mirror.example/debian/|bookworm-updates|main|/usr/share/keyrings/own.gpg",
    "http://mirror.example/debian-security/|bookworm-security|main|",
    "http://mirror.example/debian/|bookworm|contrib|",
    "https://other.example/node_20.x/|nodistro|main|",
]
LOCK = BaseLock(
    stack="tiny", request_sha256="a" * 64, epoch=86400, packages={"libc6": "2.36-9 amd64", "tini": "1 amd64"}
)


def test_sources_are_the_machines_own():
    assert sources_for("bookworm", TARGETS, "/k.gpg") == [
        "deb [signed-by=/k.gpg] http://mirror.example/debian/ bookworm main",
        "deb [signed-by=/usr/share/keyrings/own.gpg] http://mirror.example/debian/ bookworm-updates main",
        "deb [signed-by=/k.gpg] http://mirror.example/debian-security/ bookworm-security main",
    ]


def test_sources_of_another_suite_are_derived():
    assert "deb [signed-by=/k.gpg] http://mirror.example/debian/ trixie main" in sources_for(
        "trixie", TARGETS, "/k.gpg"
    )


def test_a_machine_without_a_source_is_told():
    with pytest.raises(InputError, match="no source of the distribution"):
        sources_for("bookworm", TARGETS[-1:], "/k.gpg")


def test_the_bootstrap_command():
    argv = mmdebstrap_argv(
        Bootstrap(suite="bookworm", packages=("python3.11", "tini")), "x86_64", ["deb x"], Path("/t/base.tar")
    )
    assert argv[:4] == ["mmdebstrap", "--variant=minbase", "--architectures=amd64", "--include=python3.11,tini"]
    assert argv[-3:] == ["bookworm", "/t/base.tar", "deb x"]
    assert "--dpkgopt=path-include=/usr/share/doc/*/copyright" in argv
    assert any("useradd --uid 10001" in word for word in argv)
    assert not any("allow-unauthenticated" in word.lower() or "trusted=yes" in word for word in argv)


def test_a_base_lock_comes_back_as_it_was_written():
    assert parse_base_lock(render_base_lock(LOCK), Path("x")) == LOCK


def test_an_empty_base_lock_is_refused():
    with pytest.raises(InputError, match="not a base lock"):
        parse_base_lock(render_base_lock(LOCK.model_copy(update={"packages": {}})), Path("x"))


def test_drift_names_each_package():
    found = {"libc6": "2.36-10 amd64", "zlib1g": "1 amd64"}
    assert drift(LOCK.packages, found) == [
        "libc6: locked 2.36-9 amd64, found 2.36-10 amd64",
        "tini: locked 1 amd64, found absent",
        "zlib1g: locked absent, found 1 amd64",
    ]
    assert drift(LOCK.packages, LOCK.packages) == []


def test_dpkgs_lines():
    assert parse_dpkg("libc6=2.36-9 amd64\ntini=0.19=x amd64\n\n") == {
        "libc6": "2.36-9 amd64",
        "tini": "0.19=x amd64",
    }


def test_every_base_lock_of_the_checkout_is_its_stacks():
    for path in (ROOT / "stacks").glob("*.yaml"):
        file = load_stack(path.stem, ROOT)
        if file.stack.base.bootstrap is not None and file.lock_path.is_file():
            assert {"libc6", "tini"} <= read_base_lock(file).packages.keys()

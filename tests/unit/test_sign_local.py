"""The local key: made once, under a passphrase, readable by its user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.sign.errors import KeyFileError
from tooling.sign.keys import Trust
from tooling.sign.local import local_key
from tooling.sign.passphrase import PASSPHRASE_VARIABLE


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_key_is_made_on_first_use_and_used_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "only for this test")
    key = local_key(said.append, folder=tmp_path / "keys")
    assert local_key(said.append, folder=tmp_path / "keys").id == key.id
    assert Trust.load(tmp_path / "keys").get(key.id) is not None
    assert (tmp_path / "keys" / "local.key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "keys" / "local.passphrase").exists()
    assert all("local" in line and "proves no more" in line for line in said)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "another one")
    with pytest.raises(KeyFileError, match="wrong passphrase"):
        local_key(said.append, folder=tmp_path / "keys")


def test_where_nobody_can_be_asked_a_random_passphrase_lies_beside_the_key_and_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    with Path("/dev/null").open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        key = local_key(said.append, folder=tmp_path)
    kept = tmp_path / "local.passphrase"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert any(str(kept) in line for line in said)
    assert not any(kept.read_text().strip() in line for line in said)
    assert local_key(said.append, folder=tmp_path).id == key.id


def test_the_passphrase_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]):
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    (tmp_path / "word").write_text("only from this file\n")
    key = local_key(said.append, tmp_path / "word", folder=tmp_path / "keys")
    assert local_key(said.append, tmp_path / "word", folder=tmp_path / "keys").id == key.id

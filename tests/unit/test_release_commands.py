"""The commands as a person uses them, as far as no registry is needed."""

import json
from pathlib import Path

import pytest

from tests.unit.release_examples import CPU_POLICY, waiver
from tooling import cli
from tooling.commands.release_options import read_yaml
from tooling.errors import InputError
from tooling.release.records import ReleasePolicy, Waiver
from tooling.sign.keys import SigningKey
from tooling.sign.passphrase import PASSPHRASE_VARIABLE

PASSPHRASE = "only for these tests"  # noqa: S105


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["blackwell-stacks", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_keygen_writes_a_pair_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    assert _run(monkeypatch, "keygen", str(tmp_path / "release"), "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert SigningKey.load(Path(told["private"]), PASSPHRASE).id == told["key_id"]
    assert PASSPHRASE not in shown.out + shown.err
    assert _run(monkeypatch, "keygen", str(tmp_path / "release"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "KeyFileError"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["releases", "127.0.0.1:1/x", "--trust", "{tmp}/none"], "no trusted key can be read"),
        (["verify", "Not An Image", "--trust", "{tmp}/k.pub"], "is no image name"),
        (["verify", "127.0.0.1:1/x", "--trust", "{tmp}/k.pub"], "which release is meant?"),
        (["verify", "oci:{tmp}/none:x", "--trust", "{tmp}/k.pub"], "no OCI layout"),
        (["show", "127.0.0.1:1/x:beta", "--trust", "{tmp}/k.pub"], "no channel 'beta'"),
        (
            ["verify", "127.0.0.1:1/x:stable", "--trust", "{tmp}/k.pub", "--policy", "{tmp}/none"],
            "cannot be read",
        ),
        (["import-layout", "{tmp}", "127.0.0.1:1/x", "--trust", "{tmp}/k.pub"], "no OCI layout"),
    ],
)
def test_bad_input_is_one_message_and_an_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
):
    (tmp_path / "k.pub").write_bytes(SigningKey.generate().public.pem())
    assert _run(monkeypatch, *[item.format(tmp=tmp_path) for item in arguments]) != 0
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_policies_and_waivers_are_read_from_yaml(tmp_path: Path):
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(CPU_POLICY.model_dump(mode="json")))
    assert read_yaml(file, ReleasePolicy) == CPU_POLICY
    one = waiver("gate:x")
    file.write_text(json.dumps([one.model_dump(mode="json")]))
    assert read_yaml(file, tuple[Waiver, ...]) == (one,)


@pytest.mark.parametrize(
    "text", ["gates: []", "device: tpu", "- 1", "{", "", "device: cpu\ngates: [{gate: x, gatez: 1}]"]
)
def test_a_policy_that_is_none_names_the_file(tmp_path: Path, text: str):
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"policy\.yaml"):
        read_yaml(file, ReleasePolicy)

"""The host program as one file: what it is made of, what it says, and what it makes of its surroundings."""

from __future__ import annotations

import ast
import base64
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.programs import require_program
from tests.unit.host_examples import DIGEST, document, request
from tooling.attest.statement import PAYLOAD_TYPE
from tooling.errors import CheckError, InputError
from tooling.host import preflight
from tooling.host.bundle import bundle, bundle_name, sources
from tooling.host.docker import PullProgress
from tooling.host.events import Events, follow
from tooling.host.pin import pause_program, pin_argv
from tooling.host.refusals import explain
from tooling.host.request import Layer
from tooling.host.trust import verify_records
from tooling.host.unit import unit_text
from tooling.sign.keys import SigningKey

PACKAGE = Path(preflight.__file__).parent
ALLOWED = {"tooling.errors", "tooling.host"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_standard_library_is_imported_and_python_3_9_reads_it(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    foreign = {
        name
        for name in names
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == one or name.startswith(f"{one}.") for one in ALLOWED)
    }
    assert foreign == set()
    assert names or path.name == "__init__.py"


def test_the_one_file_runs_where_nothing_is_installed(tmp_path):
    path = tmp_path / "host.pyz"
    path.write_bytes(bundle())
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "--json", "version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    said = json.loads(done.stdout)
    assert said["protocol"] == 1
    assert bundle_name(bundle()) == f"blackwell-host-{said['sha256'][:12]}.pyz"


def test_the_same_sources_make_the_same_bytes():
    assert bundle() == bundle()
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        assert archive.namelist() == sorted(sources())
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    assert not any("bundle" in name for name in sources())


def _run(tmp_path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tooling.host", "--root", str(tmp_path / "root"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["deploy"], "{", "no JSON"),
        (["deploy"], json.dumps(document(surprise=1)), "unknown fields: surprise"),
        (["deploy", "--request", "/nowhere"], "", "cannot be read"),
        (["--group", "other", "deploy"], json.dumps(document()), "the request is for group default"),
        (["--group", "../x", "status"], "", "no name of a group"),
        (["rollback", "-3"], "", ""),
        (["follow"], "", "there was no operation"),
        (["follow", "../../etc"], "", "there is no operation"),
        (["confirm", "nobody"], "", "does not run any more"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(tmp_path, arguments, stdin, message):
    done = _run(tmp_path, *arguments, stdin=stdin)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_boot_of_an_unused_host_is_no_failure(tmp_path):
    done = _run(tmp_path, "reconcile")
    assert done.returncode == 0
    assert "nothing was ever deployed here" in done.stderr


def test_an_error_of_a_followed_command_is_its_last_event(tmp_path):
    done = _run(tmp_path, "--json", "deploy", stdin="{")
    event = json.loads(done.stdout)
    assert (event["step"], event["state"], event["data"]["exit_code"]) == ("result", "failed", 2)


def test_events_are_followed_to_the_result_and_an_early_end_is_said(tmp_path):
    path = tmp_path / "events.jsonl"
    events = Events(path, "op")
    events.start("pull", "begins", layers=3)
    with pytest.raises(Exception, match="ended without a result"):
        list(follow(path, lambda: False))
    events.done("result", "done", exit_code=0)
    found = list(follow(path, lambda: True))
    assert [event["step"] for event in found] == ["pull", "result"]
    assert found[0]["data"] == {"layers": 3}
    Events(tmp_path / "no" / "such" / "folder", "op").start("x", "a full disk stops nothing")


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "client version 1.43 is too old. Minimum supported API version is 1.44, please upgrade your client",
            "speaks API 1.43 and is too old, the engine's limit is 1.44",
        ),
        (
            "Error response from daemon: client version 1.52 is too new. Maximum supported API version is 1.41",
            "speaks API 1.52 and is too new, the engine's limit is 1.41",
        ),
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "no Docker Engine"),
        ("Got permission denied while trying to connect to the Docker daemon socket", "refuses this user"),
        ("failed to register layer: write /x: no space left on device", "disk is full"),
        ("container PID 7 is zombie and can not be killed. Use the --init option", "zombie"),
        ('could not select device driver "" with capabilities: [[gpu]]', "cannot hand out the GPUs"),
        ("unresolvable CDI devices nvidia.com/gpu=9", "cannot hand out the GPUs"),
        ("exec /usr/bin/python3: exec format error", "not for this host's architecture"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "architecture"),
        ("Bind for 127.0.0.1:30000 failed: port is already allocated", "is taken"),
        ("pull access denied, unauthorized: authentication required", "refuses this host's login"),
        ("manifest unknown: manifest unknown", "has no such image"),
        (
            'Get "http://127.0.0.1:5/v2/": dial tcp 127.0.0.1:5: connect: connection refused',
            "cannot be reached",
        ),
        ("something new", "docker pull failed: something new"),
        ("", "no message"),
    ],
)
def test_the_engine_s_refusals_are_told_apart(said, meaning):
    error = explain("pull", f"some line\n{said}" if said else "")
    assert meaning in error.what
    assert error.fix


def test_progress_of_a_pull_counts_layers():
    progress = PullProgress()
    lines = """\
x@sha256:1: Pulling from y
aaaaaaaaaaaa: Already exists
bbbbbbbbbbbb: Pulling fs layer
cccccccccccc: Pulling fs layer
bbbbbbbbbbbb: Download complete
bbbbbbbbbbbb: Pull complete
Digest: sha256:1""".splitlines()
    assert [progress.read(line) for line in lines] == [False, True, True, True, True, True, False]
    assert progress.as_json() == {"layers": 3, "present": 1, "downloaded": 1, "unpacked": 1}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_pin_s_program_is_a_valid_static_one(tmp_path, machine):
    content = pause_program(machine)
    assert len(content) < 200
    path = tmp_path / "pause"
    path.write_bytes(content)
    readelf = require_program("readelf", "binutils")
    text = subprocess.run([readelf, "-hl", str(path)], capture_output=True, text=True, check=True).stdout
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in text
    assert "EXEC" in text
    assert "INTERP" not in text


def test_the_pin_asks_for_nothing():
    argv = pin_argv("docker", "p", "sha256:1", {"a": "b"})
    assert argv[-3:] == ["--entrypoint", "/blackwell-pause", "sha256:1"]
    assert argv[argv.index("--network") + 1] == "none"
    assert argv[argv.index("--stop-signal") + 1] == "SIGKILL"
    with pytest.raises(Exception, match="riscv64"):
        pause_program("riscv64")


def test_only_layers_above_the_longest_common_base_are_missing():
    layers = [Layer(f"sha256:{digit * 64}", 10, 20) for digit in "abcd"]
    ids = [layer.diff_id for layer in layers]
    images: list[dict[str, Any]] = [
        {"RootFS": {"Layers": ids[:2]}},
        {"RootFS": {"Layers": ["x", *ids]}},
        {"RootFS": None},
    ]
    assert preflight.missing_layers(images, layers) == tuple(layers[2:])
    assert preflight.missing_layers([], layers) == tuple(layers)
    # The same patch on another base is stored again.
    assert preflight.missing_layers([{"RootFS": {"Layers": [ids[1]]}}], layers) == tuple(layers)


def test_the_unit_reconciles_after_boot_and_after_an_engine_restart():
    text = unit_text(["/usr/bin/python3", "/opt/a b/host.pyz", "--root", "/r"], "unix:///x")
    assert 'ExecStart=/usr/bin/python3 "/opt/a b/host.pyz" --root /r reconcile' in text
    assert "Environment=DOCKER_HOST=unix:///x" in text
    assert "After=docker.service" in text
    assert "PartOf=docker.service" in text
    assert "WantedBy=multi-user.target docker.service" in text


@pytest.fixture
def signed():
    """A function that signs a statement about a digest as the release chain does, with a key's PEM."""
    require_program("openssl", "openssl")
    from securesystemslib.dsse import Envelope  # noqa: PLC0415

    key = SigningKey.generate()

    def make(digest: str) -> dict[str, object]:
        payload = json.dumps({"subject": [{"name": "x", "digest": {"sha256": digest[7:]}}]}).encode()
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(key.signer())
        (signature,) = envelope.to_dict()["signatures"]
        return {
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": signature["sig"]}],
            }
        }

    return make, key.public.pem().decode()


def test_records_are_verified_on_the_host(tmp_path, signed):
    sign, pem = signed
    record = sign(DIGEST)
    assert "1 records are signed" in verify_records(tmp_path, request(records=[record], trust=[pem]))
    with pytest.raises(CheckError, match="about another image"):
        verify_records(tmp_path, request(records=[sign("sha256:" + "9" * 64)], trust=[pem]))
    other = SigningKey.generate().public.pem().decode()
    with pytest.raises(CheckError, match="signed by none of the 1 trusted keys"):
        verify_records(tmp_path, request(records=[record], trust=[other]))
    record["dsseEnvelope"]["payload"] = base64.b64encode(b'{"subject": []}').decode()
    with pytest.raises(CheckError, match="signed by none"):
        verify_records(tmp_path, request(records=[record], trust=[pem]))
    with pytest.raises(CheckError, match="no signed record"):
        verify_records(tmp_path, request(records=[{"x": 1}], trust=[pem]))


def test_the_host_s_own_keys_come_before_those_of_the_request(tmp_path, signed):
    sign, pem = signed
    (tmp_path / "trust").mkdir()
    (tmp_path / "trust" / "release.pub").write_text(SigningKey.generate().public.pem().decode())
    with pytest.raises(CheckError, match="signed by none"):
        verify_records(tmp_path, request(records=[sign(DIGEST)], trust=[pem]))
    with pytest.raises(CheckError, match="brings no signed record"):
        verify_records(tmp_path, request())
    (tmp_path / "trust" / "release.pub").write_text(pem)
    assert "the host's own keys" in verify_records(tmp_path, request(records=[sign(DIGEST)], trust=[pem]))
    assert "not checked here" in verify_records(tmp_path / "nowhere", request())


def test_files_of_the_host_are_looked_for(tmp_path):
    model = {"id": "org/m", "revision": "0123abc", "path": str(tmp_path / "snapshots" / "0123abc")}
    given = {"contract__mounts": [], "contract__environment_files": [], "model": model}
    with pytest.raises(InputError, match=r"org/m at revision 0123abc is not on this host"):
        preflight.check_files(request(**given))
    (tmp_path / "snapshots" / "0123abc").mkdir(parents=True)
    with pytest.raises(InputError, match="is not on this host"):  # an empty folder is no model
        preflight.check_files(request(**given))
    (tmp_path / "snapshots" / "0123abc" / "config.json").touch()
    preflight.check_files(request(**given))
    mount = {"source": str(tmp_path / "no"), "target": "/x", "read_only": True}
    with pytest.raises(InputError, match="is to be mounted"):
        preflight.check_files(request(**{**given, "contract__mounts": [mount]}))
    with pytest.raises(InputError, match="environment file"):
        preflight.check_files(request(**{**given, "contract__environment_files": [str(tmp_path / "env")]}))

"""The exact commands by which hosts are reached, and what an inventory may say."""

import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from tooling.deploy.inventory import (
    SCHEMA_PATH,
    GpuGroup,
    Host,
    Inventory,
    Model,
    Workload,
    inventory_schema,
    read_inventory,
)
from tooling.deploy.transport import Forward, host_program, remote_command
from tooling.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
STRICT = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15"]
ALIVE = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_over_ssh():
    assert remote_command(Host(name="box", ssh="admin@box.example"), ["docker", "ps"]) == [
        "ssh", *STRICT, *ALIVE, "-T", "--", "admin@box.example", "docker ps",
    ]  # fmt: skip


def test_over_ssh_with_everything():
    host = Host(name="box", jump="gate", sudo=True)
    argv = remote_command(
        host, ["python3", "-"], config=Path("/etc/own"), forward=Forward(there=45000, here=5000)
    )
    assert argv == [
        "ssh", "-F", "/etc/own", *STRICT, *ALIVE, "-J", "gate",
        "-o", "ExitOnForwardFailure=yes", "-R", "127.0.0.1:45000:127.0.0.1:5000",
        "-T", "--", "box", "sudo -n python3 -",
    ]  # fmt: skip


def test_here():
    assert remote_command(Host(name="here", transport="local"), ["docker", "ps"]) == ["docker", "ps"]


def test_into_a_container_of_a_proxmox_host():
    host = Host(name="lxc", transport="pct", container=101, ssh="root@pve")
    words = ["python3", "-c", "print('a b')"]
    argv = remote_command(host, words)
    assert argv[:1] + argv[-3:-1] == ["ssh", "--", "root@pve"]
    assert shlex.split(argv[-1]) == ["pct", "exec", "101", "--", *words]
    on_it = Host(name="lxc", transport="pct", container=101, sudo=True)
    assert remote_command(on_it, ["id"]) == ["sudo", "-n", "pct", "exec", "101", "--", "id"]


def test_pct_forwards_nothing():
    host = Host(name="lxc", transport="pct", container=101, ssh="root@pve")
    with pytest.raises(InputError, match="pct exec forwards no port"):
        remote_command(host, ["id"], forward=Forward(there=1, here=1))


@pytest.mark.parametrize("word", ["a b", "$(reboot)", "'; reboot; '", "`id`", "ä\n\t*", "-oProxyCommand=x", ""])
def test_words_arrive_as_they_are(word):
    argv = remote_command(Host(name="box"), ["printf", "%s", word])
    assert shlex.split(argv[-1]) == ["printf", "%s", word]


@pytest.mark.parametrize("name", ["-oProxyCommand=reboot", "a b", "box;id", ""])
def test_a_destination_that_ssh_would_read_as_something_else_is_refused(name):
    with pytest.raises(ValidationError):
        Host(name="x", ssh=name or "-")


def test_the_host_programs_command_line():
    host = Host(name="box", root="/srv/state")
    assert host_program(host, "/srv/state/bin/p.pyz", "numa0", "rollback", "7") == [
        "python3", "/srv/state/bin/p.pyz", "--root", "/srv/state", "--group", "numa0", "--json",
        "rollback", "7",
    ]  # fmt: skip


# --- the inventory ---------------------------------------------------------------------

TEXT = f"""\
repository: registry.example:5000/team/cu130
workload:
  model: {{id: Qwen/Qwen3-32B, revision: {COMMIT}}}
  arguments: [--tp=4]
hosts:
  - name: box1
    ssh: admin@box1
    model_cache: /srv/huggingface
    groups:
      - {{name: numa0, gpus: ["0", "1", "2", "3"], port: 30000}}
      - {{name: numa1, gpus: ["4", "5", "6", "7"], port: 30001}}
  - name: lxc
    transport: pct
    ssh: root@pve
    container: 101
    workload: {{arguments: [--mem-fraction-static=0.8]}}
"""


@pytest.fixture
def inventory(tmp_path) -> Inventory:
    (tmp_path / "hosts.yaml").write_text(TEXT)
    return read_inventory(tmp_path / "hosts.yaml")


def test_an_inventory_is_read_in_its_order(inventory):
    assert [host.name for host in inventory.chosen(())] == ["box1", "lxc"]
    assert [host.name for host in inventory.chosen(("lxc",))] == ["lxc"]
    assert [group.name for group in inventory.hosts[0].groups] == ["numa0", "numa1"]
    assert inventory.hosts[0].bind == "127.0.0.1"


def test_a_host_adds_to_what_all_hosts_serve(inventory):
    merged = inventory.hosts[1].workload.over(inventory.workload)
    assert merged.arguments == ("--tp=4", "--mem-fraction-static=0.8")
    assert merged.model is not None
    assert merged.model.id == "Qwen/Qwen3-32B"


def test_a_host_that_is_not_there_is_named(inventory):
    with pytest.raises(InputError, match="no host 'box9'") as caught:
        inventory.chosen(("box9",))
    assert "box1, lxc" in caught.value.fix


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("hosts:", "hostz:", "hostz: Extra inputs"),
        ("name: lxc", "name: box1", "two hosts have the same name"),
        ("port: 30001", "port: 30000", "the same port"),
        ('"7"]', '"0"]', "the same GPU"),
        (COMMIT, "main", "revision"),
        (COMMIT, COMMIT[:12], "full commit of 40 hex digits"),
        ("container: 101", "sudo: true", "container belongs to transport pct"),
        ("arguments: [--tp=4]", "environment: {HF_TOKEN: hf_x}", "HF_TOKEN looks like a secret"),
        ("- name: box1", "- name: -oProxyCommand", "hosts.0.name"),
    ],
)
def test_what_an_inventory_may_not_say(tmp_path, before, after, words):
    assert before in TEXT
    (tmp_path / "hosts.yaml").write_text(TEXT.replace(before, after))
    with pytest.raises(InputError) as caught:
        read_inventory(tmp_path / "hosts.yaml")
    assert words in str(caught.value)
    assert "hf_x" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "hosts: []", "a: b: c"])
def test_no_inventory_is_one_message(tmp_path, text):
    (tmp_path / "hosts.yaml").write_text(text)
    with pytest.raises(InputError, match="the inventory"):
        read_inventory(tmp_path / "hosts.yaml")


def test_a_missing_inventory_is_one_message(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_inventory(tmp_path / "none.yaml")


def test_weights_of_other_origin_may_have_another_hash():
    assert Model(id="tiny", revision="0123456", path="/srv/tiny").path == "/srv/tiny"


def test_the_general_workload_stays_where_nothing_is_said():
    general = Workload(environment={"A": "1", "B": "1"})
    assert Workload(environment={"B": "2"}).over(general).environment == {"A": "1", "B": "2"}


def test_a_gpu_is_listed_once():
    with pytest.raises(ValidationError, match="listed twice"):
        GpuGroup(gpus=("0", "0"))


def test_the_committed_schema_is_the_generated_one():
    committed = json.loads((ROOT / SCHEMA_PATH).read_text())
    assert committed == json.loads(json.dumps(inventory_schema())), "run: python -m tooling.deploy.schema"
    jsonschema.Draft202012Validator.check_schema(committed)
    jsonschema.validate(yaml.safe_load(TEXT), committed)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(TEXT), "surprise": 1}, committed)

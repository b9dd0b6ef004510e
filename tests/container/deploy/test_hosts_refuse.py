"""Hosts that cannot be used: one clear message each, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sshd import make_key
from tooling.deploy.channel import Channel
from tooling.deploy.faults import HostFault
from tooling.deploy.inventory import Host
from tooling.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.container.deploy.conftest import Box
    from tests.sshd import Sshd

pytestmark = pytest.mark.container


def _fault(host: Host, config: Path | None) -> HostFault:
    with pytest.raises(HostFault) as caught:
        Channel(host, config).check(["true"])
    return caught.value


def test_the_way_there(sshd: Sshd, tmp_path: Path):
    here = Host(name="here")
    assert Channel(here, sshd.config).check(["printf", "%s", "a b$c"]) == "a b$c"

    make_key(tmp_path / "stranger")
    public = (tmp_path / "stranger.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd.port} {public}")
    known = f"UserKnownHostsFile {sshd.home}/known"
    changed = _fault(here, sshd.variant("changed", known, f"UserKnownHostsFile {tmp_path}/known"))
    assert changed.fault == "host-key-changed"
    assert "ssh-keygen -R" in changed.fix
    unknown = _fault(here, sshd.variant("unknown", known, f"UserKnownHostsFile {tmp_path}/none"))
    assert unknown.fault == "host-key-unknown"
    assert not (tmp_path / "none").exists()  # it is never learnt unseen

    key = f"IdentityFile {sshd.home}/user"
    refused = _fault(here, sshd.variant("refused", key, f"IdentityFile {tmp_path}/stranger"))
    assert refused.fault == "ssh-login-refused"
    gone = _fault(here, sshd.variant("gone", f"Port {sshd.port}", "Port 1"))
    assert gone.fault == "ssh-unreachable"
    assert gone.where == "here"


def test_what_is_there(box: Box, tmp_path: Path):
    box.host["python"] = "/nowhere/python3"
    assert getattr(box.run("rollback").error, "fault", "") == "no-python"

    # The way in of a user who is in no group: the engine's socket refuses.
    nobody = "setpriv --reuid 65534 --clear-groups"
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {nobody} /usr/bin/python3 "$@"\n')
    (tmp_path / "python").chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    box.host["python"] = str(tmp_path / "python")
    refused = box.run("deploy", box.release("one").name)
    assert "may not use the host's Docker Engine" in str(refused.error)
    assert not (tmp_path / "state").exists()


def test_an_engine_that_is_not_there(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    box.host.update(name="local", transport="local")
    refused = box.run("deploy", box.release("one").name)
    assert refused.code == 1
    assert "Docker Engine does not answer" in str(refused.error)


def test_a_host_that_says_nothing_is_left_after_a_while():
    with pytest.raises(CommandError, match=r"did not answer within 0\.5 s"):
        Channel(Host(name="local", transport="local")).run(["sleep", "60"], limit_s=0.5)


def test_a_container_of_a_proxmox_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`pct exec` hands words and stdin on; a stand-in for it, which every Proxmox host has, does the same."""
    (tmp_path / "pct").write_text('#!/bin/sh\n[ "$1 $2 $3" = "exec 101 --" ] || exit 9\nshift 3\nexec "$@"\n')
    (tmp_path / "pct").chmod(0o755)
    host = Host(name="lxc", transport="pct", container=101)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Channel(host).check(["cat"], b"through\n") == "through"

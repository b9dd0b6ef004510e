"""Send an image to a host without a registry: its engine pulls, through ssh, only the layers that it lacks."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from tooling.deploy.air_gap import REPOSITORY, serve_image
from tooling.deploy.faults import HostFault, host_fault
from tooling.deploy.transport import Forward
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.deploy.channel import Channel
    from tooling.release.evidence import Source

#: Ports of the host that are tried, at random: below the range that Linux gives to outgoing connections.
_FIRST_PORT, _LAST_PORT, _ATTEMPTS = 20000, 32000, 5


class Sent(Record):
    """What travelled.

    Attributes:
        bytes_sent: Bytes of blobs that left this machine.
        blobs: How many blobs.
    """

    bytes_sent: int
    blobs: int


def pull_command(port: int, digest: str) -> list[str]:
    """What the host's engine is told; plain HTTP is what engines speak to their own loopback."""
    return ["docker", "pull", f"127.0.0.1:{port}/{REPOSITORY}@{digest}"]


def send_image(channel: Channel, source: Source, digest: str, say: Callable[[str], None]) -> Sent:
    """Bring an image to a host.

    Args:
        channel: The way to the host.
        source: Layout or registry that holds the image; only this machine has to reach it.
        digest: Of its manifest or index.
        say: Is told what happens.

    Raises:
        HostFault: The host's engine could not pull, or its sshd forwards nothing.
        InputError: The transport cannot forward.
    """
    host = channel.host
    with serve_image(source, digest) as endpoint:
        for attempt in range(_ATTEMPTS):
            there = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT)
            # On this machine the engine reaches us without a detour.
            local = host.transport == "local"
            forward = None if local else Forward(there=there, here=endpoint.port)
            command = pull_command(endpoint.port if local else there, digest)
            try:
                done = channel.run(command, on_line=say, forward=forward, limit_s=None)
            except HostFault as error:
                # Somebody may listen on that port; another one is as good.
                if error.fault != "ssh-forward-refused" or attempt + 1 == _ATTEMPTS:
                    raise
                continue
            break
        if done.code != 0:
            raise host_fault(host.name, done.code, done.err)
        sent = Sent(bytes_sent=endpoint.sent, blobs=len(endpoint.blobs))
    say(f"{host.name}: {sent.bytes_sent} bytes in {sent.blobs} blobs sent")
    return sent

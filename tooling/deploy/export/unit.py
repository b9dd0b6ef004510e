"""A systemd unit that holds the Docker client in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.deploy.export.command import MANAGED, RESTART_S, STARTS, STARTS_WITHIN_S, unit_word

if TYPE_CHECKING:
    from tooling.deploy.export.command import RunCommand

#: Seconds beyond the grace for Docker itself.
_STOP_EXTRA_S = 30


def systemd_unit(name: str, description: str, grace_s: int, command: RunCommand) -> str:
    """The unit's text; systemd restarts, so Docker does not.

    Args:
        name: Name of the container.
        description: For people.
        grace_s: Seconds that requests in flight get to end.
        command: What is run.
    """
    words = ["/usr/bin/docker", "run", "--rm", "--name", name]
    for option, value in command.options:
        if option not in MANAGED:
            words += [option, value] if value else [option]
    start = " \\\n  ".join(unit_word(word) for word in (*words, command.image, *command.words))
    lines = [
        "[Unit]",
        f"Description={description}",
        "Requires=docker.service",
        "Wants=network-online.target",
        "After=docker.service network-online.target",
        f"StartLimitIntervalSec={STARTS_WITHIN_S}",
        f"StartLimitBurst={STARTS}",
        "",
        "[Service]",
        f"ExecStartPre=-/usr/bin/docker rm {name}",
        f"ExecStart={start}",
        f"ExecStop=/usr/bin/docker stop --time {grace_s} {name}",
        f"TimeoutStopSec={grace_s + _STOP_EXTRA_S}",
        "TimeoutStartSec=infinity",
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"

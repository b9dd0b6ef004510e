"""A Podman quadlet (`<name>.container`, Podman 4.7 or newer)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.deploy.export.command import (
    MANAGED,
    RESTART_S,
    STARTS,
    STARTS_WITHIN_S,
    RunCommand,
    device_ids,
    unit_word,
    unknown_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds beyond the grace for Podman itself.
_STOP_EXTRA_S = 30


def quadlet(name: str, description: str, grace_s: int, command: RunCommand) -> str:
    """The file's text; GPUs come by CDI, which is Podman's way.

    Args:
        name: Name of the container.
        description: For people.
        grace_s: Seconds that requests in flight get to end.
        command: What is run.

    Raises:
        ToolkitError: An option has no words in a quadlet.
    """
    container = [f"ContainerName={name}", f"Image={command.image}"]
    for option, value in command.options:
        if option in _OPTIONS:
            container += _OPTIONS[option](value)
        elif option not in MANAGED:
            raise unknown_option(option, "a quadlet")
    if command.words:
        container.append(f"Exec={' '.join(unit_word(word) for word in command.words)}")
    lines = [
        "[Unit]",
        f"Description={description}",
        "Wants=network-online.target",
        "After=network-online.target",
        f"StartLimitIntervalSec={STARTS_WITHIN_S}",
        f"StartLimitBurst={STARTS}",
        "",
        "[Container]",
        *container,
        "",
        "[Service]",
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={grace_s + _STOP_EXTRA_S}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> Callable[[str], list[str]]:
    return lambda value: [f"{name}={value}"]


def _word(name: str) -> Callable[[str], list[str]]:
    return lambda value: [f"{name}={unit_word(value)}"]


def _podman(option: str) -> Callable[[str], list[str]]:
    """Through to Podman itself, for what older quadlets have no key for."""
    return lambda value: [f"PodmanArgs={option} {unit_word(value)}"]


def _log_option(value: str) -> list[str]:
    # Podman's driver keeps one file, so the number of files has no meaning there.
    return [f"PodmanArgs=--log-opt {value}"] if value.startswith("max-size=") else []


_OPTIONS: dict[str, Callable[[str], list[str]]] = {
    "--publish": _key("PublishPort"),
    "--user": _key("User"),
    "--network": _key("Network"),
    "--device": _key("AddDevice"),
    "--ulimit": _key("Ulimit"),
    "--mount": _key("Mount"),
    "--shm-size": _key("ShmSize"),
    "--env-file": _key("EnvironmentFile"),
    "--env": _word("Environment"),
    "--label": _word("Label"),
    "--ipc": _podman("--ipc"),
    "--stop-timeout": _podman("--stop-timeout"),
    "--log-driver": lambda _: ["LogDriver=k8s-file"],
    "--log-opt": _log_option,
    "--init": lambda _: ["RunInit=true"],
    "--gpus": lambda value: [f"AddDevice=nvidia.com/gpu={device}" for device in device_ids(value)],
}

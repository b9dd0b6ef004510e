"""A compose file with one service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from tooling.deploy.export.command import MANAGED, RunCommand, device_ids, mount_fields, unknown_option

if TYPE_CHECKING:
    from collections.abc import Callable

_Service = dict[str, Any]


def compose_file(name: str, command: RunCommand) -> str:
    """The file's text.

    Raises:
        ToolkitError: An option has no words in compose.
    """
    service: _Service = {"image": command.image, "container_name": name}
    if command.words:
        service["command"] = [_text(word) for word in command.words]
    for option, value in command.options:
        if option in _OPTIONS:
            _OPTIONS[option](service, value)
        elif option not in MANAGED:
            raise unknown_option(option, "a compose file")
    # `version` says nothing to the present compose, and everything to its first generation.
    document = {"version": "3.8", "services": {name: service}}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def _text(text: str) -> str:
    """Compose fills in variables by itself; a dollar is written twice."""
    return text.replace("$", "$$")


def _plain(key: str) -> Callable[[_Service, str], None]:
    def put(service: _Service, value: str) -> None:
        service[key] = value

    return put


def _listed(key: str) -> Callable[[_Service, str], None]:
    def put(service: _Service, value: str) -> None:
        service.setdefault(key, []).append(value)

    return put


def _paired(key: str) -> Callable[[_Service, str], None]:
    def put(service: _Service, value: str) -> None:
        name, _, content = value.partition("=")
        service.setdefault(key, {})[name] = _text(content)

    return put


def _init(service: _Service, _: str) -> None:
    service["init"] = True


def _grace(service: _Service, value: str) -> None:
    service["stop_grace_period"] = f"{value}s"


def _log_driver(service: _Service, value: str) -> None:
    service.setdefault("logging", {})["driver"] = value


def _log_option(service: _Service, value: str) -> None:
    name, _, content = value.partition("=")
    service.setdefault("logging", {}).setdefault("options", {})[name] = content


def _limit(service: _Service, value: str) -> None:
    name, _, content = value.partition("=")
    soft, _, hard = content.partition(":")
    service.setdefault("ulimits", {})[name] = {"soft": int(soft), "hard": int(hard or soft)}


def _gpus(service: _Service, value: str) -> None:
    device = {"driver": "nvidia", "device_ids": device_ids(value), "capabilities": ["gpu"]}
    service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}


def _mount(service: _Service, value: str) -> None:
    fields = mount_fields(value)
    mount: dict[str, Any] = {key: fields[key] for key in ("type", "source", "target")}
    if "readonly" in fields:
        mount["read_only"] = True
    service.setdefault("volumes", []).append(mount)


_OPTIONS: dict[str, Callable[[_Service, str], None]] = {
    "--restart": _plain("restart"),
    "--user": _plain("user"),
    "--network": _plain("network_mode"),
    "--ipc": _plain("ipc"),
    "--shm-size": _plain("shm_size"),
    "--env-file": _listed("env_file"),
    "--publish": _listed("ports"),
    "--device": _listed("devices"),
    "--env": _paired("environment"),
    "--label": _paired("labels"),
    "--init": _init,
    "--stop-timeout": _grace,
    "--log-driver": _log_driver,
    "--log-opt": _log_option,
    "--ulimit": _limit,
    "--gpus": _gpus,
    "--mount": _mount,
}

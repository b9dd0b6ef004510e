"""Is what runs what was asked for? Image by digest, and every field of the run contract, after every swap."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tooling.deploy.export.command import RunCommand, device_ids, mount_fields, take_apart
from tooling.deploy.faults import image_advice
from tooling.host.contract import run_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.deploy.session import HostSession
    from tooling.host.request import Request

_LABEL_GROUP, _LABEL_ROLE = "blackwell-stacks.group", "blackwell-stacks.role"


def find_command(group: str) -> list[str]:
    """Ids of the running containers that serve for a group."""
    filters = [f"label={_LABEL_GROUP}={group}", f"label={_LABEL_ROLE}=stack", "status=running"]
    return ["docker", "ps", "--quiet", "--no-trunc", *(word for each in filters for word in ("--filter", each))]


def running_problems(session: HostSession, request: Request) -> list[str]:
    """What differs between the running container of a group and its request; empty when nothing does.

    Raises:
        HostFault: The host's engine cannot be asked.
    """
    found = session.channel.check(find_command(request.group)).split()
    if len(found) != 1:
        return [f"{len(found)} containers run for group {request.group}, exactly one should"]
    document = json.loads(session.channel.check(["docker", "inspect", found[0]]))
    return differences(request, document[0])


def differences(
    request: Request, inspected: Mapping[str, Any], *, restart: str = "unless-stopped"
) -> list[str]:
    """What of a container is not as its request says, one sentence a field.

    The image's digest alone proves little: the same image with other arguments, mounts, variables, user or policy
    is another deployment.

    Args:
        request: What was asked for.
        inspected: The container as `docker inspect` prints it.
        restart: The policy that it should have by now.
    """
    image = image_advice(running=str(inspected.get("Image", "")), wanted=request.image_id)
    problems = [] if image is None else [image.what]
    want = expected(take_apart(run_argv(request)), restart)
    have = observed(inspected)
    for key, value in want.items():
        seen = have.get(key)
        if isinstance(value, dict) and isinstance(seen, dict):
            gone = sorted(name for name in value if seen.get(name) != value[name])
            if gone:
                problems.append(f"{key}: {', '.join(gone)} missing or changed")
        elif seen != value:
            problems.append(f"{key} is {seen!r}, should be {value!r}")
    # Whatever was mounted or published beside the contract is seen by the engine as well.
    problems.extend(
        f"{key}: {name} was not asked for"
        for key in ("mounts", "ports")
        for name in sorted(set(have[key]) - set(want[key]))
    )
    return problems


def expected(command: RunCommand, restart: str) -> dict[str, Any]:
    """The fields of a container that a `docker run` decides, in the shape of `observed`."""
    values: dict[str, list[str]] = {}
    for option, value in command.options:
        values.setdefault(option, []).append(value)

    def one(option: str) -> str:
        return next(iter(values.get(option, [])), "")

    fields: dict[str, Any] = {
        "arguments": list(command.words),
        "environment": dict(each.partition("=")[::2] for each in values.get("--env", [])),
        "labels": dict(each.partition("=")[::2] for each in values.get("--label", [])),
        "mounts": dict(_mount(mount_fields(each)) for each in values.get("--mount", [])),
        "ports": dict(_port(each) for each in values.get("--publish", [])),
        "restart": restart,
        "init": "--init" in values,
        "stop grace": int(one("--stop-timeout") or 0),
        "log": {"driver": one("--log-driver"), **dict(_pairs(values.get("--log-opt", [])))},
        "gpus": _wanted_gpus(values),
        "limits": dict(_pairs(values.get("--ulimit", []))),
    }
    for option, key in (("--user", "user"), ("--ipc", "ipc"), ("--network", "network")):
        if option in values:
            fields[key] = one(option)
    if "--shm-size" in values:
        fields["shared memory"] = int(one("--shm-size"))
    return fields


def observed(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields of a container that exists."""
    config, host = inspected["Config"], inspected["HostConfig"]
    requests = host.get("DeviceRequests") or []
    devices = [
        device
        for each in requests
        for device in (*(each.get("DeviceIDs") or ()), *([] if each.get("DeviceIDs") else ["all"]))
    ]
    return {
        "arguments": list(config.get("Cmd") or []),
        "environment": dict(each.partition("=")[::2] for each in config.get("Env") or []),
        "labels": dict(config.get("Labels") or {}),
        "mounts": {
            mount["Destination"]: f"{mount['Source']}{'' if mount['RW'] else ', read-only'}"
            for mount in inspected.get("Mounts") or []
        },
        "ports": {
            port.partition("/")[0]: f"{binding['HostIp'] or '0.0.0.0'}:{binding['HostPort']}"  # noqa: S104
            for port, bindings in (host.get("PortBindings") or {}).items()
            for binding in bindings or []
        },
        "restart": (host.get("RestartPolicy") or {}).get("Name") or "no",
        "init": bool(host.get("Init")),
        "stop grace": config.get("StopTimeout") or 0,
        "log": {"driver": host["LogConfig"]["Type"], **(host["LogConfig"].get("Config") or {})},
        "gpus": sorted(str(device).removeprefix("nvidia.com/gpu=") for device in devices),
        "limits": {each["Name"]: f"{each['Soft']}:{each['Hard']}" for each in host.get("Ulimits") or []},
        "user": config.get("User") or "",
        "ipc": host.get("IpcMode") or "",
        "network": host.get("NetworkMode") or "",
        "shared memory": host.get("ShmSize") or 0,
    }


def _pairs(values: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, content) for name, _, content in (each.partition("=") for each in values)]


def _mount(fields: Mapping[str, str]) -> tuple[str, str]:
    return fields["target"], f"{fields['source']}{', read-only' if 'readonly' in fields else ''}"


def _port(value: str) -> tuple[str, str]:
    outside, _, inside = value.rpartition(":")
    address, _, port = outside.rpartition(":")
    return inside, f"{address.strip('[]') or '0.0.0.0'}:{port}"  # noqa: S104


def _wanted_gpus(values: Mapping[str, Sequence[str]]) -> list[str]:
    by_hook = [device for each in values.get("--gpus", []) for device in device_ids(each)]
    return sorted([*by_hook, *(each.removeprefix("nvidia.com/gpu=") for each in values.get("--device", []))])

"""The container of a generation: made once by one command, and held against its record field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from tooling.errors import CheckError
from tooling.host.contract import VISIBLE, cache_directory, create_argv, generation_labels

if TYPE_CHECKING:
    from tooling.host.docker import Docker
    from tooling.host.host import Host
    from tooling.host.request import Contract
    from tooling.host.state import Generation

_LOCAL = "127.0.0.1"
_ANY = ("", "0.0.0.0", "::")  # noqa: S104  # what is published on all addresses answers on loopback


def ensure_container(host: Host, generation: Generation) -> bool:
    """Have the stopped or running container of a generation, exactly as its record says.

    One that differs from the record was not made by it: it is made anew, from the image by its content id.

    Returns:
        Whether it was made now.
    """
    name = host.name_of(generation)
    there = host.docker.inspect(name)
    if there is not None and not differences(there, generation):
        return False
    if there is not None:
        host.events.progress(
            "create", f"{name} is not as recorded and is made again", was=differences(there, generation)
        )
        host.docker.remove(name)
    image = find_image(host.docker, generation)
    argv = create_argv(generation.request, generation.number, image or generation.image)
    host.docker.call(*argv[1:])
    made = host.docker.inspect(name)
    wrong = differences(made, generation) if made else ["it is not there"]
    if wrong:
        raise CheckError(
            "the engine made another container than was asked for",
            where=name,
            details=wrong,
            fix="report this with the engine's version; nothing was stopped",
        )
    return True


def names_of(generation: Generation) -> tuple[str, str, str]:
    """Content ids of a generation's image.

    Engines name an image by its configuration or by its manifest, and one that changes its store changes that.
    """
    return generation.image, generation.request.image_id, generation.request.digest


def find_image(docker: Docker, generation: Generation) -> str:
    """Content id of a generation's image on this host; empty if it is gone."""
    found = (docker.inspect(name, "image") for name in names_of(generation))
    return next((str(one["Id"]) for one in found if one is not None), "")


def differences(inspected: dict[str, Any], generation: Generation) -> list[str]:
    """What a container has otherwise than its generation's record, one line a field."""
    contract = generation.request.contract
    config, host_config = inspected["Config"], inspected["HostConfig"]
    environment = set(config["Env"] or ())
    labels = {**contract.labels, **generation_labels(generation.request, generation.number)}
    has_labels = config["Labels"] or {}
    same_image = inspected["Image"] in names_of(generation)
    pairs: list[tuple[str, Any, Any]] = [
        ("image", generation.image, generation.image if same_image else inspected["Image"]),
        (
            "environment",
            [],
            sorted(f"{k}={v}" for k, v in contract.environment.items() if f"{k}={v}" not in environment),
        ),
        ("labels", [], sorted(key for key, value in labels.items() if has_labels.get(key) != value)),
        ("mounts", _wanted_mounts(generation), _mounts(inspected)),
        ("ports", _wanted_ports(contract), _ports(host_config)),
        ("gpus", sorted(contract.gpus), _gpus(host_config, environment)),
        ("init", contract.init, bool(host_config.get("Init"))),
        ("stop grace", contract.stop_grace_seconds, config.get("StopTimeout")),
    ]
    for name, wanted, has in (
        ("arguments", list(contract.arguments), config["Cmd"]),
        ("user", contract.user, config["User"]),
        ("network", contract.network, host_config["NetworkMode"]),
        ("ipc", contract.ipc, host_config["IpcMode"]),
        ("shm", contract.shm_bytes, host_config["ShmSize"]),
        ("memlock", contract.memlock, _memlock(host_config)),
    ):
        if wanted:  # else the image or the engine decides
            pairs.append((name, wanted, has))
    return [f"{name}: recorded {wanted}, there is {has}" for name, wanted, has in pairs if wanted != has]


def _wanted_mounts(generation: Generation) -> list[tuple[str, str, bool]]:
    contract = generation.request.contract
    wanted = [(mount.source, mount.target, not mount.read_only) for mount in contract.mounts]
    if contract.cache_mount:
        wanted.append((cache_directory(generation.request), contract.cache_mount.target, True))
    return sorted(wanted)


def _mounts(inspected: dict[str, Any]) -> list[tuple[str, str, bool]]:
    asked = inspected["HostConfig"].get("Mounts") or []
    return sorted((one["Source"], one["Target"], not one.get("ReadOnly", False)) for one in asked)


def _wanted_ports(contract: Contract) -> list[tuple[int, str, int]]:
    return sorted((port.container, port.address.strip("[]"), port.host) for port in contract.ports)


def _ports(host_config: dict[str, Any]) -> list[tuple[int, str, int]]:
    return sorted(
        (int(inner.split("/")[0]), str(one["HostIp"]).strip("[]"), int(one["HostPort"]))
        for inner, published in (host_config.get("PortBindings") or {}).items()
        for one in published
    )


def _gpus(host_config: dict[str, Any], environment: set[str]) -> list[str]:
    if host_config.get("Runtime") == "nvidia":
        named = [one for one in environment if one.startswith(f"{VISIBLE}=")]
        return sorted(gpu for one in named for gpu in one.partition("=")[2].split(","))
    requests = host_config.get("DeviceRequests") or []
    return sorted(one.rpartition("=")[2] for request in requests for one in request.get("DeviceIDs") or ())


def _memlock(host_config: dict[str, Any]) -> Optional[int]:
    limits = host_config.get("Ulimits") or []
    return next((one["Hard"] for one in limits if one["Name"] == "memlock"), None)


def base_url(docker: Docker, name: str, contract: Contract) -> str:
    """Where the host reaches the engine in a running container.

    Raises:
        CheckError: Nowhere.
    """
    port = contract.health.port
    if contract.network == "host":
        return f"http://{_LOCAL}:{port}"
    for published in contract.ports:
        if published.container == port:
            address = _LOCAL if published.address in _ANY else published.address.strip("[]")
            return (
                f"http://[{address}]:{published.host}"
                if ":" in address
                else f"http://{address}:{published.host}"
            )
    there = docker.inspect(name)
    networks = (there or {}).get("NetworkSettings", {}).get("Networks") or {}
    addresses = [one["IPAddress"] for one in networks.values() if one.get("IPAddress")]
    if not addresses:
        raise CheckError("the container has no address to ask it at", where=name, fix="publish the health port")
    return f"http://{addresses[0]}:{port}"


def how_it_ended(docker: Docker, name: str) -> Optional[str]:
    """How a container ended, for people; None while it runs."""
    there = docker.inspect(name)
    if there is None:
        return "somebody removed it"
    state = there["State"]
    if state["Running"]:
        return None
    killed = ", out of memory" if state.get("OOMKilled") else ""
    error = f", {state['Error']}" if state.get("Error") else ""
    return f"exit code {state['ExitCode']}{killed}{error}"

"""What the operator means: which release, hosts, GPUs and model; from the command line and the inventory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from tooling.deploy.inventory import (
    LOOPBACK,
    STATE_ROOT,
    GpuGroup,
    Host,
    Inventory,
    Model,
    Workload,
    read_inventory,
)
from tooling.errors import InputError
from tooling.records import Record
from tooling.registry.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Places of releases that are no registry by its host.
_PLACES = ("oci:", "local:")
#: Hosts of these names are this machine.
_HERE = frozenset({"local", "localhost"})


class Overrides(Record):
    """What the command line says about hosts, in place of or on top of the inventory.

    Attributes:
        model: `ID@REVISION`.
        model_path: Folder or file of the weights on the host, outside of a Hugging Face cache.
        model_cache: Hugging Face cache on the host.
        gpus: `0,1,...` or UUIDs, for a host with one group.
        port: TCP port of the host, for a host with one group.
        bind: Address that the port is published on.
        arguments: Further serve arguments.
        environment_files: Files of variables on the host.
        root: Where the host program keeps its state.
        sudo: Go through sudo.
    """

    model: str = ""
    model_path: str = ""
    model_cache: str = ""
    gpus: str = ""
    port: int | None = None
    bind: str = ""
    arguments: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    root: str = ""
    sudo: bool = False


class Chosen(Record):
    """Hosts with what each of them serves.

    Attributes:
        hosts: In the order in which they are rolled.
        workloads: By the host's name.
        groups: Names of the groups that take part; empty: all.
        repository: Where releases are looked for by their bare name.
    """

    hosts: tuple[Host, ...] = Field(min_length=1)
    workloads: dict[str, Workload]
    groups: tuple[str, ...] = ()
    repository: str = ""

    def groups_of(self, host: Host) -> tuple[GpuGroup, ...]:
        """The groups of a host that take part, in its order."""
        return tuple(group for group in host.groups if not self.groups or group.name in self.groups)


def choose(
    inventory: Path | None, names: Sequence[str], groups: Sequence[str] = (), given: Overrides | None = None
) -> Chosen:
    """Hosts from an inventory and from the command line.

    Args:
        inventory: The inventory file, if there is one.
        names: Names in it, or ssh destinations; `local` is this machine. None: the whole inventory.
        groups: Groups that take part; none: all.
        given: What the command line says besides.

    Raises:
        InputError: No host is named, a name is not known, or what is given makes no sense.
    """
    given = given or Overrides()
    known = read_inventory(inventory) if inventory else None
    if known is None and not names:
        raise InputError("no host is named", fix="give --host user@host (or local), or --inventory hosts.yaml")
    try:
        hosts = tuple(_with(host, given) for host in _hosts(known, names))
        workload = _workload(given)
    except ValidationError as error:
        lines = [f"{item['loc'][-1] if item['loc'] else 'host'}: {item['msg']}" for item in error.errors()]
        raise InputError("what is given for the hosts makes no sense", details=lines) from error
    general = known.workload if known else Workload()
    chosen = Chosen(
        hosts=hosts,
        workloads={host.name: workload.over(host.workload.over(general)) for host in hosts},
        groups=tuple(groups),
        repository=known.repository if known else "",
    )
    there = {group.name for host in hosts for group in host.groups}
    if unknown := [group for group in groups if group not in there]:
        raise InputError(f"no host has a group {unknown[0]!r}", fix=f"choose among: {', '.join(sorted(there))}")
    return chosen


def _hosts(known: Inventory | None, names: Sequence[str]) -> tuple[Host, ...]:
    if known is None:
        return tuple(host_of(name) for name in dict.fromkeys(names))
    listed = {host.name for host in known.hosts}
    strangers = [name for name in names if name not in listed]
    if any("@" in name for name in strangers):
        return (
            *(
                known.chosen(tuple(name for name in names if name in listed))
                if len(strangers) < len(names)
                else ()
            ),
            *(host_of(name) for name in strangers),
        )
    return known.chosen(tuple(names))


def host_of(destination: str) -> Host:
    """A host that is in no inventory, by its ssh destination.

    Raises:
        InputError: ssh could read it as something else.
    """
    if destination in _HERE:
        return Host(name="local", transport="local")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", destination.rpartition("@")[2]).strip("-.")
    try:
        return Host(name=name, ssh=destination)
    except ValidationError as error:
        raise InputError(
            f"{destination!r} is no host", where="--host", fix="write user@host as for ssh, or local"
        ) from error


def _with(host: Host, given: Overrides) -> Host:
    """A host with what the command line says."""
    changes: dict[str, object] = {}
    if given.gpus or given.port:
        if len(host.groups) != 1:
            raise InputError(
                "--gpus and --port are for hosts with one group", where=host.name,
                fix="write groups into the inventory",
            )  # fmt: skip
        group = host.groups[0]
        gpus = tuple(given.gpus.split(",")) if given.gpus else group.gpus
        changes["groups"] = (GpuGroup(name=group.name, gpus=gpus, port=given.port or group.port),)
    if given.bind and host.bind == LOOPBACK:
        changes["bind"] = given.bind
    if given.model_cache:
        changes["model_cache"] = given.model_cache
    if given.root and host.root == STATE_ROOT:
        changes["root"] = given.root
    if given.sudo:
        changes["sudo"] = True
    return Host.model_validate({**dict(host), **changes})


def _workload(given: Overrides) -> Workload:
    model = None
    if given.model:
        identifier, at, revision = given.model.rpartition("@")
        if not at:
            raise InputError(
                f"--model {given.model} names no revision",
                fix="write ID@REVISION with the full commit: a branch moves, and a rollback needs these files",
            )
        model = Model(id=identifier, revision=revision, path=given.model_path or None)
    elif given.model_path:
        raise InputError("--model-path needs --model ID@REVISION: what is served is recorded by its name")
    return Workload(model=model, arguments=given.arguments, environment_files=given.environment_files)


def release_image(release: str, repository: str) -> str:
    """Where a release is: as it was written, or in the inventory's repository by its bare name.

    Raises:
        InputError: A bare name, and no repository is known.
    """
    if release.startswith(_PLACES) or "/" in release:
        return release
    if not repository:
        raise InputError(
            f"{release!r} does not say where it is",
            fix="write host[:port]/repository:RELEASE, or oci:DIRECTORY",
        )
    return f"{parse_reference(repository).name}:{release}"

"""The inventory: which hosts there are, how they are reached, how their GPUs are split, what they serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tooling.errors import InputError
from tooling.records import Record
from tooling.stack.run import Health, without_secrets

#: Where the committed JSON schema lies, from the root of a checkout.
SCHEMA_PATH = Path("tooling/deploy/inventory.schema.json")
INVENTORY_VARIABLE = "BLACKWELL_STACKS_INVENTORY"
LOOPBACK = "127.0.0.1"
#: Where the host program keeps its state.
STATE_ROOT = "/var/lib/blackwell-stacks"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
GroupName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
#: What ssh takes as a destination; never anything that it would read as an option.
Destination = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@:\[\]%-]*$")]
#: Index as `nvidia-smi -L` counts, or UUID.
Gpu = Annotated[str, Field(pattern=r"^(\d{1,3}|(GPU|MIG)-[0-9a-fA-F-]{8,})$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\s:,]*$")]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")]


class Model(Record):
    """Which weights are served; they are never part of an image.

    Attributes:
        id: As the Hugging Face hub names it, e.g. `Qwen/Qwen3-32B`; also the name under which it is served.
        revision: Commit of the hub in full (40 hex digits); for files of other origin a hash that says as much.
        path: Folder or file on the host, for weights that are not in a hub cache.
    """

    id: ModelId
    revision: Revision
    path: AbsolutePath | None = None

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        if self.path is None and len(self.revision) != 40:  # noqa: PLR2004  # SHA-1 in hexadecimal
            raise ValueError("a revision of the hub is the full commit of 40 hex digits: a branch can move")
        return self


class GpuGroup(Record):
    """GPUs of one host that serve together, with a line of generations of their own.

    Attributes:
        name: Its name, e.g. `numa0`.
        gpus: Indices or UUIDs; none for a stack without CUDA.
        port: TCP port of the host.
    """

    name: GroupName = "default"
    gpus: tuple[Gpu, ...] = ()
    port: int = Field(default=30000, ge=1, le=65535)

    @field_validator("gpus")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a GPU is listed twice")
        return value


class Workload(Record):
    """What is served, apart from the stack: for the whole inventory or for one host.

    Attributes:
        model: The weights.
        arguments: Further serve arguments, e.g. `--tp=4`.
        environment: Variables of the container; never secrets.
        environment_files: Files on the host with `NAME=value` lines; tokens of gated models live there.
        health: The questions of the health check, where the stack's own do not suit the model.
    """

    model: Model | None = None
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    environment_files: tuple[AbsolutePath, ...] = ()
    health: Health | None = None

    _no_secrets = field_validator("environment")(without_secrets)

    def over(self, general: Workload) -> Workload:
        """This workload where it says something, the general one elsewhere; lists add up."""
        return Workload(
            model=self.model or general.model,
            arguments=(*general.arguments, *self.arguments),
            environment={**general.environment, **self.environment},
            environment_files=(*general.environment_files, *self.environment_files),
            health=self.health or general.health,
        )


class Host(Record):
    """One machine, or one container of a Proxmox host.

    Attributes:
        name: Its name here.
        transport: `ssh`; `local` for this machine; `pct`: into an LXC container, by `pct exec` on its Proxmox
            host.
        ssh: Destination for ssh, any that your own ssh configuration knows; the name by default. With `pct` it
            is the Proxmox host, and may be empty when that is this machine.
        jump: ProxyJump; what your ssh configuration says also holds.
        container: Number of the LXC container, with `pct`.
        sudo: Run commands through `sudo -n` there.
        python: The host's Python, 3.8 or newer.
        root: Where the host program keeps generations, history and logs.
        groups: GPU groups, in the order in which they are rolled.
        bind: Address that ports are published on. The engines know no login: the default is the loopback.
        gpu_mode: `cdi`, `gpus` (the NVIDIA runtime hook), or `auto`: CDI where the host has a specification.
        model_cache: Folder of the Hugging Face cache on the host (the one with `models--...` or `hub/` in it).
        jit_cache: Where compiled kernels are kept.
        workload: What this host serves in place of, or on top of, the inventory's.
    """

    name: Name
    transport: Literal["ssh", "local", "pct"] = "ssh"
    ssh: Destination | Literal[""] = ""
    jump: Destination | Literal[""] = ""
    container: int | None = Field(default=None, ge=100)
    sudo: bool = False
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9/][\w./-]*$")] = "python3"
    root: AbsolutePath = STATE_ROOT
    groups: tuple[GpuGroup, ...] = Field(default=(GpuGroup(),), min_length=1)
    bind: Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+$")] = LOOPBACK
    gpu_mode: Literal["auto", "cdi", "gpus"] = "auto"
    model_cache: AbsolutePath | None = None
    jit_cache: AbsolutePath = "/var/cache/blackwell-stacks"
    workload: Workload = Workload()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.container is not None) != (self.transport == "pct"):
            raise ValueError("container belongs to transport pct: give both or none")
        if self.transport == "local" and (self.ssh or self.jump):
            raise ValueError("transport local uses no ssh")
        for what, values in (
            ("name", [group.name for group in self.groups]),
            ("GPU", [gpu for group in self.groups for gpu in group.gpus]),
            ("port", [str(group.port) for group in self.groups]),
        ):
            if twice := {value for value in values if values.count(value) > 1}:
                raise ValueError(f"two groups have the same {what}: {', '.join(sorted(twice))}")
        return self

    @property
    def destination(self) -> str:
        """What ssh is told; empty when no ssh is used."""
        if self.transport == "local":
            return ""
        return self.ssh or (self.name if self.transport == "ssh" else "")


class Inventory(Record):
    """All hosts, in the order in which they are rolled.

    Attributes:
        repository: Where releases are looked for by their bare name, `host[:port]/repository`.
        workload: What every host serves, unless it says otherwise.
        hosts: The hosts.
    """

    repository: str = ""
    workload: Workload = Workload()
    hosts: tuple[Host, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [host.name for host in self.hosts]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two hosts have the same name: {', '.join(sorted(twice))}")
        return self

    def chosen(self, names: tuple[str, ...]) -> tuple[Host, ...]:
        """The named hosts in the inventory's order; all of them when none is named.

        Raises:
            InputError: A name is not in the inventory.
        """
        known = {host.name for host in self.hosts}
        if unknown := [name for name in names if name not in known]:
            raise InputError(
                f"the inventory has no host {unknown[0]!r}", fix=f"choose among: {', '.join(sorted(known))}"
            )
        return tuple(host for host in self.hosts if not names or host.name in names)


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file.

    Raises:
        InputError: It cannot be read, or is none; each wrong field is named.
    """
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Inventory.model_validate(value)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the inventory cannot be read: {error}", where=str(path)) from error
    except yaml.YAMLError as error:
        raise InputError(f"the inventory is no YAML: {error}", where=str(path)) from error
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or 'the file'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise InputError(
            "the inventory does not hold what it should",
            where=str(path),
            details=lines,
            fix=f"see {SCHEMA_PATH}",
        ) from error


def inventory_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of the inventory file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Inventory.model_json_schema(),
        "title": "Inventory of hosts",
    }

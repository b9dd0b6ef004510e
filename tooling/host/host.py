"""What every command works with: one group of one host, its engine, its GPUs, and where events go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.host.contract import LABEL_GENERATION, container_name, pin_name
from tooling.host.plan import Container

if TYPE_CHECKING:
    from tooling.host.docker import Docker
    from tooling.host.events import Events
    from tooling.host.gpus import Smi
    from tooling.host.state import Generation, Group

#: Where all state lies unless told otherwise.
DEFAULT_ROOT = Path("/var/lib/blackwell-stacks")
#: Exit codes: what an operator must know at once.
DONE, FAILED, BAD_INPUT, BUSY, DARK, DAMAGED = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Host:
    """One group of GPUs of this host."""

    group: Group
    docker: Docker
    smi: Smi
    events: Events

    @property
    def operation(self) -> str:
        """Id of the running operation."""
        return self.events.operation

    def containers(self) -> list[Container]:
        """The group's containers but the pins."""
        return [
            Container(
                name=one["Name"].lstrip("/"),
                generation=int(one["Config"]["Labels"][LABEL_GENERATION]),
                running=is_up(one),
            )
            for one in self.docker.containers(self.group.name, "stack")
        ]

    def running_ids(self) -> list[str]:
        """Ids of the group's running containers."""
        return [str(one["Id"]) for one in self.docker.containers(self.group.name, "stack") if is_up(one)]

    def is_serving(self, generation: int) -> bool:
        """Whether the container of a generation runs."""
        there = self.docker.inspect(container_name(self.group.name, generation))
        # One that a policy starts again and again does not serve.
        return there is not None and is_up(there) and not there["State"].get("Restarting")

    def is_pinned(self, generation: int) -> bool:
        """Whether the pin of a generation runs."""
        there = self.docker.inspect(pin_name(self.group.name, generation))
        return there is not None and is_up(there)

    def previous(self) -> dict[int, int]:
        """Of each generation the one that served when it was made; damaged ones lead nowhere."""
        return {number: self.group.generation(number).previous for number in self.group.numbers()}

    def name_of(self, generation: Generation) -> str:
        """Name of its container."""
        return container_name(self.group.name, generation.number)


def is_up(inspected: dict[str, Any]) -> bool:
    """Whether a container runs, or a policy is about to start it again."""
    state = inspected["State"]
    return bool(state["Running"] or state.get("Restarting") or state.get("Paused"))

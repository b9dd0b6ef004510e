"""Boot the image of a GPU stack on a machine without a GPU, to prove everything but the GPU."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tooling.boot.contract import Mount, RunContract
from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where the stub modules are mounted; first on PYTHONPATH, so that they hide the image's own.
STUBS_TARGET = "/run/blackwell-stacks/stubs"
#: Compiled packages that cannot be imported without a GPU driver; stubbed at run time, never in an image.
STUBS = Path(__file__).parent / "stubs"


class DryBoot(Record):
    """How one engine is booted on a CPU.

    Attributes:
        arguments: Serve arguments of a dry boot.
        environment: Variables of a dry boot.
        gpu_arguments: Serve arguments that a CPU cannot take, with their number of values.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    gpu_arguments: dict[str, int]


@cache
def dry_boots() -> dict[str, DryBoot]:
    """The engines that have a CPU path."""
    text = (resources.files("tooling.boot") / "dry_boot.yaml").read_text()
    return {engine: DryBoot.model_validate(entry) for engine, entry in yaml.safe_load(text).items()}


def dry_boot_contract(
    contract: RunContract, *, engine: str, image_pythonpath: str = ""
) -> tuple[RunContract, tuple[str, ...]]:
    """The contract of a dry boot.

    Args:
        contract: The contract for GPUs.
        engine: Engine of the stack.
        image_pythonpath: PYTHONPATH that the image sets, which is kept behind the stubs.

    Returns:
        The contract for a CPU, and what it leaves out, one sentence each: limitations of whatever is recorded.

    Raises:
        InputError: The engine has no CPU path.
    """
    known = dry_boots()
    if engine not in known:
        raise InputError(
            f"engine {engine!r} cannot be booted on a CPU in a GPU image", fix=f"known are: {', '.join(known)}"
        )
    how = known[engine]
    command, dropped = without_gpu_arguments(contract.command, how.gpu_arguments)
    environment = dict(contract.environment)
    own = environment.get("PYTHONPATH", image_pythonpath)
    environment |= how.environment
    environment["PYTHONPATH"] = f"{STUBS_TARGET}:{own}" if own else STUBS_TARGET
    limitations = [
        "booted on a CPU: no GPU code ran, and nothing is qualified for a GPU",
        f"stubbed at run time: {', '.join(stubbed_modules())}",
    ]
    if dropped:
        limitations.append(f"arguments left out for the CPU: {' '.join(dropped)}")
    dry = contract.model_copy(
        update={
            "command": (*command, *how.arguments),
            "environment": environment,
            "mounts": (*contract.mounts, Mount(source=str(STUBS), target=STUBS_TARGET)),
            "gpus": (),
            "memlock_unlimited": False,
        }
    )
    return dry, tuple(limitations)


def without_gpu_arguments(
    command: tuple[str, ...], gpu_arguments: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a command into what a CPU can take and what it cannot, both in order.

    Args:
        command: The command.
        gpu_arguments: Arguments that a CPU cannot take, with their number of values.
    """
    kept: list[str] = []
    dropped: list[str] = []
    values = 0
    for argument in command:
        if values:
            dropped.append(argument)
            values -= 1
            continue
        name, _, value = argument.partition("=")
        if name in gpu_arguments:
            dropped.append(argument)
            values = 0 if value else gpu_arguments[name]
        else:
            kept.append(argument)
    return tuple(kept), tuple(dropped)


def stubbed_modules() -> tuple[str, ...]:
    """Names of the packages that a dry boot stubs."""
    return tuple(sorted(path.parent.name for path in STUBS.glob("*/__init__.py")))

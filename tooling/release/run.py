"""One run of the chain as data: what was asked for, what this machine is, and what came of each step."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tooling import console
from tooling.attest.hardware import Device, Hardware
from tooling.attest.machine import hardware_of, this_machine
from tooling.errors import InputError
from tooling.records import Record
from tooling.release.publish import Released
from tooling.stack import load_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from tooling.registry.transport import Settings
    from tooling.release.records import ReleasePolicy, Waiver
    from tooling.sign.keys import SigningKey, Trust
    from tooling.stack.model import StackFile


@dataclass(frozen=True)
class GateOptions:
    """What the gates on a running engine are told; as for `verify_stack`."""

    model: Path | None = None
    profile: str = "tiny"
    extra: tuple[str, ...] = ()
    boots: int = 1
    against: str = ""
    baselines: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What exists before the chain begins.

    Attributes:
        registry: `host[:port][/prefix]`, the stack's name is added; empty for this machine's own.
        settings: How to speak to the registry.
        image: `host[:port]/repository@sha256:...` of an image that is released instead of a new build.
        evidence: Directory or file of evidence from other machines.
        waivers: What may pass for a while.
    """

    registry: str
    settings: Settings
    image: str = ""
    evidence: Path | None = None
    waivers: tuple[Waiver, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChainRequest(Brought):
    """One run of the chain.

    Attributes:
        stack: Name of the stack.
        root: The checkout.
        key: Signs evidence and release.
        trust: Whose evidence is believed.
        gates: What the gates are told.
        candidate: Stop before the release: the image is pushed and its evidence attached, for other machines.
        output: Folder of records; by default `build/<stack>/release-<time>` of the checkout.
    """

    stack: str
    root: Path
    key: SigningKey
    trust: Trust
    gates: GateOptions = field(default_factory=GateOptions)
    candidate: bool = False
    output: Path | None = None


class Step(Record):
    """One step of the chain.

    Attributes:
        name: What was done.
        seconds: How long it took.
        seen: What came of it, one sentence.
    """

    name: str
    seconds: float
    seen: str


class ChainResult(Record):
    """What a run of the chain did.

    Attributes:
        stack: Name of the stack.
        image: `repository@digest`.
        released: The release; None for a candidate.
        steps: In order.
        evidence: Folder with everything that was signed.
    """

    stack: str
    image: str
    released: Released | None
    steps: tuple[Step, ...]
    evidence: Path


@dataclass(frozen=True)
class Examined:
    """A stack and this machine, before anything is done.

    Attributes:
        file: The stack.
        policy: What its release needs.
        here: This machine with the device of the policy; None when it has none.
        builder: This machine as one that builds and inspects.
    """

    file: StackFile
    policy: ReleasePolicy
    here: Hardware | None
    builder: Hardware


def examine(stack: str, root: Path) -> Examined:
    """Read a stack and look at this machine.

    Args:
        stack: Name of the stack.
        root: The checkout.

    Raises:
        InputError: There is no such stack, or it does not say what its release needs.
    """
    file = load_stack(stack, root)
    policy = policy_of(file)
    host = this_machine()
    here = hardware_of(host, policy.device) if policy.device is Device.CPU or host.gpus else None
    return Examined(file, policy, here, hardware_of(host, Device.CPU))


def policy_of(file: StackFile) -> ReleasePolicy:
    """What the stack's release needs.

    Raises:
        InputError: The stack does not say.
    """
    if file.stack.release is None:
        raise InputError(
            f"stack {file.stack.name} does not say what its release needs",
            where=str(file.path),
            fix="add release: with the device and its gates, as the other stacks have it",
        )
    return file.stack.release


@dataclass
class Run:
    """A run under way."""

    request: ChainRequest
    examined: Examined
    folder: Path
    client: docker.DockerClient
    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Time a step; what is put into the list is what came of it."""
        console.say(f"== {name}")
        clock, seen = time.monotonic(), list[str]()
        yield seen
        step = Step(name=name, seconds=round(time.monotonic() - clock, 1), seen="; ".join(seen))
        self.steps.append(step)
        console.say(f"== {name}: {step.seconds:g} s{', ' if seen else ''}{step.seen}")

    @property
    def bundles(self) -> Path:
        """Folder of everything that is signed."""
        return self.folder / "evidence"

"""A deploy over hosts and groups, one after another: look at all of them first, stop at the first failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tooling.deploy.faults import image_advice
from tooling.deploy.preflight import gpu_problems, host_problems, image_problems, refuse
from tooling.deploy.request import Wanted, build_request, serve_words
from tooling.deploy.sending import send_image
from tooling.deploy.session import WatchEndedError, operation_failed
from tooling.errors import ToolkitError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.deploy.inventory import GpuGroup, Host, Workload
    from tooling.deploy.preflight import Seen
    from tooling.deploy.session import Event, HostSession, Outcome
    from tooling.host.request import Request
    from tooling.probe.records import HostRecord
    from tooling.release.evidence import Source


class Step(Record):
    """One group of one host, done or not.

    Attributes:
        host: Name of the host.
        group: GPU group.
        state: `done`, `failed`, or `not begun` because an earlier one failed.
        message: What is to be said.
        operation: Id on the host; empty when none began.
        exit_code: Of the operation.
        dark_seconds: From the order to stop the old release to the first answer of the new one.
        bytes_sent: Bytes of layers that this machine sent, where it was the registry.
    """

    host: str
    group: str
    state: Literal["done", "failed", "not begun"]
    message: str = ""
    operation: str = ""
    exit_code: int = 0
    dark_seconds: float | None = None
    bytes_sent: int | None = None


class Rollout(Record):
    """A deploy over all its hosts.

    Attributes:
        release: Name of the release.
        digest: Its image.
        accepted: What was accepted below `qualified`.
        steps: Groups in the order in which they were rolled.
    """

    release: str
    digest: str
    accepted: str = ""
    steps: tuple[Step, ...]

    @property
    def failed(self) -> bool:
        """Whether not every group runs the release."""
        return any(step.state != "done" for step in self.steps)


@dataclass(frozen=True)
class Target:
    """One group of one host, looked at and found ready.

    Attributes:
        session: The way there.
        group: The GPUs.
        workload: What is served.
        seen: What the host looks like.
        request: What the host program will get.
    """

    session: HostSession
    group: GpuGroup
    workload: Workload
    seen: Seen
    request: Request

    @property
    def host(self) -> Host:
        """The host."""
        return self.session.channel.host


@dataclass
class Listener:
    """Where progress goes.

    Attributes:
        say: One sentence.
        events: Of host and group: where the events of the host program go.
    """

    say: Callable[[str], None]
    events: Callable[[str, str], Callable[[Event], None]]


def prepare(
    wanted: Wanted,
    session: HostSession,
    groups: Sequence[GpuGroup],
    workload: Workload,
    facts: Callable[[HostSession], HostRecord],
) -> list[Target]:
    """Look at one host and refuse whatever can be known to fail there.

    Args:
        wanted: What is deployed.
        session: The host.
        groups: Its groups that take part.
        workload: What is served.
        facts: The doctor's look at a host; asked for stacks with CUDA only.

    Raises:
        HostFault: Something stands against it; nothing was changed.
    """
    host = session.channel.host
    seen = session.look(workload.model, workload.environment_files)
    problems = host_problems(host, seen, workload.model)
    if not seen.engine.error:
        words = serve_words(wanted.stack, workload, "")
        problems += image_problems(host, seen, wanted.image, words)
    if wanted.stack.run.gpus or any(group.gpus for group in groups):
        problems += gpu_problems(host, groups, facts(session), wanted.release, wanted.stack)
    refuse(problems, host.name)
    return [
        Target(session, group, workload, seen, build_request(wanted, host, group, workload, seen))
        for group in groups
    ]


def roll_out(
    wanted: Wanted, targets: Sequence[Target], listener: Listener, *, source: Source | None = None
) -> Rollout:
    """Deploy to each target in its order; the first failure is the last thing that is begun.

    Args:
        wanted: What is deployed.
        targets: All of them found ready.
        listener: Where progress goes.
        source: Holds the image when this machine brings it to the hosts; None: they pull by themselves.
    """
    steps: list[Step] = []
    for target in targets:
        if any(step.state == "failed" for step in steps):
            first = next(step for step in steps if step.state == "failed")
            message = f"{first.host}/{first.group} failed before; nothing was begun here"
            steps.append(
                Step(host=target.host.name, group=target.group.name, state="not begun", message=message)
            )
            continue
        steps.append(_one(wanted, target, listener, source))
    return Rollout(
        release=wanted.release.release.name,
        digest=wanted.release.digest,
        accepted=wanted.accepted,
        steps=tuple(steps),
    )


def _one(wanted: Wanted, target: Target, listener: Listener, source: Source | None) -> Step:
    name, group = target.host.name, target.group.name
    sent: int | None = None
    try:
        if target.session.install(target.seen):
            listener.say(f"{name}: host program {target.session.program.sha256[:12]} installed")
            if why := target.session.serve_at_boot(group):
                listener.say(f"{name}: WILL NOT SERVE AFTER A REBOOT by itself: {why}")
        if source is not None:
            sent = send_image(target.session.channel, source, wanted.release.digest, listener.say).bytes_sent
        outcome = target.session.operate(group, ["deploy"], listener.events(name, group), target.request)
        problems: list[str] = []
        if outcome.exit_code == 0:
            problems = swap_problems(target.session.ask(group, "status"), target.request)
    except WatchEndedError:
        raise
    except ToolkitError as error:
        return Step(host=name, group=group, state="failed", message=str(error), exit_code=1, bytes_sent=sent)
    return _judged(outcome, problems, sent)


def swap_problems(status: Any, request: Request) -> list[str]:
    """Whether what serves is what was asked for, by digests and by the record of the host; never by a tag.

    Args:
        status: The host program's status document.
        request: What was asked for.
    """
    groups = status.get("groups", []) if isinstance(status, dict) else []
    mine = next((each for each in groups if each.get("group") == request.group), None)
    current = (mine or {}).get("current")
    if mine is None or not current:
        return [f"the host says that nothing was deployed to group {request.group}"]
    problems = list(mine.get("faults", []))
    running = str(current.get("image", ""))
    # Engines name an image by its configuration or, with the newer store, by its manifest.
    wanted = request.digest if running == request.digest else request.image_id
    if (advice := image_advice(running=running, wanted=wanted)) is not None:
        problems.append(advice.what)
    if current.get("digest") != request.digest:
        problems.append(f"release {current.get('release')} ({current.get('digest')}) is committed")
    if not mine.get("serving"):
        problems.append("nothing serves")
    return problems


def _judged(outcome: Outcome, problems: Sequence[str], sent: int | None) -> Step:
    good = outcome.exit_code == 0 and not problems
    message = "; ".join(problems) if problems else outcome.message
    if outcome.exit_code:
        message = str(operation_failed(outcome))
    result = outcome.data.get("result")
    return Step(
        host=outcome.host,
        group=outcome.group,
        state="done" if good else "failed",
        message=message,
        operation=outcome.operation,
        exit_code=0 if good else outcome.exit_code or 1,
        dark_seconds=result.get("dark_seconds") if isinstance(result, dict) else None,
        bytes_sent=sent,
    )

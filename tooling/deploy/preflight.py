"""All that can be known to fail before a byte moves and the old stack stops: pure rules over what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ConfigDict, ValidationError

from tooling.attest.hardware import Device
from tooling.boot.failure import BootError
from tooling.boot.platforms import check_command, check_platforms
from tooling.deploy.faults import HostFault, diagnose
from tooling.errors import CheckError, InputError, ToolkitError
from tooling.probe.tables import at_least
from tooling.records import Record
from tooling.release.records import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.deploy.image import ImageFacts
    from tooling.deploy.inventory import GpuGroup, Host, Model
    from tooling.probe.records import HostRecord
    from tooling.release.verify import Verification
    from tooling.stack.model import Stack

#: Python that the host program needs.
PYTHON_MINIMUM = "3.9"
#: Room that is left on the host's disk beyond what the image takes, in bytes.
DISK_MARGIN = 2 * 10**9
_GIB = 1 << 30


class _Seen(Record):
    """What was seen; fields that a newer script adds are passed over."""

    model_config = ConfigDict(extra="ignore")


class SeenEngine(_Seen):
    """The host's Docker Engine; `error` holds its words when it did not answer."""

    error: str = ""
    client: str = ""
    version: str = ""
    api: str = ""
    api_minimum: str = ""
    root: str = ""
    cdi: tuple[str, ...] = ()
    live_restore: bool = False
    images: tuple[tuple[str, ...], ...] = ()


class SeenModel(_Seen):
    """The model on the host: where it lies, which revisions there are, what is wrong with the wanted one."""

    path: str = ""
    repository: str = ""
    revisions: tuple[str, ...] = ()
    problem: str = ""


class Seen(_Seen):
    """What `on_host/look.py` saw.

    Attributes:
        python: Version of its Python.
        machine: As `uname -m` prints it.
        user: Numeric id that commands run as.
        memory_available: Bytes that new work can take.
        program_sha256: Hash of the host program that is there.
        engine: The Docker Engine.
        free: Free bytes where the engine keeps images.
        model: The model, when one was asked for.
        unreadable: Environment files that cannot be read.
    """

    python: str
    machine: str
    user: int
    memory_available: int | None = None
    program_sha256: str = ""
    engine: SeenEngine
    free: int | None = None
    model: SeenModel | None = None
    unreadable: tuple[str, ...] = ()


def read_seen(text: str, host: str) -> Seen:
    """Read the answer of the script.

    Raises:
        HostFault: It is none, e.g. because a login script of the host prints something.
    """
    start = text.find("{")
    try:
        return Seen.model_validate_json(text[max(start, 0) :])
    except (ValidationError, ValueError) as error:
        raise HostFault(
            "the host answers something else than was asked", where=host, details=text.splitlines()[:5],
            fix="let no login script there print to a session without a terminal",
        ) from error  # fmt: skip


def assumed(host: Host, stack: Stack, model: Model | None) -> Seen:
    """A host as it has to be, for those who cannot be looked at."""
    found = None
    if model is not None and model.path:
        found = SeenModel(path=model.path)
    elif model is not None and host.model_cache is not None:
        repository = f"{host.model_cache}/hub/models--{model.id.replace('/', '--')}"
        found = SeenModel(path=f"{repository}/snapshots/{model.revision}", repository=repository)
    elif model is not None:
        raise InputError(
            f"where does the host keep {model.id}?",
            fix="add --model-cache (its Hugging Face cache) or --model-path",
        )
    return Seen(
        python=PYTHON_MINIMUM, machine=stack.platform.architecture, user=0, engine=SeenEngine(), model=found
    )


def host_problems(host: Host, seen: Seen, model: Model | None) -> list[ToolkitError]:
    """What of the host itself stands against a deploy, whatever is deployed."""
    problems: list[ToolkitError] = []
    if at_least(seen.python, PYTHON_MINIMUM) is False:
        problems.append(
            HostFault(f"python3 of the host is {seen.python}", host.name, f"install {PYTHON_MINIMUM} or newer")
        )
    if seen.engine.error:
        known = diagnose(seen.engine.error)
        what = known[0].what if known else "the host's Docker client fails"
        fix = known[0].fix if known else "read its words"
        fault = HostFault(what, host.name, fix, seen.engine.error.splitlines()[-4:])
        fault.fault = known[0].id if known else "unknown"
        problems.append(fault)
    problems.extend(
        HostFault(
            f"the environment file {path} cannot be read there", host.name,
            "write it on the host (NAME=value a line, mode 0600); secrets are never sent by this tool",
        )
        for path in seen.unreadable
    )  # fmt: skip
    if model is not None and (problem := model_problem(host, model, seen.model)):
        problems.append(problem)
    return problems


def model_problem(host: Host, model: Model, seen: SeenModel | None) -> HostFault | None:
    """Why the pinned model cannot be served from this host: nothing is fetched at run time."""
    if seen is not None and not seen.problem:
        return None
    problem = seen.problem if seen else "it was not looked for"
    if model.path:
        return HostFault(
            f"the weights of {model.id} at {model.path}: {problem}", host.name,
            "stage them there first; nothing is downloaded at run time",
        )  # fmt: skip
    if host.model_cache is None:
        return HostFault(
            f"the inventory does not say where the host keeps {model.id}", host.name,
            "add model_cache (the Hugging Face cache of the host), or --model-cache",
        )  # fmt: skip
    others = seen.revisions if seen else ()
    details = [f"there are revisions: {', '.join(each[:12] for each in others)}"] if others else []
    return HostFault(
        f"{model.id} at revision {model.revision[:12]} is not usable in {host.model_cache}: {problem}",
        host.name,
        f"on the host: HF_HOME={host.model_cache} hf download {model.id} --revision {model.revision}"
        " (a gated model needs its token there, in the environment of that command)",
        details,
    )  # fmt: skip


def image_problems(host: Host, seen: Seen, image: ImageFacts, command: Sequence[str]) -> list[ToolkitError]:
    """What of the image does not go with the host: platform, command, disk."""
    problems: list[ToolkitError] = []
    try:
        check_platforms(image.digest, (image.platform,), seen.machine)
        check_command(image.entry_point, command)
    except BootError as error:
        error.where = host.name
        problems.append(error)
    missing = image.missing(seen.engine.images)
    need = sum(layer.compressed + layer.unpacked for layer in missing)
    if missing and seen.free is not None and seen.free < need + DISK_MARGIN:
        fault = HostFault(
            f"the host has {seen.free / _GIB:.1f} GiB free and needs {(need + DISK_MARGIN) / _GIB:.1f}",
            f"{host.name}:{seen.engine.root}",
            "make room there; the engine keeps the download and the unpacked layers at once",
        )
        fault.fault = "no-space"
        problems.append(fault)
    return problems


def gpu_problems(
    host: Host, groups: Sequence[GpuGroup], seen: HostRecord, release: Verification, stack: Stack
) -> list[ToolkitError]:
    """What of GPUs and driver does not go with the stack and with what the release was proved on."""
    problems: list[ToolkitError] = []
    need = stack.run.gpus
    for group in groups:
        if len(group.gpus) < need:
            problems.append(
                HostFault(
                    f"group {group.name} has {len(group.gpus)} GPUs, stack {stack.name} needs {need}",
                    host.name,
                    "list them in the inventory (groups), or give --gpus 0,1,...",
                )
            )  # fmt: skip
        if not need and group.gpus:
            problems.append(
                HostFault(
                    f"group {group.name} has GPUs and stack {stack.name} uses none", host.name,
                    "deploy a CUDA stack there, or take the GPUs out of the group",
                )
            )  # fmt: skip
    if not need:
        return problems
    if not seen.gpus:
        problems.append(HostFault("the host shows no NVIDIA GPU", host.name, "run the doctor on this host"))
        return problems
    problems.extend(_absent(host, groups, seen))
    policy = release.release.policy
    if policy.driver_min and at_least(seen.driver, policy.driver_min) is not True:
        problems.append(
            HostFault(
                f"the host's driver is {seen.driver or 'not known'}, the release needs {policy.driver_min}",
                host.name, "install a newer driver there; a container cannot bring one",
            )
        )  # fmt: skip
    if policy.driver_below and at_least(seen.driver, policy.driver_below) is True:
        problems.append(
            HostFault(
                f"the host's driver {seen.driver} is newer than what the release was proved with"
                f" (below {policy.driver_below})", host.name,
                "run the gates with this driver and release again, or install an older one",
            )
        )  # fmt: skip
    if wrong := _wrong_capability(seen, policy.compute_capabilities):
        problems.append(
            HostFault(
                f"the release is for compute capability {', '.join(policy.compute_capabilities)}", host.name,
                "deploy a release that was built and proved for these GPUs", wrong,
            )
        )  # fmt: skip
    return problems


def _absent(host: Host, groups: Sequence[GpuGroup], seen: HostRecord) -> list[HostFault]:
    indices = {str(gpu.index) for gpu in seen.gpus}
    asked = [gpu for group in groups for gpu in group.gpus if gpu.isdigit()]
    if gone := [gpu for gpu in asked if gpu not in indices]:
        return [
            HostFault(
                f"the host has no GPU {', '.join(gone)}: it shows {', '.join(sorted(indices))}", host.name,
                "correct the groups in the inventory; a card that fell off the bus is a matter for the doctor",
            )
        ]  # fmt: skip
    return []


def _wrong_capability(seen: HostRecord, capabilities: Sequence[str]) -> list[str]:
    return [
        f"GPU {gpu.index} {gpu.name} has {gpu.compute_capability}"
        for gpu in seen.gpus
        if gpu.compute_capability and capabilities and gpu.compute_capability not in capabilities
    ]


def check_status(release: Verification, stack: Stack, accepted: Status | None, reason: str) -> str:
    """Whether a release may go onto hosts, by how far it is proved.

    Args:
        release: The verified release.
        stack: Its stack.
        accepted: A lower status that the operator accepts by name.
        reason: Why; it is recorded on the host.

    Returns:
        What was accepted, for the records; empty when nothing had to be.

    Raises:
        CheckError: It is not proved far enough, or it is another stack's, or was proved on the CPU alone.
    """
    name = release.release.name
    if release.release.stack != stack.name:
        raise CheckError(
            f"{name} is a release of stack {release.release.stack!r}, not of {stack.name!r}",
            where=release.source,
        )
    needs_gpu = bool(stack.targets.required)
    found = release.status
    note = ""
    if needs_gpu and release.release.policy.device is Device.CPU:
        # A policy that asks for no GPU proves nothing for one, whatever its status says.
        found, note = Status.UNTESTED, " (its policy asked for evidence on a CPU only)"
    order = [Status.UNTESTED, Status.SOURCE_QUALIFIED, Status.QUALIFIED]
    if found is Status.QUALIFIED:
        return ""
    if accepted is None or order.index(found) < order.index(accepted):
        raise CheckError(
            f"{name} is {found.value}{note}: it was not proved on the hardware that it is for",
            where=release.source,
            details=list(release.release.assessment.limitations)[:10],
            fix=f"run the gates on the target and release again, or say --accept {found.value} --reason TEXT,"
            " which is recorded on the host",
        )
    if len(reason.strip()) < 10:  # noqa: PLR2004  # a word is no reason
        raise CheckError("accepting less than qualified needs a reason", where=name, fix="give --reason TEXT")
    return f"{found.value}{note} accepted: {reason.strip()}"


def refuse(problems: Sequence[ToolkitError], host: str) -> None:
    """Raise all problems of a host as one message.

    Raises:
        HostFault: There are some.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    lines: list[str] = []
    for problem in problems:
        lines += [f"- {problem.what}", *(f"  {line}" for line in problem.details), f"  to do: {problem.fix}"]
    raise HostFault(
        f"{len(problems)} things stand against a deploy; nothing was touched", where=host, details=lines,
        fix="mend them and run the command again",
    )  # fmt: skip


def gpu_mode(host: Host, group: GpuGroup, seen: Seen) -> str:
    """How the container gets its GPUs: `cdi`, `gpus` or `none`.

    CDI survives a reload of systemd, which takes GPUs from containers of the older hook. Docker 25 has it.
    """
    if not group.gpus:
        return "none"
    if host.gpu_mode != "auto":
        return host.gpu_mode
    return "cdi" if seen.engine.cdi and at_least(seen.engine.version, "25.0") else "gpus"

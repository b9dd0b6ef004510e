"""The GPUs of this host: what they are, and who holds them; read with the driver's own nvidia-smi."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from tooling.errors import CheckError

if TYPE_CHECKING:
    from tooling.host.request import Requirements

#: The program, for hosts that have it elsewhere; the tests put a stand-in here.
VARIABLE = "BLACKWELL_STACKS_NVIDIA_SMI"
#: A wedged driver makes nvidia-smi hang.
_LIMIT_S = 30.0
_POLL_S = 0.1
#: Share of a GPU's memory that an idle one may hold: the driver's own, a desktop's.
_IDLE_SHARE = 0.1
_COLUMNS = 7


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: As the driver counts.
        uuid: `GPU-...`.
        name: As the vendor writes it.
        driver: Version of the driver.
        capability: Compute capability, e.g. `12.0`.
        used_mib: Memory in use, MiB.
        total_mib: Memory, MiB.
    """

    index: str
    uuid: str
    name: str
    driver: str
    capability: str
    used_mib: int
    total_mib: int


@dataclass(frozen=True)
class Holder:
    """A process that computes on a GPU.

    Attributes:
        gpu: UUID.
        pid: As this host counts.
        name: Of its program.
    """

    gpu: str
    pid: int
    name: str


class Smi:
    """Asks nvidia-smi."""

    def __init__(self) -> None:
        self.program = os.environ.get(VARIABLE, "nvidia-smi")

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs.

        Raises:
            CheckError: The driver does not answer.
        """
        columns = "index,uuid,name,driver_version,compute_cap,memory.used,memory.total"
        return parse_gpus(self._ask(f"--query-gpu={columns}"))

    def holders(self) -> tuple[Holder, ...]:
        """Processes that compute."""
        return parse_holders(self._ask("--query-compute-apps=gpu_uuid,pid,process_name"))

    def _ask(self, query: str) -> str:
        fix = "run nvidia-smi by hand; a driver that does not answer needs repair or a reboot"
        try:
            done = subprocess.run(
                [self.program, query, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise CheckError(
                "nvidia-smi is not on this host, and the stack wants GPUs",
                where=self.program,
                fix="install the driver",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise CheckError(f"nvidia-smi did not answer within {_LIMIT_S:g} s", fix=fix) from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise CheckError(f"nvidia-smi failed: {' '.join(said)}", where=query, fix=fix)
        return done.stdout


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read the table of GPUs.

    Raises:
        CheckError: A line has other columns than were asked for.
    """
    found = []
    for line in text.strip().splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != _COLUMNS:
            raise CheckError(f"nvidia-smi answers with a line that is not understood: {line!r}")
        # Shared-memory devices report no memory of their own.
        used, total = (int(cell) if cell.isdigit() else 0 for cell in cells[5:])
        found.append(Gpu(cells[0], cells[1], cells[2], cells[3], cells[4], used, total))
    return tuple(found)


def parse_holders(text: str) -> tuple[Holder, ...]:
    """Read the table of processes; lines without a process id are prose."""
    found = []
    for line in text.strip().splitlines():
        cells = [cell.strip() for cell in line.split(",", 2)]
        if len(cells) == 3 and cells[1].isdigit():  # noqa: PLR2004
            found.append(Holder(cells[0], int(cells[1]), cells[2]))
    return tuple(found)


def chosen(gpus: Sequence[Gpu], names: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that a contract names.

    Raises:
        CheckError: One of them is not here.
    """
    found = []
    for name in names:
        # A part of a GPU (MIG) is not in this table; the engine refuses one that is not there.
        if name.startswith("MIG-"):
            continue
        fits = [gpu for gpu in gpus if name in (gpu.index, gpu.uuid)]
        if not fits:
            there = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus) or "none"
            raise CheckError(f"GPU {name} is not on this host", fix=f"name GPUs that are there: {there}")
        found.append(fits[0])
    return tuple(found)


def unmet(gpus: Sequence[Gpu], requirements: Requirements, named: int) -> list[str]:
    """What these GPUs lack, one line each; the driver is not rolled back, so this is asked every time."""
    lacks = []
    count = requirements.gpu_count
    if named < count:
        lacks.append(f"the release needs {count} GPUs, {named} are named")
    for gpu in gpus:
        if version(gpu.driver) < version(requirements.driver_minimum):
            lacks.append(
                f"driver {gpu.driver} is older than {requirements.driver_minimum}, which the image needs"
            )
            break
    wanted = capability(requirements.target)
    lacks += [
        f"GPU {gpu.index} ({gpu.name}) is compute capability {gpu.capability}, the release is for {wanted}"
        for gpu in gpus
        if wanted and gpu.capability != wanted
    ]
    return lacks


def version(text: str) -> tuple[int, ...]:
    """A dotted version, comparable."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def capability(target: str) -> str:
    """`sm_120` -> `12.0`; empty stays empty."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", target)
    return f"{match[1]}.{match[2]}" if match else ""


def belongs_to(pid: int, container_ids: Sequence[str]) -> bool:
    """Whether a process runs in one of some containers, by its control group."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(one in text for one in container_ids)


def foreign(holders: Sequence[Holder], gpus: Sequence[Gpu], own: Sequence[str]) -> list[Holder]:
    """Holders of some GPUs that are in none of our containers.

    A process that this host's /proc does not have (another container's view) counts as ours while one runs:
    it cannot be told apart; after the stop it must be gone.
    """
    uuids = {gpu.uuid for gpu in gpus}
    return [
        one
        for one in holders
        if one.gpu in uuids and not belongs_to(one.pid, own) and (not own or Path(f"/proc/{one.pid}").exists())
    ]


def describe(holders: Sequence[Holder]) -> list[str]:
    """One line a process."""
    return [f"process {one.pid} ({one.name}) holds {one.gpu}" for one in holders]


def wait_free(smi: Smi, names: Sequence[str], limit_s: float) -> float:
    """Wait until no process holds the GPUs.

    Args:
        smi: Who is asked.
        names: GPUs as the contract names them.
        limit_s: Seconds.

    Returns:
        Seconds that it took.

    Raises:
        CheckError: Somebody still holds one; it is named, and nothing is killed.
    """
    started = time.monotonic()
    while True:
        gpus = chosen(smi.gpus(), names)
        held = foreign(smi.holders(), gpus, ())
        full = [gpu for gpu in gpus if gpu.used_mib > gpu.total_mib * _IDLE_SHARE]
        if not held and not full:
            return time.monotonic() - started
        if time.monotonic() - started > limit_s:
            lines = describe(held) or [
                f"GPU {gpu.index}: {gpu.used_mib} of {gpu.total_mib} MiB are in use, no process is seen; "
                "it may be in another container or virtual machine"
                for gpu in full
            ]
            pids = ", ".join(str(one.pid) for one in held) or "not to be seen from here"
            raise CheckError(
                f"the GPUs are still held after {limit_s:g} s, by process {pids}",
                details=lines,
                fix="end that process yourself if it is yours to end; nothing was killed",
            )
        time.sleep(_POLL_S)

"""Records of the probe and the doctor: one type for both, whatever looked at the machine."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tooling.gates.records import GateResult
from tooling.records import Record


class Source(StrEnum):
    """Who looked."""

    IMAGE = "image"  # the probe inside a container or beside a plain Python
    HOST = "host"  # the doctor, locally or over ssh


class Health(StrEnum):
    """What a ladder means."""

    HEALTHY = "healthy"
    HANG = "hang"
    WRONG_DATA = "wrong data"
    INCONCLUSIVE = "inconclusive"
    UNUSABLE = "unusable"


class Rung(Record):
    """One rung that was tried.

    Attributes:
        ladder: driver, memory, pair or collective.
        rung: E.g. `create`, `push`, `all-reduce`.
        outcome: ok, error, wrong-data, hang, crash, unusable or unavailable.
        device: Number of the GPU that acts.
        peer: Number of the GPU that owns the memory.
        arm: Arm of a collective: default, no-p2p or symmetric.
        handle: Handle type of the memory ladder.
        rdma: RDMA flag of the memory ladder.
        route: How an export came to the other process.
        size: Bytes.
        size_name: What the size stands for.
        free: Free device memory before it, bytes.
        wrong: Wrong bytes (memory) or words (pairs, collectives).
        writer_wrong: Wrong words as the writer sees them through its own window.
        call: Driver function that failed.
        code: CUresult.
        errno: errno, where a system call failed.
        name: Name of code or errno.
        log: The driver's or library's own sentence.
        meaning: What the code means on this kind of host.
        values: Measured numbers; units are in the names.
    """

    ladder: str
    rung: str
    outcome: str
    device: int | None = None
    peer: int | None = None
    arm: str = ""
    handle: str = ""
    rdma: bool | None = None
    route: str = ""
    size: int | None = None
    size_name: str = ""
    free: int | None = None
    wrong: int | None = None
    writer_wrong: int | None = None
    call: str = ""
    code: int | None = None
    errno: int | None = None
    name: str = ""
    log: str = ""
    meaning: str = ""
    values: dict[str, float] = Field(default_factory=dict)

    def describe(self) -> str:
        """One line: what was tried, with which result."""
        words = [f"{self.ladder}/{self.rung}"]
        if self.device is not None:
            words.append(f"GPU {self.device}" + (f" -> GPU {self.peer}" if self.peer is not None else ""))
        words += [word for word in (self.arm, self.handle, self.route, self.size_name) if word]
        if self.rdma:
            words.append("RDMA flag")
        if self.size:
            words.append(f"{self.size} B")
        words.append(f": {self.outcome}")
        if self.name:
            number = self.code if self.code is not None else self.errno
            words.append(f"{self.call} {self.name} ({number})".strip())
        if self.wrong:
            words.append(f"{self.wrong} wrong")
        if self.log:
            words.append(f"«{self.log}»")
        return " ".join(words).replace(" :", ":")


class GpuFacts(Record):
    """One GPU as far as it let itself be asked; None is not known."""

    index: int
    name: str
    pci: str = ""
    compute_capability: str = ""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    bar1_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    utilisation: int | None = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    acs_redirect: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    vbios: str = ""
    processes: int | None = None


class Link(Record):
    """How two GPUs are connected: NV#, PIX, PXB, PHB, NODE or SYS; and what the driver grants."""

    first: int
    second: int
    level: str = ""
    read: str = ""
    write: str = ""


class KernelFinding(Record):
    """Lines of the kernel log with one meaning.

    Attributes:
        kind: `xid` or the id in `kernel-log.yaml`.
        number: Xid number.
        state: application, info, reset or hardware.
        pci: Address of the GPU.
        count: Lines.
        line: The last of them, shortened.
        meaning: What it says.
        to_do: What to do.
        fails: Whether a host in this state may serve.
    """

    kind: str
    number: int | None = None
    state: str = ""
    pci: str = ""
    count: int = 1
    line: str
    meaning: str
    to_do: str = ""
    fails: bool


class Container(Record):
    """What the process that looked may do."""

    kind: str = ""
    shm_bytes: int | None = None
    memlock_bytes: int | None = None
    memlock_unlimited: bool = False
    seccomp: bool | None = None
    capabilities: str = ""
    environment: dict[str, str] = Field(default_factory=dict)


class Engine(Record):
    """Docker Engine, its client, the container toolkit, CDI; empty where there is none."""

    version: str = ""
    api: str = ""
    api_minimum: str = ""
    client: str = ""
    client_api: str = ""
    client_error: str = ""
    toolkit: str = ""
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    cdi_kinds: tuple[str, ...] = ()
    cdi_driver: str = ""
    error: str = ""


class Disk(Record):
    """Free and total bytes at a path."""

    path: str
    free: int
    total: int


class Holder(Record):
    """A process that holds GPUs."""

    pid: int
    command: str = ""
    nodes: tuple[str, ...] = ()
    container: str = ""


class HostRecord(Record):
    """What was seen of one machine. Serial numbers and GPU UUIDs stay out.

    Attributes:
        source: Who looked.
        simulated: A stand-in played the driver; such a record never qualifies anything.
        collected: ISO 8601, UTC.
        gpus: By driver order.
        pci_devices: Kernel driver of each NVIDIA display or 3D function on the PCI bus.
        links: One each pair.
        driver: Version of the driver, e.g. 580.95.05.
        driver_module: Version of the loaded kernel module.
        driver_kind: open, proprietary or empty.
        cuda_api: CUDA level of the driver, 1000 x major + 10 x minor.
        cuda_init: CUresult of cuInit; None when it was not asked or there is no library.
        cuda_error: Why cuInit could not be asked.
        cuda_library: The libcuda that the loader took.
        cuda_libraries: All that the loader knows.
        device_count: Devices that CUDA lists.
        smi: ok, absent, hang, or what nvidia-smi said.
        virtualisation: bare, vm, lxc, wsl, gvisor or unknown, with the hypervisor in brackets.
        iommu: off, passthrough, translated or unknown.
        rungs: What the ladders gave.
        multicast: What the granularity query answered on each GPU.
        idle_before: Percent and watts of each GPU before the ladders.
        idle_after: The same afterwards.
        unknown: What could not be read, one sentence each.
    """

    format: int = 1
    source: Source
    simulated: bool = False
    collected: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    pci_devices: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    driver: str = ""
    driver_module: str = ""
    driver_kind: str = ""
    driver_parameters: dict[str, str] = Field(default_factory=dict)
    device_nodes: dict[str, bool] = Field(default_factory=dict)
    modules: tuple[str, ...] = ()
    cuda_api: int | None = None
    cuda_init: int | None = None
    cuda_error: str = ""
    cuda_library: str = ""
    cuda_libraries: tuple[str, ...] = ()
    device_count: int | None = None
    smi: str = ""
    nvml_error: str = ""
    virtualisation: str = "unknown"
    iommu: str = "unknown"
    kernel: str = ""
    os: str = ""
    cpu: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    numa_nodes: int | None = None
    container: Container = Container()
    engine: Engine = Engine()
    kernel_log_readable: bool = False
    kernel_findings: tuple[KernelFinding, ...] = ()
    disks: tuple[Disk, ...] = ()
    ports: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()
    rungs: tuple[Rung, ...] = ()
    multicast: tuple[str, ...] = ()
    idle_before: tuple[tuple[float, float], ...] = ()
    idle_after: tuple[tuple[float, float], ...] = ()
    image_cuda: str = ""
    image_targets: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Urgency(StrEnum):
    """How much an advice matters."""

    MUST = "must"  # nothing works, or nothing is safe, before it is done
    SHOULD = "should"
    MAY = "may"


class Recommendation(Record):
    """One advice with the line that it rests on."""

    topic: str
    urgency: Urgency
    advice: str
    evidence: str


class ProbeReport(Record):
    """The whole answer: what was seen, what it means, what to change.

    Attributes:
        host: What was seen.
        fingerprint_sha256: Hash of the hardware class, see `fingerprint.py`.
        ladders: What each ladder that ran means.
        result: Checks of the gate `probe`.
        recommendations: What to choose and what to change.
    """

    host: HostRecord
    fingerprint_sha256: str
    ladders: dict[str, Health]
    result: GateResult
    recommendations: tuple[Recommendation, ...] = ()

"""From the raw document of the probe or the collector to the record: every gap is named, nothing is guessed."""

from __future__ import annotations

import json
import re
from typing import Any

from tooling.errors import InputError
from tooling.probe.kernel_log import read_kernel_log
from tooling.probe.records import Container, Disk, Engine, GpuFacts, Holder, HostRecord, Link, Rung, Source
from tooling.probe.smi import SmiError, links_of, read_matrix, read_smi
from tooling.probe.tables import codes

FORMAT = 1
#: NVML's levels of the common ancestor of two GPUs.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_THROTTLE_BITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_UNSUPPORTED_ACS = -1
#: ACS P2P request redirect and completion redirect: peer traffic is sent up to the root complex.
_ACS_REDIRECT = 0x4 | 0x8


class Raw:
    """A JSON value that others wrote: each access says what type it expects and gets that or nothing."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Raw:
        return Raw(self.value.get(key) if isinstance(self.value, dict) else None)

    def items(self) -> list[Raw]:
        """Elements of a list."""
        return [Raw(element) for element in self.value] if isinstance(self.value, list) else []

    def mapping(self) -> dict[str, Any]:
        """A dictionary with text keys."""
        return {str(key): each for key, each in self.value.items()} if isinstance(self.value, dict) else {}

    def text(self) -> str:
        """A string, or nothing."""
        return self.value if isinstance(self.value, str) else ""

    def whole(self) -> int | None:
        """A whole number; a boolean is none."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    def flag(self) -> bool | None:
        """A boolean, or a number used as one."""
        return bool(self.value) if isinstance(self.value, bool | int) else None


def read_document(text: str, *, where: str) -> HostRecord:
    """Record of one document.

    Args:
        text: JSON as the probe or the collector printed it; text before the first brace is passed over.
        where: For messages.

    Raises:
        InputError: It is no such document.
    """
    try:
        document = json.loads(text[max(text.find("{"), 0) :])
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"this is no document of the probe: {error}", where=where, fix="run the probe or the doctor again"
        ) from error
    raw = Raw(document)
    host = raw["host"] if raw["source"].text() == "image" else raw
    if not host["system"].mapping() or raw["format"].whole() != FORMAT:
        raise InputError(
            f"this is no document of the probe in format {FORMAT}", where=where,
            fix="use the probe and the toolkit of one version",
        )  # fmt: skip
    return _record(raw, host)


def _record(raw: Raw, host: Raw) -> HostRecord:
    nvidia, system = host["nvidia"], host["system"]
    unknown: list[str] = []
    smi_driver, gpus = _smi(nvidia, unknown)
    nvml_gpus = tuple(_nvml_gpu(each, raw["devices"].items()) for each in raw["nvml"]["gpus"].items())
    gpus = tuple(_with_pci(gpu, host["pci"].items()) for gpu in nvml_gpus or gpus or _proc_gpus(nvidia))
    matrices = [read_matrix(nvidia[name]["out"].text()) for name in ("topology", "p2p_read", "p2p_write")]
    gpus = _with_capability(gpus, nvidia)
    links = links_of(*matrices) or _nvml_links(raw["nvml"]["pairs"].items())
    virtualisation = _virtualisation(system)
    log = host["kernel_log"]
    if log["readable"].flag() is not True:
        why = "; ".join(each.text() for each in log["why"].items())
        unknown.append(f"the kernel log could not be read, so no Xid is known: {why or 'no reason given'}")
    bridges = [bridge for each in host["pci"].items() for bridge in each["bridges"].items()]
    if bridges and all(gpu.acs_redirect is None for gpu in gpus):
        unknown.append("ACS of the bridges could not be read: that needs root")
    hidden = nvidia["holders"]["unreadable"].whole()  # root meets only processes that end meanwhile
    if hidden and system["uid"].whole() != 0:
        unknown.append(f"{hidden} processes could not be looked at: who holds the GPUs needs root")
    module = nvidia["module_version"].text()
    kind = "container" if system["container"].text() else ""
    kind = next((name for name in ("vm", "lxc") if virtualisation.startswith(name)), kind)
    return HostRecord(
        source=Source.IMAGE if raw["source"].text() == "image" else Source.HOST,
        simulated=True in {raw["simulated"].flag(), _json(nvidia["cuda"]["out"].text())["simulated"].flag()},
        collected=host["collected"].text(),
        gpus=gpus,
        pci_devices=tuple(each["driver"].text() or "no driver" for each in host["pci"].items()),
        links=links,
        driver=raw["nvml"]["driver"].text() or smi_driver or module,
        driver_module=module,
        driver_kind=_driver_kind(nvidia["proc_version"].text()),
        driver_parameters=_parameters(nvidia["params"].text()),
        device_nodes={path: bool(usable) for path, usable in nvidia["device_nodes"].mapping().items()},
        modules=tuple(each.text() for each in nvidia["modules"].items()),
        **_cuda(raw, nvidia),
        smi=_smi_state(nvidia["smi"]),
        nvml_error=raw["nvml"]["error"]["message"].text(),
        virtualisation=virtualisation,
        iommu=_iommu(host["iommu"], virtualisation),
        kernel=system["kernel"].text(),
        os=system["os"].text(),
        cpu=system["cpu"].text(),
        cores=system["cores"].whole(),
        memory_bytes=(system["memory_total_kib"].whole() or 0) * 1024 or None,
        memory_available_bytes=(system["memory_available_kib"].whole() or 0) * 1024 or None,
        numa_nodes=system["numa_nodes"].whole(),
        container=_container(system, host["grants"]),
        engine=_engine(host["engine"]),
        kernel_log_readable=log["readable"].flag() is True,
        kernel_findings=read_kernel_log(line.text() for line in log["lines"].items()),
        disks=tuple(
            Disk(path=each["path"].text(), free=each["free"].whole() or 0, total=each["total"].whole() or 0)
            for each in host["disks"].items()
            if each["total"].whole()
        ),
        ports=tuple(sorted(port for each in host["ports"].items() if (port := each.whole()) is not None)),
        holders=tuple(_holder(each) for each in nvidia["holders"]["processes"].items()),
        rungs=tuple(_rung(each, kind) for each in raw["rungs"].items()),
        multicast=tuple(_multicast(each["multicast"]) for each in raw["devices"].items()),
        idle_before=_idle(raw["idle_before"]),
        idle_after=_idle(raw["idle_after"]),
        image_cuda=raw["image"]["cuda"].text(),
        image_targets=tuple(each.text() for each in raw["image"]["targets"]["required"].items()),
        unknown=tuple(unknown),
    )


def _smi(nvidia: Raw, unknown: list[str]) -> tuple[str, tuple[GpuFacts, ...]]:
    text = nvidia["smi"]["out"].text()
    if nvidia["smi"]["rc"].whole() != 0 or not text:
        return "", ()
    try:
        driver, _, gpus = read_smi(text)
    except SmiError as error:
        unknown.append(f"nvidia-smi's answer could not be read: {error}")
        return "", ()
    return driver, gpus


def _smi_state(smi: Raw) -> str:
    if smi["hang"].flag():
        return "hang"
    if smi["error"].text():
        return "absent"
    if smi["rc"].whole() == 0:
        return "ok"
    return (smi["out"].text().strip().splitlines() or ["failed"])[-1][:200]


def _nvml_gpu(raw: Raw, devices: list[Raw]) -> GpuFacts:
    pci = raw["pci"].text().lower()
    short = pci[-12:]
    capability = raw["compute_capability"].text()
    for device in devices:
        attributes = device["attributes"]
        if not capability and device["pci"].text().lower() == short:
            capability = f"{attributes['capability_major'].whole()}.{attributes['capability_minor'].whole()}"
    bits = raw["throttle_reasons"].whole() or 0
    rows = raw["remapped_rows"]
    nodes = [node for each in raw["numa_nodes"].items() if (node := each.whole()) is not None]

    def watts(name: str) -> float | None:
        value = raw[name].whole()
        return None if value is None else value / 1000

    return GpuFacts(
        index=raw["index"].whole() or 0,
        name=raw["name"].text() or "unknown",
        pci=pci,
        compute_capability=capability,
        memory_bytes=raw["memory_bytes"].whole(),
        memory_free_bytes=raw["memory_free_bytes"].whole(),
        bar1_bytes=raw["bar1_bytes"].whole(),
        power_w=watts("power_mw"),
        power_limit_w=watts("power_limit_mw"),
        power_default_w=watts("power_default_mw"),
        temperature_c=raw["temperature_c"].whole(),
        utilisation=raw["utilisation"].whole(),
        throttle=tuple(words for bit, words in _THROTTLE_BITS.items() if bits & bit),
        ecc_uncorrected=raw["ecc_uncorrected"].whole(),
        rows_pending=rows["pending"].flag(),
        rows_failed=rows["failed"].flag(),
        pcie_generation=raw["pcie_generation"].whole(),
        pcie_generation_max=raw["pcie_generation_max"].whole(),
        pcie_width=raw["pcie_width"].whole(),
        pcie_width_max=raw["pcie_width_max"].whole(),
        numa_node=nodes[0] if len(nodes) == 1 else None,
        mig=raw["mig"].flag(),
        persistence=raw["persistence"].flag(),
        vbios=raw["vbios"].text(),
        processes=len(raw["processes"].items()),
    )


def _proc_gpus(nvidia: Raw) -> tuple[GpuFacts, ...]:
    """GPUs as /proc lists them: all that is left when neither NVML nor nvidia-smi answers."""
    return tuple(
        GpuFacts(index=index, name=Raw(facts)["Model"].text() or "unknown", pci=address)
        for index, (address, facts) in enumerate(sorted(nvidia["gpus"].mapping().items()))
    )


def _with_pci(gpu: GpuFacts, functions: list[Raw]) -> GpuFacts:
    """Add NUMA node and ACS from the PCI tree."""
    for each in functions:
        address = each["address"].text().lower()
        if address and gpu.pci.endswith(address):
            node = _number(each["numa_node"].text())
            values = [bridge["acs_control"].whole() for bridge in each["bridges"].items()]
            known = [value for value in values if value is not None and value != _UNSUPPORTED_ACS]
            redirect = any(value & _ACS_REDIRECT for value in known) if None not in values and values else None
            known_node = node if node is not None and node >= 0 else gpu.numa_node
            return gpu.model_copy(update={"numa_node": known_node, "acs_redirect": redirect})
    return gpu


def _with_capability(gpus: tuple[GpuFacts, ...], nvidia: Raw) -> tuple[GpuFacts, ...]:
    """Add what the driver says to the collector, which asks it in the order of nvidia-smi."""
    values = [each.text() for each in _json(nvidia["cuda"]["out"].text())["capabilities"].items()]
    if len(values) != len(gpus):  # some are hidden from CUDA: which is which is not known
        return gpus
    return tuple(
        gpu if gpu.compute_capability else gpu.model_copy(update={"compute_capability": value})
        for gpu, value in zip(gpus, values, strict=True)
    )


def _json(text: str) -> Raw:
    """A program's JSON; text that is none becomes its error."""
    try:
        return Raw(json.loads(text or "{}"))
    except ValueError:
        return Raw({"error": text[:200]})


def _nvml_links(pairs: list[Raw]) -> tuple[Link, ...]:
    return tuple(
        Link(
            first=pair["first"].whole() or 0,
            second=pair["second"].whole() or 0,
            level=_LEVELS.get(pair["level"].whole() or 0, ""),
            read="OK" if pair["read"].whole() == 0 else "NS",
            write="OK" if pair["write"].whole() == 0 else "NS",
        )
        for pair in pairs
    )


def _cuda(raw: Raw, nvidia: Raw) -> dict[str, Any]:
    """What cuInit said: the probe's own process where it ran, else the collector's question."""
    answer = _json(nvidia["cuda"]["out"].text())
    first = next((rung for rung in raw["rungs"].items() if rung["ladder"].text() == "driver"), Raw(None))
    values = first["values"]
    init = answer["init"].whole()
    if first["outcome"].text() == "ok":
        init = 0
    elif first["code"].whole() is not None:
        init = first["code"].whole()
    error = answer["error"].text() or nvidia["cuda"]["error"].text()
    if nvidia["cuda"]["hang"].flag() or first["outcome"].text() == "hang":
        error = "cuInit did not come back"
    library = next((each.text() for each in answer["library"].items()), "")
    return {
        "cuda_api": values["version"].whole() or answer["version"].whole(),
        "cuda_init": init,
        "cuda_error": "" if init == 0 else error,
        "cuda_library": library,
        "cuda_libraries": tuple(
            path
            for pair in nvidia["libraries"].items()
            if (path := pair.items()[-1].text() if pair.items() else "")
        ),
        "device_count": values["count"].whole()
        if values["count"].whole() is not None
        else answer["count"].whole(),
    }


def _driver_kind(text: str) -> str:
    if not text:
        return ""
    return "open" if "Open Kernel Module" in text else "proprietary"


def _parameters(text: str) -> dict[str, str]:
    """The parameters that decide peer access and resets; the others stay out."""
    keep = {
        "EnableResizableBar",
        "RegistryDwords",
        "NvLinkDisable",
        "GrdmaPciTopoCheckOverride",
        "EnableGpuFirmware",
    }
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs if name.strip() in keep}


def _virtualisation(system: Raw) -> str:
    container, version = system["container"].text(), system["proc_version"].text()
    kernel = system["kernel"].text()
    maker = " ".join(system["dmi"][key].text() for key in ("sys_vendor", "product_name")).strip()
    if "microsoft" in version.lower():
        return "wsl"
    if "gvisor" in version.lower() or kernel == "4.4.0":
        return "gvisor"
    if system["hypervisor_flag"].flag() or re.search(r"-fc\b|firecracker", kernel):
        name = "Firecracker" if re.search(r"-fc\b", kernel) else maker
        return f"vm ({name})" if name else "vm"
    if "lxc" in {container, system["outer_container"].text()}:
        return "lxc"
    return "bare" if system["machine"].text() == "x86_64" else f"unknown ({maker})" if maker else "unknown"


def _iommu(iommu: Raw, virtualisation: str) -> str:
    kinds = set(iommu["domains"].mapping())
    if not iommu["groups"].whole():
        return "unknown" if virtualisation.startswith(("vm", "lxc", "gvisor")) else "off"
    if kinds and kinds <= {"identity"}:
        return "passthrough"
    return "translated" if kinds & {"DMA", "DMA-FQ"} else "unknown"


def _container(system: Raw, grants: Raw) -> Container:
    memlock = grants["memlock_bytes"].whole()
    return Container(
        kind=system["container"].text(),
        shm_bytes=grants["shm_bytes"].whole(),
        memlock_bytes=memlock,
        memlock_unlimited=memlock is None and "memlock_bytes" in grants.mapping(),
        seccomp=grants["seccomp"].text() not in {"", "0"},
        capabilities=grants["capabilities"].text(),
        environment={name: str(value) for name, value in grants["environment"].mapping().items()},
    )


def _engine(raw: Raw) -> Engine:
    docker, specifications = raw["docker"], raw["cdi"].items()
    client = raw["client"]
    words = client["out"].text().split() if client["rc"].whole() == 0 else []
    versions = [
        found[1]
        for name in ("toolkit", "container_cli")
        if (found := re.search(r"version:?\s+(\d+(?:\.\d+)+)", raw[name]["out"].text()))
    ]
    return Engine(
        version=docker["Version"].text(),
        api=docker["ApiVersion"].text(),
        api_minimum=docker["MinAPIVersion"].text(),
        client=words[0] if words else "",
        client_api=words[1] if words[1:] else "",
        client_error="" if words else (client["out"].text() or client["error"].text()).strip()[:300],
        toolkit=versions[0] if versions else "",
        runtimes=tuple(each.text() for each in docker["Runtimes"].items()),
        default_runtime=docker["DefaultRuntime"].text(),
        cdi_kinds=tuple(each["kind"].text() for each in specifications),
        cdi_driver=next(
            (drivers[0].text() for each in specifications if (drivers := each["driver"].items())), ""
        ),
        error=docker["error"].text(),
    )


def _holder(raw: Raw) -> Holder:
    return Holder(
        pid=raw["pid"].whole() or 0,
        command=raw["command"].text(),
        nodes=tuple(node.text() for node in raw["nodes"].items()),
        container=raw["container"].text(),
    )


def _rung(raw: Raw, kind: str) -> Rung:
    known = Rung.model_fields.keys()
    facts = {name: value for name, value in raw.mapping().items() if name in known and value is not None}
    facts.setdefault("ladder", "driver")
    if {"torch", "nccl"} & raw.mapping().keys():
        facts["log"] = str(facts.get("log", "")) or f"torch {raw['torch'].text()}, NCCL {raw['nccl'].text()}"
    code, number = raw["code"].whole(), raw["errno"].whole()
    table = codes().results.get(code) if code is not None else codes().errno.get(number or 0)
    if table is not None and raw["outcome"].text() != "ok":
        facts["meaning"] = table.on(kind)
    try:
        return Rung.model_validate(facts)
    except ValueError as error:
        raise InputError(
            f"a rung of this document cannot be read: {str(error)[:200]}", where=str(facts)[:200]
        ) from error


def _multicast(raw: Raw) -> str:
    granule = raw["granularity"].whole()
    return f"granularity {granule} B" if granule else f"{raw['name'].text()} ({raw['code'].whole()})"


def _idle(raw: Raw) -> tuple[tuple[float, float], ...]:
    return tuple(
        (float(each["utilisation"].whole() or 0), (each["power_mw"].whole() or 0) / 1000)
        for each in raw.items()
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,4}", text) else None

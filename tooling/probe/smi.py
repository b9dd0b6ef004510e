"""Readers of nvidia-smi's outputs: `-q -x`, `topo -m` and `topo -p2p`."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tooling.probe.records import GpuFacts, Link

#: Words of a matrix by row and column.
Cells = dict[tuple[int, int], str]
_MIB = 2**20
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = re.compile(r"^(?:NV\d+|PIX|PXB|PHB|NODE|SYS|X|OK|[A-Z]{1,4})$")
#: Elements of `clocks_event_reasons` that slow a GPU down for a cause one can act on.
THROTTLE = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "thermal slowdown",
    "sw_power_cap": "power cap",
}


class SmiError(ValueError):
    """The output is no answer of nvidia-smi."""


def read_smi(text: str) -> tuple[str, str, tuple[GpuFacts, ...]]:
    """Driver version, CUDA version and GPUs of `nvidia-smi -q -x`.

    Raises:
        SmiError: The text is no such document.
    """
    if "<!ENTITY" in text:  # entities could grow without bound; nvidia-smi writes none
        raise SmiError("the XML declares entities")
    try:
        root = ET.fromstring(text)  # noqa: S314  # entities are refused above
    except ET.ParseError as error:
        raise SmiError(f"no XML: {error}") from error
    if root.tag != "nvidia_smi_log":
        raise SmiError(f"the document is <{root.tag}>, not <nvidia_smi_log>")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(root.iter("gpu")))
    return _text(root, "driver_version"), _text(root, "cuda_version"), gpus


def _gpu(index: int, gpu: ET.Element) -> GpuFacts:
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    reasons = gpu.find("clocks_event_reasons")
    if reasons is None:
        reasons = gpu.find("clocks_throttle_reasons")
    active = tuple(
        words
        for name, words in THROTTLE.items()
        if reasons is not None
        and any(
            (reasons.findtext(f"{prefix}{name}") or "").strip() == "Active"
            for prefix in ("clocks_event_reason_", "clocks_throttle_reason_")
        )
    )
    link = "pci/pci_gpu_link_info"
    memory, free, bar = (
        _number(gpu, name)
        for name in ("fb_memory_usage/total", "fb_memory_usage/free", "bar1_memory_usage/total")
    )
    processes = gpu.find("processes")
    return GpuFacts(
        index=index,
        name=_text(gpu, "product_name") or "unknown",
        pci=(gpu.get("id") or "").lower(),
        memory_bytes=_whole(memory, _MIB),
        memory_free_bytes=_whole(free, _MIB),
        bar1_bytes=_whole(bar, _MIB),
        power_w=_first(
            gpu, f"{power}/instant_power_draw", f"{power}/power_draw", f"{power}/average_power_draw"
        ),
        power_limit_w=_first(gpu, f"{power}/current_power_limit", f"{power}/power_limit"),
        power_default_w=_number(gpu, f"{power}/default_power_limit"),
        temperature_c=_whole(_number(gpu, "temperature/gpu_temp")),
        utilisation=_whole(_number(gpu, "utilization/gpu_util")),
        throttle=active,
        ecc_uncorrected=_whole(
            _first(gpu, "ecc_errors/volatile/dram_uncorrectable", "ecc_errors/volatile/double_bit/total")
        ),
        rows_pending=_yes(gpu, "remapped_rows/remapped_row_pending"),
        rows_failed=_yes(gpu, "remapped_rows/remapped_row_failure"),
        pcie_generation=_whole(_first(gpu, f"{link}/pcie_gen/current_link_gen")),
        pcie_generation_max=_whole(_first(gpu, f"{link}/pcie_gen/max_link_gen")),
        pcie_width=_whole(_number(gpu, f"{link}/link_widths/current_link_width")),
        pcie_width_max=_whole(_number(gpu, f"{link}/link_widths/max_link_width")),
        mig=_yes(gpu, "mig_mode/current_mig"),
        persistence=_yes(gpu, "persistence_mode"),
        vbios=_text(gpu, "vbios_version"),
        processes=None if processes is None else len(processes.findall("process_info")),
    )


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(element: ET.Element, path: str) -> float | None:
    """The number of `143771 MiB` or `16x`; None for `N/A`, `[Unknown Error]` and the like."""
    found = re.match(r"-?\d+(?:\.\d+)?", _text(element, path))
    return float(found[0]) if found else None


def _first(element: ET.Element, *paths: str) -> float | None:
    return next((value for path in paths if (value := _number(element, path)) is not None), None)


def _whole(value: float | None, unit: int = 1) -> int | None:
    return None if value is None else int(value * unit)


def _yes(element: ET.Element, path: str) -> bool | None:
    text = _text(element, path)
    return {"Yes": True, "No": False, "Enabled": True, "Disabled": False}.get(text)


def read_matrix(text: str) -> Cells:
    """Cells of `topo -m` or `topo -p2p` by row and column; columns that are no GPU are passed over."""
    columns: list[int] = []
    cells: Cells = {}
    for line in _ESCAPE.sub("", text).splitlines():
        words = line.split()
        gpus = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d+", word)]
        if not columns and gpus and not (words[1:] and _LEVELS.match(words[1]) and len(gpus) == 1):
            columns = gpus
        elif columns and words and re.fullmatch(r"GPU\d+", words[0]):
            row = int(words[0][3:])
            for column, word in zip(columns, words[1:], strict=False):
                if _LEVELS.match(word):
                    cells[row, column] = word
    return cells


def links_of(topology: Cells, read: Cells, write: Cells) -> tuple[Link, ...]:
    """One link for each pair; a grant counts only when both directions have it."""
    pairs = sorted({(min(pair), max(pair)) for pair in (*topology, *read, *write) if pair[0] != pair[1]})
    return tuple(
        Link(
            first=first,
            second=second,
            level=topology.get((first, second)) or topology.get((second, first), ""),
            read=_both(read, first, second),
            write=_both(write, first, second),
        )
        for first, second in pairs
    )


def _both(cells: Cells, first: int, second: int) -> str:
    there, back = cells.get((first, second), ""), cells.get((second, first), "")
    return there if there == back or back in {"", "OK"} else back

"""The kernel log: what the driver, PCIe and the IOMMU wrote while the server's log stayed silent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.probe.records import KernelFinding
from tooling.probe.tables import Xid, kernel_lines, xids

if TYPE_CHECKING:
    from collections.abc import Iterable

#: `NVRM: Xid (PCI:0000:01:00): 79, pid=...`; the prefix, the domain's width and the pid vary with the driver.
XID = re.compile(r"\bXid\s*(?:\(|: )\s*(?:PCI:)?(?P<pci>[0-9a-fA-F:.]*)\s*\)?\s*:\s*(?P<number>\d{1,4})\b")
LINE_LIMIT = 240
_ACTION = {
    "application": "nothing on the host; find the program that did it",
    "info": "",
    "reset": "reset the GPU or reboot the host before anything is started, swapped or rolled back onto it",
    "hardware": "power-cycle the host and look at the card: slot, riser, power, cooling",
}
_UNLISTED = Xid(
    state="reset", meaning="a number that our table does not know; a GPU that reports it is not trusted"
)


def read_kernel_log(lines: Iterable[str]) -> tuple[KernelFinding, ...]:
    """Findings of a kernel log, one for each Xid number and GPU and for each other kind of line.

    Args:
        lines: Lines of this boot, in order; anything else in between is passed over.
    """
    found: dict[tuple[str, str], KernelFinding] = {}
    for line in lines:
        finding = _finding(line)
        if finding is not None:
            key = (f"{finding.kind} {finding.number}", finding.pci)
            count = found[key].count + 1 if key in found else 1
            found[key] = finding.model_copy(update={"count": count})
    return tuple(found.values())


def _finding(line: str) -> KernelFinding | None:
    shown = " ".join(line.split())[:LINE_LIMIT]
    special = next((known for known in kernel_lines() if re.search(known.pattern, line)), None)
    matched = XID.search(line)
    if matched is None:
        if special is None:
            return None
        return KernelFinding(
            kind=special.id, line=shown, meaning=special.meaning, to_do=special.to_do, fails=special.fails
        )
    number = int(matched["number"])
    known = xids().get(number, _UNLISTED)
    # The text after a number can say more than the number: a requested recovery, a GPU that is gone.
    worse = special is not None and special.fails
    return KernelFinding(
        kind="xid",
        number=number,
        state="reset" if worse and known.state in {"application", "info"} else known.state,
        pci=matched["pci"],
        line=shown,
        meaning=special.meaning if special is not None and worse and known.state == "info" else known.meaning,
        to_do=special.to_do if special is not None and worse else _ACTION[known.state],
        fails=worse or known.state in {"reset", "hardware"},
    )

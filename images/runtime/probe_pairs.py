"""The pair ladder: from the driver's word to bytes that the owner sees. Runs in child processes of their own.

An attribute is no proof, and neither is what the writer reads back through its own window: every transfer
here is checked by a kernel on the GPU that owns the memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from probe_driver import Driver
from probe_memory import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    Report = Callable[..., None]

SIZES = (4 << 10, 256 << 10, 64 << 20)
LARGE = SIZES[-1]
ROUNDS = 8
SMALL_COPIES = 200
P2P_ATTRIBUTES = {
    "access": "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED",
    "native_atomics": "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED",
    "performance_rank": "CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK",
}


class Side:
    """One GPU of the ladder: context, a buffer, a counter, the two kernels."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        self.context = driver.context(index)
        self.device = driver.call("cuDeviceGet", index)
        self.fill_kernel, self.check_kernel = driver.kernels()
        self.base = int(driver.call("cuMemAlloc", LARGE))
        self.counter = int(driver.call("cuMemAlloc", 4))

    def current(self) -> None:
        """Make this GPU's context current."""
        self.driver.call("cuCtxSetCurrent", self.context)

    def fill(self, base: int, size: int, seed: int, *, wait: bool = True) -> None:
        """Write the pattern with a kernel on this GPU."""
        self.current()
        self.driver.launch(self.fill_kernel, base, size // 4, seed)
        if wait:
            self.driver.call("cuCtxSynchronize")

    def wrong(self, base: int, size: int, seed: int) -> int:
        """Words that differ from the pattern, as a kernel on this GPU sees them."""
        self.current()
        self.driver.call("cuMemsetD32", self.counter, 0, 1)
        self.driver.launch(self.check_kernel, base, size // 4, seed, self.counter)
        self.driver.call("cuCtxSynchronize")
        found = bytearray(4)
        self.driver.call("cuMemcpyDtoH", found, self.counter, 4)
        return int.from_bytes(found, "little")

    def clear(self, size: int) -> None:
        """Set this GPU's buffer to zero."""
        self.current()
        self.driver.call("cuMemsetD8", self.base, 0, size)
        self.driver.call("cuCtxSynchronize")


def pair_ladder(report: Report, first: int, second: int) -> None:
    """All rungs of one pair of GPUs, both directions."""
    driver = Driver()
    sides = {index: Side(driver, index) for index in (first, second)}
    granted = True
    for writer, owner in ((first, second), (second, first)):
        labels = {"ladder": "pair", "device": writer, "peer": owner}
        one, other = sides[writer], sides[owner]
        granted &= _grant(report, driver, one, other, labels)
    for writer, owner in ((first, second), (second, first)):
        labels = {"ladder": "pair", "device": writer, "peer": owner, "granted": granted}
        one, other = sides[writer], sides[owner]
        moved = [_copy(report, one, other, size, labels) for size in SIZES]
        if granted and all(moved):
            _window(report, one, other, labels)


def speed_ladder(report: Report, pairs: list[tuple[int, int]]) -> None:
    """Time each direction of the given pairs by itself: pairs on one bridge slow each other down."""
    driver = Driver()
    sides = {index: Side(driver, index) for index in sorted({index for pair in pairs for index in pair})}
    for first, second in pairs:
        for writer, owner in ((first, second), (second, first)):
            labels = {"ladder": "pair", "device": writer, "peer": owner}
            one, other = sides[writer], sides[owner]
            report("begin", rung="speed", **labels)
            if _enable_all(driver, [one], [other]):
                _speed(report, driver, one, other, labels)
            else:
                report("rung", rung="speed", outcome="unusable", **labels)


def _grant(report: Report, driver: Driver, one: Side, other: Side, labels: dict[str, Any]) -> bool:
    """What the driver says of the pair, and whether it enables peer access."""
    able = int(driver.call("cuDeviceCanAccessPeer", one.device, other.device))
    values = {}
    for name, member in P2P_ATTRIBUTES.items():
        attribute = getattr(driver.cuda.CUdevice_P2PAttribute, member)
        values[name] = int(driver.call("cuDeviceGetP2PAttribute", attribute, one.device, other.device))
    report("rung", rung="can-access", outcome="ok" if able else "unusable", values=values, **labels)
    if not able:
        return False

    def enable() -> None:
        one.current()
        driver.call("cuCtxEnablePeerAccess", other.context, 0)

    return attempt(report, "enable", enable, **labels)


def _copy(report: Report, one: Side, other: Side, size: int, labels: dict[str, Any]) -> bool:
    """Copy a pattern to the other GPU; the other GPU's kernel looks at it."""
    seed = size ^ (one.index << 8) ^ 0xBEEF

    def copy() -> int:
        other.clear(size)
        one.fill(one.base, size, seed)
        one.driver.call("cuMemcpyPeer", other.base, other.context, one.base, one.context, size)
        one.driver.call("cuCtxSynchronize")
        return other.wrong(other.base, size, seed)

    return attempt(report, "copy", copy, size=size, **labels)


def _window(report: Report, one: Side, other: Side, labels: dict[str, Any]) -> None:
    """Direct stores and loads by a kernel through the peer window, checked on the owner's side."""
    for size in SIZES:
        seed = size ^ (one.index << 4) ^ 0xD00D
        seen: dict[str, int] = {}

        def push(size: int = size, seed: int = seed, seen: dict[str, int] = seen) -> int:
            other.clear(size)
            one.fill(other.base, size, seed)
            seen["writer_wrong"] = one.wrong(other.base, size, seed)
            return other.wrong(other.base, size, seed)

        pushed = attempt(report, "push", push, size=size, **labels)
        if not pushed and seen:
            report("note", rung="push", size=size, **seen, **labels)

        def pull(size: int = size, seed: int = seed) -> int:
            other.fill(other.base, size, seed ^ 0xFF)
            return one.wrong(other.base, size, seed ^ 0xFF)

        attempt(report, "pull", pull, size=size, **labels)


def _speed(report: Report, driver: Driver, one: Side, other: Side, labels: dict[str, Any]) -> None:
    """Bandwidth in GB/s (10^9 bytes) and copy latency in microseconds, by wall clock around a batch."""

    def timed(action: Callable[[], None], rounds: int) -> float:
        action()
        one.current()
        driver.call("cuCtxSynchronize")
        clock = time.perf_counter()
        for _ in range(rounds):
            action()
        one.current()
        driver.call("cuCtxSynchronize")
        return (time.perf_counter() - clock) / rounds

    def copy(size: int) -> Callable[[], None]:
        def action() -> None:
            driver.call("cuMemcpyPeerAsync", other.base, other.context, one.base, one.context, size, 0)

        return action

    one.current()
    gigabytes = LARGE / 1e9
    values = {"copy_gbps": gigabytes / timed(copy(LARGE), ROUNDS)}
    values["copy_latency_us"] = timed(copy(8), SMALL_COPIES) * 1e6
    values["push_gbps"] = gigabytes / timed(lambda: one.fill(other.base, LARGE, 1, wait=False), ROUNDS)

    def load() -> None:
        driver.launch(one.check_kernel, other.base, LARGE // 4, 1, one.counter)

    values["pull_gbps"] = gigabytes / timed(load, ROUNDS)
    report(
        "rung",
        rung="speed",
        outcome="ok",
        values={key: round(value, 3) for key, value in values.items()},
        **labels,
    )


def all_at_once(report: Report, devices: list[int]) -> None:
    """Every GPU writes to its neighbour at the same moment: what a collective really gets, GB/s a GPU."""
    driver = Driver()
    sides = [Side(driver, index) for index in devices]
    labels = {"ladder": "pair", "devices": devices}
    report("begin", rung="all-at-once", **labels)
    for step, name in ((1, "ring"), (-1, "reverse ring")):
        peers = [sides[(place + step) % len(sides)] for place in range(len(sides))]
        if not _enable_all(driver, sides, peers):
            report("rung", rung="all-at-once", outcome="unusable", pattern=name, **labels)
            continue
        elapsed = 0.0
        for rounds in (1, ROUNDS):  # the first is a warm-up
            clock = time.perf_counter()
            for _ in range(rounds):
                for one, peer in zip(sides, peers, strict=True):
                    one.fill(peer.base, LARGE, one.index + 77, wait=False)
            for one in sides:
                one.current()
                driver.call("cuCtxSynchronize")
            elapsed = (time.perf_counter() - clock) / rounds
        wrong = sum(
            peer.wrong(peer.base, LARGE, one.index + 77) for one, peer in zip(sides, peers, strict=True)
        )
        report("rung", rung="all-at-once", outcome="wrong-data" if wrong else "ok", wrong=wrong, pattern=name,
               values={"gbps": round(LARGE / 1e9 / elapsed, 3)}, **labels)  # fmt: skip


def _enable_all(driver: Driver, sides: list[Side], peers: list[Side]) -> bool:
    """Enable peer access along a pattern; asking twice is no failure."""
    already = 704
    for one, peer in zip(sides, peers, strict=True):
        if not int(driver.call("cuDeviceCanAccessPeer", one.device, peer.device)):
            return False
        one.current()
        result = driver.cuda.cuCtxEnablePeerAccess(peer.context, 0)[0]
        if int(result) not in {0, already}:
            return False
    return True

"""The memory ladder: what a device lends, shares and takes back, with the code of each refusal.

Each function here runs in a child process of its own (`probe_child.py`), since a driver may hang or crash.
"""

from __future__ import annotations

import base64
import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe_driver import Driver, DriverError, UnavailableError, bytes_of, handle_types, with_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Report = Callable[..., None]

SEED, SEED_BACK = 0x5A17, 0x0C0DE
CHILD = Path(__file__).with_name("probe_child.py")
IMPORT_LIMIT_S = 20
PATTERN_BYTES = 1 << 20


def allocation_properties(cuda: Any, device: int, handle: str, *, rdma: bool) -> Any:
    """Properties of a pinned allocation on a device."""
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = handle_types(cuda)[handle]
    properties.allocFlags.gpuDirectRDMACapable = int(rdma)
    return properties


class Window(NamedTuple):
    """A range of device addresses of this process, size in bytes."""

    base: int
    size: int


class Mapping:
    """A piece of memory mapped into this process for one device."""

    def __init__(self, driver: Driver, handle: Any, size: int, device: int) -> None:
        self.driver, self.size = driver, size
        self.base = int(driver.call("cuMemAddressReserve", size, 0, 0, 0))
        driver.call("cuMemMap", self.base, size, 0, handle, 0)
        access = driver.cuda.CUmemAccessDesc()
        access.location.type = driver.cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = driver.cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        driver.call("cuMemSetAccess", self.base, size, [access], 1)

    def close(self) -> None:
        """Unmap it and give the addresses back."""
        self.driver.call("cuMemUnmap", self.base, self.size)
        self.driver.call("cuMemAddressFree", self.base, self.size)


def pattern(seed: int, size: int) -> bytes:
    """Bytes that no other seed gives, repeated over `size`."""
    block = bytes((seed * 31 + index * 7 + (index >> 8)) & 0xFF for index in range(4096))
    return (block * (size // len(block) + 1))[:size]


def write(driver: Driver, base: int, seed: int, size: int) -> None:
    """Write the seed's pattern from the host."""
    data = pattern(seed, size)
    driver.call("cuMemcpyHtoD", base, data, size)
    driver.call("cuCtxSynchronize")


def wrong_bytes(driver: Driver, base: int, seed: int, size: int) -> int:
    """How many bytes differ from the seed's pattern."""
    data = bytearray(size)
    driver.call("cuMemcpyDtoH", data, base, size)
    want = pattern(seed, size)
    return 0 if data == want else sum(a != b for a, b in zip(data, want, strict=True))


def attempt(report: Report, rung: str, action: Callable[[], Any], **labels: Any) -> bool:
    """Run one rung and report it; an integer answer above 0 is a count of wrong bytes or words."""
    report("begin", rung=rung, **labels)
    try:
        wrong = action()
    except DriverError as error:
        report("rung", rung=rung, outcome="error", call=error.call, code=error.code, name=error.name,
               log=error.log, **labels)  # fmt: skip
        return False
    except OSError as error:
        report("rung", rung=rung, outcome="error", call=rung, errno=error.errno, name=error.strerror, **labels)
        return False
    if isinstance(wrong, int) and wrong > 0:
        report("rung", rung=rung, outcome="wrong-data", wrong=wrong, **labels)
        return False
    report("rung", rung=rung, outcome="ok", **labels)
    return True


def memory_ladder(report: Report, device: int, handle: str, workspace: int) -> None:
    """Create, map, write, read, export and import for one handle type, without and then with the RDMA flag."""
    driver = Driver()
    driver.context(device)
    for rdma in (False, True):
        _combination(report, driver, device, handle, workspace, rdma=rdma)


def _combination(
    report: Report, driver: Driver, device: int, handle: str, workspace: int, *, rdma: bool
) -> None:
    properties = allocation_properties(driver.cuda, device, handle, rdma=rdma)
    labels = {"ladder": "memory", "device": device, "handle": handle, "rdma": rdma}
    flag = driver.cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    sizes: dict[str, int] = {}

    def granularity() -> None:
        sizes["granule"] = int(driver.call("cuMemGetAllocationGranularity", properties, flag))

    if not attempt(report, "granularity", granularity, **labels):
        return
    granule = sizes["granule"]
    for name, size in (("granularity", granule), ("workspace", -(-workspace // granule) * granule)):
        free, total = (int(value) for value in driver.call("cuMemGetInfo"))
        here = {**labels, "size": size, "size_name": name, "free": free, "total": total}
        held: list[Any] = []

        def create(size: int = size, held: list[Any] = held) -> None:
            held.append(driver.call("cuMemCreate", size, properties, 0))

        if attempt(report, "create", create, **here):
            _use(report, driver, held[0], here, full=name == "granularity")
            driver.call("cuMemRelease", held[0])


def _use(report: Report, driver: Driver, handle: Any, labels: dict[str, Any], *, full: bool) -> None:
    """Map, write and read an allocation, and where `full` hand it to another process."""
    size, device = labels["size"], labels["device"]
    tested = min(size, PATTERN_BYTES)
    held: list[Mapping] = []
    if not attempt(report, "map", lambda: held.append(Mapping(driver, handle, size, device)), **labels):
        return
    mapping = held[0]

    def round_trip() -> int:
        write(driver, mapping.base, SEED, tested)
        return wrong_bytes(driver, mapping.base, SEED, tested)

    if attempt(report, "write-read", round_trip, **labels) and full and labels["handle"] != "none":
        _share(report, driver, handle, mapping, labels)
    attempt(report, "unmap", mapping.close, **labels)


def _share(report: Report, driver: Driver, handle: Any, mapping: Mapping, labels: dict[str, Any]) -> None:
    exported: list[Any] = []
    kind = handle_types(driver.cuda)[labels["handle"]]

    def export() -> None:
        exported.append(driver.call("cuMemExportToShareableHandle", handle, kind, 0))

    if not attempt(report, "export", export, **labels):
        return
    order = {"size": mapping.size, "device": labels["device"], "handle": labels["handle"]}
    if labels["handle"] == "fabric":
        order["data"] = base64.b64encode(bytes_of(exported[0])).decode()
        routes = ["fabric"]
    else:
        routes = ["scm_rights", "pidfd"]
    for route in routes:

        def hand_over(route: str = route) -> int:
            return _in_other_process(driver, mapping, exported[0], {**order, "route": route})

        attempt(report, "import", hand_over, route=route, **labels)
    if labels["handle"] == "posix_fd":
        os.close(int(exported[0]))


def legacy_ipc(report: Report, device: int) -> None:
    """The older way to share: cuIpcGetMemHandle of a plain allocation."""
    driver = Driver()
    driver.context(device)
    labels = {"ladder": "memory", "device": device, "handle": "legacy_ipc", "rdma": False}
    size = 2 << 20
    held: list[Any] = []
    if not attempt(report, "create", lambda: held.append(driver.call("cuMemAlloc", size)), **labels):
        return
    base = int(held[0])

    def round_trip() -> int:
        write(driver, base, SEED, PATTERN_BYTES)
        return wrong_bytes(driver, base, SEED, PATTERN_BYTES)

    attempt(report, "write-read", round_trip, **labels)
    if attempt(report, "export", lambda: held.append(driver.call("cuIpcGetMemHandle", base)), **labels):
        order = {"size": size, "device": device, "handle": "legacy_ipc", "route": "legacy_ipc"}
        order["data"] = base64.b64encode(bytes_of(held[1])).decode()

        plain = Window(base, size)

        def hand_over() -> int:
            return _in_other_process(driver, plain, None, order)

        attempt(report, "import", hand_over, route="legacy_ipc", **labels)
    driver.call("cuMemFree", base)


def _in_other_process(driver: Driver, mapping: Window | Mapping, exported: Any, order: dict[str, Any]) -> int:
    """Another process imports, reads our pattern and writes its own; we read it back. Returns wrong bytes."""
    tested = min(mapping.size, PATTERN_BYTES)
    write(driver, mapping.base, SEED, tested)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        order = {**order, "pid": os.getpid(), "fd": int(exported) if order["handle"] == "posix_fd" else -1}
        child = subprocess.Popen(
            [sys.executable, str(CHILD), "import", json_text(order), str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            theirs.close()
            if order["route"] == "scm_rights":
                socket.send_fds(ours, [b"f"], [order["fd"]])
            ours.settimeout(IMPORT_LIMIT_S)
            try:
                answer = ours.recv(65536)
            except TimeoutError as error:
                raise DriverError("import", -1, "HANG", "the importing process did not answer") from error
        finally:
            child.kill()
            child.wait(IMPORT_LIMIT_S)
    found = parse_answer(answer)
    if found.get("errno"):
        raise OSError(found["errno"], os.strerror(found["errno"]))
    if "code" in found:
        raise DriverError(found["call"], found["code"], found["name"], found.get("log", ""))
    if found.get("wrong") is None:
        raise DriverError("import", -1, "CRASH", f"the importing process said {str(found)[:200]}")
    return int(found["wrong"]) + wrong_bytes(driver, mapping.base, SEED_BACK, tested)


def json_text(value: Any) -> str:
    """JSON for a child's argument."""
    import json  # noqa: PLC0415

    return json.dumps(value)


def parse_answer(data: bytes) -> dict[str, Any]:
    """The importing child's answer; an empty one means that it died."""
    import json  # noqa: PLC0415

    answer = json.loads(data) if data else {}
    return answer if isinstance(answer, dict) else {}


def import_side(order: dict[str, Any], connection: int) -> dict[str, Any]:
    """In the importing process: open the memory, hold it against the pattern, write another."""
    try:
        with socket.socket(fileno=connection) as ours:
            answer = _import(order, ours)
            ours.sendall(json_text(answer).encode())
    except UnavailableError as error:
        return {"error": str(error)}
    return answer


def _import(order: dict[str, Any], ours: socket.socket) -> dict[str, Any]:
    try:
        driver = Driver()
        driver.context(order["device"])
        fd = -1
        if order["route"] == "scm_rights":
            fd = socket.recv_fds(ours, 1, 1)[1][0]
        elif order["route"] == "pidfd":
            fd = fd_of_process(order["pid"], order["fd"])
        base, mapping = _open(driver, order, fd)
        tested = min(order["size"], PATTERN_BYTES)
        wrong = wrong_bytes(driver, base, SEED, tested)
        write(driver, base, SEED_BACK, tested)
        if mapping is None:
            driver.call("cuIpcCloseMemHandle", base)
        else:
            mapping.close()
    except DriverError as error:
        return {"call": error.call, "code": error.code, "name": error.name, "log": error.log}
    except OSError as error:
        return {"errno": error.errno or 5}
    return {"wrong": wrong}


def _open(driver: Driver, order: dict[str, Any], fd: int) -> tuple[int, Mapping | None]:
    cuda = driver.cuda
    if order["handle"] == "legacy_ipc":
        handle = with_bytes(cuda.CUipcMemHandle(), base64.b64decode(order["data"]))
        flag = cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(driver.call("cuIpcOpenMemHandle", handle, int(flag))), None
    exported: Any = fd
    if order["handle"] == "fabric":
        exported = with_bytes(cuda.CUmemFabricHandle(), base64.b64decode(order["data"]))
    memory = driver.call("cuMemImportFromShareableHandle", exported, handle_types(cuda)[order["handle"]])
    mapping = Mapping(driver, memory, order["size"], order["device"])
    return mapping.base, mapping


def fd_of_process(pid: int, fd: int) -> int:
    """A copy of another process's file descriptor, by pidfd_getfd (Linux 5.6).

    Raises:
        OSError: The kernel, seccomp or the ptrace rules refuse it.
    """
    process = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    copied = int(libc.syscall(438, process, fd, 0))
    code = ctypes.get_errno()
    os.close(process)
    if copied < 0:
        raise OSError(code, os.strerror(code))
    return copied

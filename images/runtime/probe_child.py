"""A child of the probe: one ladder in one process, one JSON line before and after every rung on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from probe_driver import ATTRIBUTES, Driver, DriverError, UnavailableError, handle_types, simulated
from probe_memory import import_side, legacy_ipc, memory_ladder
from probe_pairs import all_at_once, pair_ladder, speed_ladder


def tell(kind: str, **facts: Any) -> None:
    """One JSON line for the parent."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def devices(*, multicast: bool) -> None:
    """What the driver says of itself and of each device.

    Args:
        multicast: Really create a multicast object. On a shared host that can put GPUs out of service, so
            nobody gets it without asking.
    """
    tell("begin", rung="cuInit")
    if simulated():
        tell("simulation")
    driver = Driver()
    version = int(driver.call("cuDriverGetVersion"))
    count = int(driver.call("cuDeviceGetCount"))
    tell("rung", rung="cuInit", outcome="ok", values={"version": version, "count": count})
    for index in range(count):
        device = driver.call("cuDeviceGet", index)
        name = driver.call("cuDeviceGetName", 96, device)
        facts = {
            "index": index,
            "name": bytes(name).split(b"\0")[0].decode("utf-8", "replace"),
            "pci": bytes(driver.call("cuDeviceGetPCIBusId", 16, device)).split(b"\0")[0].decode(),
            "memory_bytes": int(driver.call("cuDeviceTotalMem", device)),
            "attributes": {name: driver.attribute(device, name) for name in ATTRIBUTES},
            "multicast": _multicast(driver, count, create=multicast and count > 1),
        }
        tell("device", **facts)


def _multicast(driver: Driver, count: int, *, create: bool) -> dict[str, Any]:
    """Granularity of a multicast object over all devices; the object itself only on demand."""
    cuda = driver.cuda
    properties = cuda.CUmulticastObjectProp()
    properties.numDevices = max(count, 1)
    properties.size = 2 << 20
    properties.handleTypes = int(handle_types(cuda)["posix_fd"])
    flag = cuda.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_RECOMMENDED
    try:
        answer: dict[str, Any] = {
            "granularity": int(driver.call("cuMulticastGetGranularity", properties, flag))
        }
        if create:
            handle = driver.call("cuMulticastCreate", properties)
            driver.call("cuMemRelease", handle)
            answer["created"] = True
    except DriverError as error:
        return {"call": error.call, "code": error.code, "name": error.name}
    return answer


def main() -> int:
    """Run what the first argument names with the JSON of the second."""
    work, options = sys.argv[1], json.loads(sys.argv[2])
    if work == "import":
        import_side(options, int(sys.argv[3]))
        return 0
    works = {
        "devices": lambda: devices(**options),
        "memory": lambda: memory_ladder(tell, **options),
        "legacy-ipc": lambda: legacy_ipc(tell, **options),
        "pair": lambda: pair_ladder(tell, **options),
        "speed": lambda: speed_ladder(tell, **options),
        "all-at-once": lambda: all_at_once(tell, **options),
    }
    try:
        works[work]()
    except UnavailableError as error:
        tell("rung", rung=work, outcome="unavailable", log=str(error))
    except DriverError as error:
        tell(
            "rung", rung=work, outcome="error", call=error.call, code=error.code, name=error.name, log=error.log
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

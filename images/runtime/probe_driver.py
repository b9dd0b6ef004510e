"""The CUDA driver through cuda-bindings: every call either answers or raises with the driver's own code."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

#: `ATTRIBUTES[name]` is a member of CUdevice_attribute.
ATTRIBUTES = {
    "virtual_memory": "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "handle_posix_fd": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "handle_fabric": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED",
    "multicast": "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED",
    "rdma": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
    "rdma_with_virtual_memory": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "host_numa_virtual_memory": "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "ipc_event": "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED",
    "integrated": "CU_DEVICE_ATTRIBUTE_INTEGRATED",
    "ecc": "CU_DEVICE_ATTRIBUTE_ECC_ENABLED",
    "multiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "capability_major": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "capability_minor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "l2_bytes": "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
}

#: `fill` writes a pattern, `check` counts words that differ from it. Volatile accesses pass by the first-level
#: cache, and the fence orders them for other devices, so that a check sees memory and not its own copy.
PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 base, .param .u32 words, .param .u32 seed, .param .u64 unused)
{
  .reg .pred %p; .reg .b32 %i, %n, %s, %v, %t, %step; .reg .b64 %b, %a;
  ld.param.u64 %b, [base]; ld.param.u32 %n, [words]; ld.param.u32 %s, [seed];
  cvta.to.global.u64 %b, %b;
  mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t;
  mov.u32 %step, %nctaid.x; mul.lo.u32 %step, %step, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;
LOOP: setp.ge.u32 %p, %i, %n; @%p bra DONE;
  mul.lo.u32 %v, %i, 2654435761; xor.b32 %v, %v, %s;
  mul.wide.u32 %a, %i, 4; add.u64 %a, %a, %b; st.volatile.global.u32 [%a], %v;
  add.u32 %i, %i, %step; bra LOOP;
DONE: membar.sys; ret;
}
.visible .entry check(.param .u64 base, .param .u32 words, .param .u32 seed, .param .u64 wrong)
{
  .reg .pred %p, %q; .reg .b32 %i, %n, %s, %v, %t, %step, %f, %bad; .reg .b64 %b, %a, %w;
  ld.param.u64 %b, [base]; ld.param.u32 %n, [words]; ld.param.u32 %s, [seed]; ld.param.u64 %w, [wrong];
  cvta.to.global.u64 %b, %b; cvta.to.global.u64 %w, %w; mov.u32 %bad, 0;
  mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t;
  mov.u32 %step, %nctaid.x; mul.lo.u32 %step, %step, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;
LOOP: setp.ge.u32 %p, %i, %n; @%p bra DONE;
  mul.lo.u32 %v, %i, 2654435761; xor.b32 %v, %v, %s;
  mul.wide.u32 %a, %i, 4; add.u64 %a, %a, %b; ld.volatile.global.u32 %f, [%a];
  setp.ne.u32 %q, %f, %v; @%q add.u32 %bad, %bad, 1;
  add.u32 %i, %i, %step; bra LOOP;
DONE: setp.ne.u32 %q, %bad, 0; @%q red.global.add.u32 [%w], %bad; ret;
}
"""
BLOCKS, THREADS = 256, 256


#: A library that only plays the driver exports this; no real one does.
SIMULATION_SYMBOL = "blackwell_stacks_simulated_driver"
NOT_FOUND = 500
HANDLE_BYTES = 64


class UnavailableError(Exception):
    """The driver cannot be asked at all: no bindings, no library."""


class DriverError(Exception):
    """A driver call failed.

    Attributes:
        call: The function.
        code: CUresult.
        name: Its name.
        log: The driver's own sentence about it, where it keeps a log.
    """

    def __init__(self, call: str, code: int, name: str, log: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name, self.log = call, code, name, log


class Driver:
    """The driver of one process, after cuInit."""

    def __init__(self) -> None:
        self.cuda = bindings()
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; returns its one value, a tuple of several, or None.

        Raises:
            DriverError: It answered something else than success.
        """
        try:
            result, *values = getattr(self.cuda, name)(*arguments)
        except (
            Exception
        ) as error:  # the bindings raise plain classes of several kinds when the library is absent
            if type(error).__name__ == "DynamicLibNotFoundError":
                raise UnavailableError("libcuda.so.1 is not here: no driver was injected") from error
            if isinstance(error, RuntimeError) and str(error).endswith("not found"):
                text = f"this driver has no {name}"
                raise DriverError(name, NOT_FOUND, "NOT_FOUND", text) from error
            raise
        if int(result):
            raise DriverError(name, int(result), result.name.removeprefix("CUDA_ERROR_"), self._log())
        return values[0] if len(values) == 1 else tuple(values) or None

    def _log(self) -> str:
        """What the driver itself wrote since the last error (CUDA 12.9 and newer)."""
        try:
            size = 25600
            buffer = bytes(size)  # the bindings take no bytearray here; the driver writes into it
            result, *_ = self.cuda.cuLogsDumpToMemory(None, buffer, size, 0)
        except (AttributeError, TypeError, RuntimeError):
            return ""
        lines = buffer.split(b"\0")[0].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:400] if lines and not int(result) else ""

    def attribute(self, device: Any, name: str) -> int | None:
        """A device attribute of `ATTRIBUTES`; None where this driver does not know it."""
        member = getattr(self.cuda.CUdevice_attribute, ATTRIBUTES[name], None)
        if member is None:
            return None
        try:
            return int(self.call("cuDeviceGetAttribute", member, device))
        except DriverError:
            return None

    def context(self, index: int) -> Any:
        """The primary context of a device, made current."""
        device = self.call("cuDeviceGet", index)
        context = self.call("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", context)
        return context

    def kernels(self) -> tuple[Any, Any]:
        """The kernels `fill` and `check`, compiled by the driver for the current device."""
        module = self.call("cuModuleLoadData", PTX.encode() + b"\0")
        return self.call("cuModuleGetFunction", module, b"fill"), self.call(
            "cuModuleGetFunction", module, b"check"
        )

    def launch(self, kernel: Any, base: int, words: int, seed: int, extra: int = 0) -> None:
        """Launch one of the two kernels over `words` 32-bit words."""
        values = (base, words, seed, extra)
        kinds = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)
        self.call("cuLaunchKernel", kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, (values, kinds), 0)


def bindings() -> Any:
    """The module cuda.bindings.driver.

    Raises:
        UnavailableError: It is not installed or cannot load.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UnavailableError(f"cuda-bindings cannot be imported: {error}") from error


def simulated() -> bool:
    """Whether the libcuda of this process only plays a driver."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), SIMULATION_SYMBOL)
    except OSError:
        return False


def bytes_of(structure: Any) -> bytes:
    """The 64 bytes of an IPC or fabric handle; their field's name differs between versions of the bindings."""
    return ctypes.string_at(int(structure.getPtr()), HANDLE_BYTES)


def with_bytes(structure: Any, data: bytes) -> Any:
    """The IPC or fabric handle, holding these 64 bytes.

    Raises:
        ValueError: They are not 64.
    """
    if len(data) != HANDLE_BYTES:
        raise ValueError(f"a handle has {HANDLE_BYTES} bytes, not {len(data)}")
    ctypes.memmove(int(structure.getPtr()), data, HANDLE_BYTES)
    return structure


def handle_types(cuda: Any) -> dict[str, Any]:
    """Handle types of shareable memory by our names; enum objects, since older bindings refuse numbers."""
    kinds = cuda.CUmemAllocationHandleType
    return {
        "none": kinds.CU_MEM_HANDLE_TYPE_NONE,
        "posix_fd": kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        "fabric": kinds.CU_MEM_HANDLE_TYPE_FABRIC,
    }

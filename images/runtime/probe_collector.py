"""Facts of a host or a container, read and never changed: one file, Python 3.8 or newer, standard library only.

Runs as a module of the image's probe and, piped over ssh (`ssh HOST python3 - < probe_collector.py`), on hosts
that have none of our files. It judges nothing: it prints one JSON document of what it saw and what it could not
read. Only named fields leave the machine: no serial number, no environment beyond `ENVIRONMENT`, no kernel
command line beyond the words about IOMMU and PCI.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import re
import resource
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple  # hosts run Python 3.8

FORMAT = 1
#: Seconds that an outside program may take; a wedged driver makes nvidia-smi hang.
PROGRAM_LIMIT_S = 20
#: Characters kept of a program's output or a file.
TEXT_LIMIT = 400_000
KERNEL_LINES = 400
ENVIRONMENT = re.compile(
    r"^(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MODULE_LOADING|LD_LIBRARY_PATH|LD_PRELOAD|NCCL_[A-Z0-9_]+"
    r"|NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|DISABLE_REQUIRE|REQUIRE_CUDA)|NVSHMEM_DISABLE_NVLS"
    r"|TORCH_SYMM_MEM_DISABLE_MULTICAST|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF)$"
)
KERNEL_LINE = re.compile(
    r"NVRM|nvidia|\bXid\b|\bAER\b|DMAR|AMD-Vi|IO_PAGE_FAULT|pcieport|Out of memory|oom-kill|iommu",
    re.IGNORECASE,
)
#: What names one card, board or program; cut out of whatever a program prints.
IDENTIFIER = re.compile(
    r"<(\w*serial\w*|\w*uuid|\w*guid|pdi|\w*part_number|board_id|process_name|host_id)>[^<]*</\1>"
    r"|\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
)
COMMAND_LINE_WORD = re.compile(
    r"^(iommu|intel_iommu|amd_iommu|pci|pcie_\w+|nvidia[\w.-]*|rd\.driver\.\w+)(=|$)"
)
#: Asked in a process of its own, since a driver can hang or crash its caller.
CUDA_QUESTION = r"""
import ctypes, json, os, sys
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
answer = {}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"error": str(error)})); sys.exit()
answer["library"] = [l.split()[-1] for l in open("/proc/self/maps") if "libcuda.so" in l][:1]
if hasattr(cuda, "blackwell_stacks_simulated_driver"): answer["simulated"] = True  # a stand-in plays the driver
version, count = ctypes.c_int(), ctypes.c_int()
answer["init"] = cuda.cuInit(0)
if not cuda.cuDriverGetVersion(ctypes.byref(version)): answer["version"] = version.value
if not answer["init"]:
    answer["count_result"] = cuda.cuDeviceGetCount(ctypes.byref(count)); answer["count"] = count.value
    answer["capabilities"] = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        answer["capabilities"].append("%d.%d" % (major.value, minor.value))
print(json.dumps(answer))
"""


def read(path: str, limit: int = TEXT_LIMIT) -> Optional[str]:
    """Text of a small file; None where it is absent or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit).replace("\0", "").strip()
    except OSError:
        return None


def program(*argv: str, limit_s: float = PROGRAM_LIMIT_S) -> Dict[str, Any]:
    """Run a read-only program: `rc` and `out`, or `error`; one that does not end is killed and left behind."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return {"error": "%s: %s" % (argv[0], error.strerror)}
    try:
        out = child.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        if child.stdout:
            child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2)  # in the driver's uninterruptible sleep it stays; waiting for it would hang us too
        return {"error": "did not end within %g s" % limit_s, "hang": True}
    return {"rc": child.returncode, "out": IDENTIFIER.sub("", out.decode("utf-8", "replace"))[:TEXT_LIMIT]}


def system() -> Dict[str, Any]:
    """Kernel, processor, memory, boot words about IOMMU and PCI, and what the machine says it is."""
    cpuinfo = read("/proc/cpuinfo") or ""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read("/proc/meminfo") or "", re.MULTILINE))
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read("/etc/os-release") or "", re.MULTILINE))
    words = (read("/proc/cmdline") or "").split()
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": release.get("PRETTY_NAME", ""),
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "cpu": model.group(1).strip() if model else "",
        "cores": os.cpu_count(),
        "memory_total_kib": int(meminfo.get("MemTotal", 0)),
        "memory_available_kib": int(meminfo.get("MemAvailable", 0)),
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
        "uptime_s": float((read("/proc/uptime") or "0").split()[0]),
        "command_line": [word for word in words if COMMAND_LINE_WORD.match(word)],
        "hypervisor_flag": bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)),
        "dmi": {key: read("/sys/class/dmi/id/" + key) or "" for key in ("sys_vendor", "product_name")},
        "proc_version": read("/proc/version") or "",
        "container": container_kind(),
    }


def container_kind() -> str:
    """`docker`, `podman`, `lxc`, `kubernetes`, another kind that the init says, or nothing."""
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    stated = read("/run/systemd/container") or ""
    if not stated:
        found = re.search(r"container=([\w-]+)", read("/proc/1/environ") or "")
        stated = found.group(1) if found else ""
    groups = read("/proc/1/cgroup") or ""
    if not stated:
        stated = next((kind for kind in ("kubepods", "docker", "lxc", "libpod") if kind in groups), "")
    return {"kubepods": "kubernetes", "libpod": "podman"}.get(stated, stated)


def grants() -> Dict[str, Any]:
    """What this process may do: shared memory, locked memory, stack, seccomp, capabilities, environment."""
    status = dict(re.findall(r"^(\w+):\s*(.*)$", read("/proc/self/status") or "", re.MULTILINE))

    def limit(which: int) -> Optional[int]:
        soft = resource.getrlimit(which)[0]
        return None if soft == resource.RLIM_INFINITY else soft

    return {
        "shm_bytes": disk("/dev/shm").get("total"),
        "memlock_bytes": limit(resource.RLIMIT_MEMLOCK),
        "stack_bytes": limit(resource.RLIMIT_STACK),
        "seccomp": status.get("Seccomp", ""),
        "no_new_privileges": status.get("NoNewPrivs", ""),
        "capabilities": status.get("CapEff", ""),
        "ptrace_scope": read("/proc/sys/kernel/yama/ptrace_scope"),
        "environment": {
            name: value[:200] for name, value in sorted(os.environ.items()) if ENVIRONMENT.match(name)
        },
    }


def nvidia() -> Dict[str, Any]:
    """Driver, device nodes, loader and what nvidia-smi and cuInit say, each on its own word."""
    files = {}
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        text = read(path) or ""
        files[path.split("/")[5]] = dict(
            re.findall(r"^(Model|IRQ|Video BIOS|Bus Type):\s*(.+)$", text, re.MULTILINE)
        )
    modules = re.findall(
        r"^(nvidia\w*|nouveau|gdrdrv|nv_peer_mem|vfio_pci) ", read("/proc/modules") or "", re.MULTILINE
    )
    nodes = {}
    for pattern in ("/dev/nvidia*", "/dev/nvidia-caps*/*", "/dev/dxg"):
        for path in sorted(glob.glob(pattern)):
            if not os.path.isdir(path):
                nodes[path] = bool(os.access(path, os.R_OK | os.W_OK))
    libraries = program("ldconfig", "-p").get("out") or program("/sbin/ldconfig", "-p").get("out") or ""
    return {
        "module_version": read("/sys/module/nvidia/version"),
        "proc_version": read("/proc/driver/nvidia/version"),
        "params": read("/proc/driver/nvidia/params"),
        "registry": read("/proc/driver/nvidia/registry"),
        "gpus": files,
        "modules": modules,
        "device_nodes": nodes,
        "character_devices": re.findall(r"^\s*\d+ (nvidia\S*)$", read("/proc/devices") or "", re.MULTILINE),
        "libraries": re.findall(r"^\s*(lib(?:cuda|nvidia-ml)\.so\S*) \(.*=> (\S+)$", libraries, re.MULTILINE),
        "smi": program("nvidia-smi", "-q", "-x"),
        "topology": program("nvidia-smi", "topo", "-m"),
        "p2p_read": program("nvidia-smi", "topo", "-p2p", "r"),
        "p2p_write": program("nvidia-smi", "topo", "-p2p", "w"),
        "cuda": program(sys.executable, "-c", CUDA_QUESTION, limit_s=40),
        "holders": holders(),
    }


def holders() -> Dict[str, Any]:
    """Processes with a GPU's device node open; other users' are only seen by root."""
    found, hidden = [], 0
    for directory in glob.glob("/proc/[0-9]*"):
        try:
            links = [os.readlink(directory + "/fd/" + name) for name in os.listdir(directory + "/fd")]
        except OSError:
            hidden += 1
            continue
        nodes = sorted({link for link in links if re.match(r"/dev/nvidia\d+$", link)})
        if nodes:
            groups = read(directory + "/cgroup") or ""
            container = re.search(r"[0-9a-f]{64}", groups)
            found.append(
                {
                    "pid": int(directory[6:]),
                    "command": read(directory + "/comm") or "",
                    "nodes": nodes,
                    "container": container.group(0)[:12] if container else "",
                }
            )
    return {"processes": found, "unreadable": hidden}


def pci() -> List[Dict[str, Any]]:
    """Every NVIDIA display or 3D device with link, BARs, NUMA node, IOMMU group and bridges up to the root."""
    devices = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if read(path + "/vendor") == "0x10de" and (read(path + "/class") or "").startswith("0x03"):
            real = os.path.realpath(path)
            bridges = [part for part in real.split("/")[:-1] if re.match(r"[0-9a-f]{4}:", part)]
            device = pci_device(real)
            device["bridges"] = [pci_device("/sys/bus/pci/devices/" + bridge) for bridge in bridges]
            devices.append(device)
    return devices


def pci_device(path: str) -> Dict[str, Any]:
    """Link, BAR sizes and ACS of one function."""
    names = (
        "device",
        "numa_node",
        "current_link_speed",
        "current_link_width",
        "max_link_speed",
        "max_link_width",
    )
    bars = []
    for line in (read(path + "/resource") or "").splitlines()[:6]:
        start, end = (int(word, 16) for word in line.split()[:2])
        bars.append(end - start + 1 if end else 0)
    link = {name: read(path + "/" + name) for name in names}

    def target(name: str) -> str:
        return (
            os.path.basename(os.path.realpath(path + "/" + name)) if os.path.exists(path + "/" + name) else ""
        )

    return {
        "address": os.path.basename(path),
        "bars": bars,
        "driver": target("driver"),
        "iommu_group": target("iommu_group"),
        "acs_control": acs_control(path + "/config"),
        **link,
    }


def acs_control(path: str) -> Optional[int]:
    """ACS control register from the extended configuration space (root only); -1 where there is no ACS."""
    try:
        with open(path, "rb") as file:
            data = file.read(4096)
    except OSError:
        return None
    if len(data) < 4096:  # without privileges the kernel shows 64 bytes
        return None
    offset, seen = 0x100, 0
    while offset and seen < 64:  # a broken list must not loop
        header = struct.unpack_from("<I", data, offset)[0]
        if header & 0xFFFF == 0x000D:  # the ACS capability
            return int(struct.unpack_from("<H", data, offset + 6)[0])
        offset, seen = (header >> 20) & 0xFFC, seen + 1
    return -1


def iommu() -> Dict[str, Any]:
    """IOMMUs that the kernel uses and the kinds of domain that the groups have."""
    kinds = {}  # type: Dict[str, int]
    for path in glob.glob("/sys/kernel/iommu_groups/*/type"):
        kind = read(path) or "unknown"
        kinds[kind] = kinds.get(kind, 0) + 1
    groups = len(glob.glob("/sys/kernel/iommu_groups/*"))
    return {"units": len(glob.glob("/sys/class/iommu/*")), "groups": groups, "domains": kinds}


def kernel_log() -> Dict[str, Any]:
    """Lines of this boot's kernel log about GPUs, PCIe, IOMMU and memory; `readable` says whether we may."""
    tried = []
    for argv in (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-q", "-o", "short-monotonic")):
        done = program(*argv)
        if done.get("rc") == 0 and done["out"].strip():
            lines = [line for line in done["out"].splitlines() if KERNEL_LINE.search(line)]
            return {
                "readable": True,
                "source": argv[0],
                "lines": lines[-KERNEL_LINES:],
                "cut": len(lines) > KERNEL_LINES,
            }
        tried.append("%s: %s" % (argv[0], (done.get("error") or done.get("out", "").strip() or "empty")[:200]))
    return {"readable": False, "why": tried, "lines": []}


def engine() -> Dict[str, Any]:
    """Docker Engine over its socket, its client, the container toolkit and the CDI specifications."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    facts = {"error": "DOCKER_HOST is no local socket"}  # type: Dict[str, Any]
    if address.startswith("unix://"):
        try:
            version, info = (ask_socket(address[7:], path) for path in ("/version", "/info"))
        except (OSError, ValueError) as error:
            facts = {"error": "%s: %s" % (address[7:], getattr(error, "strerror", None) or error)}
        else:
            wanted = (
                "Driver",
                "DefaultRuntime",
                "CDISpecDirs",
                "DockerRootDir",
                "SecurityOptions",
                "CgroupVersion",
            )
            facts = {key: info.get(key) for key in wanted}
            facts["Runtimes"] = sorted(info.get("Runtimes") or {})
            facts.update({key: version.get(key) for key in ("Version", "ApiVersion", "MinAPIVersion")})
    specs = []
    for path in sorted(glob.glob("/etc/cdi/*") + glob.glob("/var/run/cdi/*")):
        text = read(path) or ""
        kind = re.search(r'"?kind"?\s*:\s*"?([\w./-]+)', text)
        names = re.findall(r'^\s*-?\s*"?name"?:\s*"?([\w.-]+)', text, re.MULTILINE)
        libraries = re.findall(r"lib(?:cuda|nvidia-ml)\.so\.([0-9.]{3,})", text)
        specs.append(
            {"path": path, "kind": kind.group(1) if kind else "", "names": names[:80], "driver": libraries[:1]}
        )
    return {
        "docker": facts,
        "client": program("docker", "version", "--format", "{{.Client.Version}} {{.Client.APIVersion}}"),
        "toolkit": program("nvidia-ctk", "--version"),
        "container_cli": program("nvidia-container-cli", "--version"),
        "cdi": specs,
    }


def ask_socket(path: str, route: str) -> Dict[str, Any]:
    """GET of the Engine API over its Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(path)
        connection.sendall(("GET %s HTTP/1.0\r\nHost: docker\r\n\r\n" % route).encode())
        parts = []
        while True:
            part = connection.recv(65536)
            if not part:
                break
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ValueError(head.split(b"\r\n")[0].decode("ascii", "replace"))
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the engine's answer is no object")
    return answer


def disk(path: str) -> Dict[str, Any]:
    """Size and free bytes of the file system that holds a path."""
    try:
        answer = os.statvfs(path)
    except OSError as error:
        return {"path": path, "error": error.strerror}
    return {"path": path, "total": answer.f_frsize * answer.f_blocks, "free": answer.f_frsize * answer.f_bavail}


def listening() -> List[int]:
    """TCP ports that something listens on."""
    ports = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read(path) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == "0A":  # LISTEN
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def collect() -> Tuple[Dict[str, Any], int]:
    """The whole document, and 0, or 3 where no NVIDIA GPU is to be seen."""
    document = {"format": FORMAT, "collected": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}  # type: Dict[str, Any]
    document.update(system=system(), grants=grants(), nvidia=nvidia(), pci=pci(), iommu=iommu())
    document.update(kernel_log=kernel_log(), engine=engine(), ports=listening())
    root = document["engine"]["docker"].get("DockerRootDir") or ""
    document["disks"] = [disk(path) for path in ("/", "/tmp", root) if path]
    some_gpu = document["pci"] or document["nvidia"]["gpus"] or document["nvidia"]["smi"].get("rc") == 0
    return document, 0 if some_gpu else 3


if __name__ == "__main__":
    facts, exit_code = collect()
    json.dump(facts, sys.stdout)
    sys.stdout.write("\n")
    sys.exit(exit_code)

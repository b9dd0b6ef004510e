"""Check and time the kernels on a GPU: one command, nothing but torch and, if no library is carried, nvcc.

    python tests/gpu/kernels/run.py --out DIR                    one GPU
    python tests/gpu/kernels/run.py --out DIR --gpus 2           one process a GPU, over CUDA IPC
    python tests/gpu/kernels/run.py --out DIR --only topk,times  some steps

Every step is a process of its own with a time limit, so one that hangs or loses its context costs no other.
The record, `kernels.json`, has the GPU, its clocks, what each step found, and what was not shown.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "images" / "kernels"
#: Step -> seconds that it may take.
ONE_GPU = {
    "ranks": 150,
    "replay": 120,
    "late": 60,
    "topk": 90,
    "processes": 240,
    "topk_times": 90,
    "times_w4": 90,
    "times_w2": 90,
    "times_w8": 90,
    "mhc": 150,
    "mhc_times": 120,
    "portable": 150,
    "portable_times": 120,
    "memcheck": 120,
    "racecheck": 150,
}
SEVERAL_GPUS = {"processes": 200, "pair_times": 150}
LIMITATIONS = {
    1: (
        "virtual ranks are streams of one GPU: no bus between them, so times are of protocol and kernels",
        "processes on one GPU are time-sliced: they show that results are right, not how fast",
        "every graph runs many times on the same tensors, so they are in the L2 cache",
        "peers have at most one block a multiprocessor over all virtual ranks, as they wait without bound",
        "no SM120 device was used",
    ),
    2: ("the GPUs are linked by NVLink, not PCIe", "no SM120 device was used"),
}
_LEAST_SECONDS = 10
_MARK = "RESULT "
#: A line of a table that is not complete yet.
_ROW = "ROW "


def step(name: str, peers: Path | None) -> object:
    """Do one step in this process."""
    sys.path[:0] = [str(HERE), str(KERNELS)]
    return times(name, peers) if "times" in name else checks(name)


def times(name: str, peers: Path | None) -> object:
    """A step that compares with peers."""
    if name == "portable_times":
        import portable_checks  # noqa: PLC0415

        return portable_checks.times()
    if peers is None:
        raise SystemExit("--peers names the library made from peers.cu; without it nothing is compared")
    if name == "pair_times":
        import pair  # noqa: PLC0415

        return pair.times(peers)
    if name == "mhc_times":
        import mhc_checks  # noqa: PLC0415

        return mhc_checks.times(peers)
    import timing  # noqa: PLC0415

    if name == "topk_times":
        return timing.topk(peers)
    return timing.all_reduce(peers, int(name.removeprefix("times_w")), (4096, 7168))


def checks(name: str) -> object:
    """A step that compares with formulas."""
    if name in {"ranks", "replay", "late"}:
        import virtual  # noqa: PLC0415

        return {"ranks": virtual.check_all, "replay": virtual.replay, "late": virtual.late_and_absent}[name]()
    if name == "mhc":
        import mhc_checks  # noqa: PLC0415

        return mhc_checks.check_all()
    if name == "portable":
        import portable_checks  # noqa: PLC0415

        return portable_checks.check_all()
    if name == "topk":
        import topk_checks  # noqa: PLC0415

        return topk_checks.check_all()
    if name == "small":
        import sanitized  # noqa: PLC0415

        return sanitized.small()
    import processes  # noqa: PLC0415
    import torch  # noqa: PLC0415

    several = torch.cuda.device_count() > 1
    return processes.check_all(one_gpu=not several, worlds=(2,) if several else (2, 4))


def run_step(name: str, seconds: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Run a step as a process; its last marked line is its result."""
    if "times" in name and name != "portable_times" and arguments.peers is None:
        return {"verdict": "not run", "why": "no --peers library, and no nvcc and FlashInfer to make it"}
    command = [sys.executable, str(HERE / "run.py"), "--step", name]
    if arguments.peers:
        command += ["--peers", str(arguments.peers)]
    if name in {"memcheck", "racecheck"}:
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            return {"verdict": "not run", "why": "compute-sanitizer is not on this machine"}
        checked = [sys.executable, str(HERE / "run.py"), "--step", "small"]
        if name == "racecheck":
            # It runs one kernel at a time, so the ranks must be one kernel: a program of its own.
            if arguments.one_grid is None:
                return {"verdict": "not run", "why": "no --one-grid program and no nvcc to make it"}
            checked = [str(arguments.one_grid)]
        command = [tool, "--tool", name, "--error-exitcode", "9", *checked]
    begin = time.monotonic()
    environment = os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "PYTHONUNBUFFERED": "1"}
    environment["BLACKWELL_KERNELS_CACHE"] = tempfile.mkdtemp(prefix="kernels-plans-")
    log = Path(tempfile.mkdtemp(prefix="kernels-")) / f"{name}.log"
    with log.open("w") as file:
        try:
            code = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, env=environment, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    text = log.read_text()
    with (arguments.out / "steps.log").open("a") as file:
        file.write(f"===== {name}\n{text}\n")
    lines = [line for line in text.splitlines() if line.startswith(_MARK)]
    passed = code == 0 and bool(lines)
    result: dict[str, object] = {
        "verdict": "pass" if passed else "fail",
        "seconds": round(time.monotonic() - begin, 1),
    }
    if passed:
        result["found"] = json.loads(lines[-1].removeprefix(_MARK))
    else:
        result["why"] = f"stopped after {seconds} s" if code is None else f"exit code {code}"
        result["tail"] = [line for line in text.splitlines() if not line.startswith(_ROW)][-25:]
        result["rows_until_then"] = [
            json.loads(line.removeprefix(_ROW)) for line in text.splitlines() if line.startswith(_ROW)
        ]
    return result


def prepare(arguments: argparse.Namespace) -> None:
    """Compile what was not carried along, for the device that is here; without nvcc do without the peers."""
    sys.path.insert(0, str(KERNELS))
    import build_native  # noqa: PLC0415

    made, device = Path(tempfile.mkdtemp(prefix="kernels-")), architecture()
    if not arguments.library and not (KERNELS / "blackwell_kernels" / "libblackwell_kernels.so").is_file():
        home = os.environ.get("CUDA_HOME")
        library = build_native.build([device], made / "libblackwell_kernels.so", Path(home) if home else None)
        os.environ["BLACKWELL_KERNELS_LIBRARY"] = str(library)
    nvcc = shutil.which("nvcc")
    target = [f"-gencode=arch=compute_{device},code=sm_{device}", "--cudart=static", "-std=c++17", "-O3"]
    if arguments.peers is None and nvcc and (headers := peer_headers()):
        arguments.peers = made / "libpeers.so"
        shared = ["-Xcompiler", "-fPIC", "-shared", "-I", str(headers), "-o", str(arguments.peers)]
        subprocess.run([nvcc, *target, *shared, str(HERE / "peers.cu")], check=True)
    if arguments.one_grid is None and nvcc:
        arguments.one_grid = made / "one_grid"
        source = ["-lineinfo", "-I", str(KERNELS / "csrc"), "-o", str(arguments.one_grid)]
        subprocess.run([nvcc, *target, *source, str(HERE / "one_grid.cu")], check=True)


def architecture() -> str:
    """What to compile for, e.g. `120f` for any 12.x and `90a` for 9.0."""
    import torch  # noqa: PLC0415

    major, minor = torch.cuda.get_device_capability(0)
    return "120f" if major == 12 else f"{major}{minor}a"


def peer_headers() -> Path | None:
    """Headers of the installed FlashInfer, whose kernels are the peers."""
    found = importlib.util.find_spec("flashinfer")
    folder = Path(found.origin).parent / "data" / "include" if found and found.origin else None
    return folder if folder and folder.is_dir() else None


def _is_spread(value: object) -> bool:
    return isinstance(value, dict) and "median" in value


def summary(name: str, result: dict[str, Any]) -> list[str]:
    """What a person wants to see of a step."""
    lines = list(result.get("tail", ()))[-12:]
    rows = result.get("found", result.get("rows_until_then", ()))
    for row in rows if "times" in name else ():
        if name.startswith("times_w"):
            best, rival = row["best_of_ours"], row["best_peer"]
            lines.append(
                f"W={row['world']} {row['rows']}x{row['hidden']}: {best} {row['ours'][best]['median']} "
                f"(again {row['ours_again'][best]['median']}), {rival} {row['peers'][rival]['median']} us: "
                f"{row['ratio']}"
            )
        else:
            times = row.get("times", row)
            if "median" not in row.get("ours", {"median": 0}):
                times = {**row["ours"], **row["peers"], **row}
            medians = "  ".join(f"{key} {one['median']}" for key, one in times.items() if _is_spread(one))
            lines.append(
                f"{row['rows']}x{row.get('hidden', row.get('columns'))} {row.get('k', '')}: {medians} us"
            )
    return lines


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    import torch  # noqa: PLC0415

    fields = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    fields += ",pcie.link.gen.current"
    query = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    links = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False)
    return {
        "gpus": dict(
            zip(("fields", "values"), (fields.split(","), query.stdout.strip().splitlines()), strict=True)
        ),
        "links": links.stdout.splitlines() if torch.cuda.device_count() > 1 else [],
        "torch": torch.__version__,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    """Run the steps, write the record, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds for all steps together")
    parser.add_argument("--peers", type=lambda text: Path(text).resolve(), help="library made from peers.cu")
    parser.add_argument("--library", type=Path)
    parser.add_argument(
        "--one-grid", type=lambda text: Path(text).resolve(), help="program made from one_grid.cu"
    )
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        os.environ["BLACKWELL_KERNELS_LIBRARY"] = str(arguments.library.resolve())
    if arguments.step:
        print(_MARK + json.dumps(step(arguments.step, arguments.peers)), flush=True)
        return 0
    if arguments.out is None:
        parser.error("--out is needed")
    import torch  # noqa: PLC0415

    if torch.cuda.device_count() < arguments.gpus:
        raise SystemExit(f"{torch.cuda.device_count()} CUDA devices here, {arguments.gpus} asked for")
    arguments.out.mkdir(parents=True, exist_ok=True)
    prepare(arguments)
    steps = ONE_GPU if arguments.gpus == 1 else SEVERAL_GPUS
    wanted = [name for name in arguments.only.split(",") if name] or list(steps)
    until = time.monotonic() + arguments.budget
    record: dict[str, object] = {
        "machine": machine(),
        "steps": {},
        "limitations": LIMITATIONS[min(arguments.gpus, 2)],
    }
    results: dict[str, dict[str, object]] = {}
    for name in wanted:
        seconds = int(min(steps[name], until - time.monotonic()))
        enough = seconds > _LEAST_SECONDS
        results[name] = (
            run_step(name, seconds, arguments) if enough else {"verdict": "not run", "why": "no time left"}
        )
        record["steps"] = results
        record["machine_after"] = machine()
        (arguments.out / "kernels.json").write_text(json.dumps(record, indent=1))
        print(
            f"{name}: {results[name]['verdict']} {results[name].get('seconds', '')} s",
            results[name].get("why", ""),
        )
        for line in summary(name, results[name]):
            print(f"    {line}")
        sys.stdout.flush()
    verdicts = {one["verdict"] for one in results.values()}
    return 0 if "pass" in verdicts and "fail" not in verdicts else 1


if __name__ == "__main__":
    sys.exit(main())

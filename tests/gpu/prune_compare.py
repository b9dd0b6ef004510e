"""Compare what a GPU computes with libraries as they came and with pruned ones, bit by bit.

    python prune_compare.py ORIGINAL PRUNED                      two site-packages folders
    python prune_compare.py ORIGINAL --make DIR --toolkit ROOT   make the second one: hard links of torch and
                                                                 nvidia in DIR, pruned there for this GPU alone

Needs torch with CUDA and nothing else. Each side runs in a process of its own, which also says which files it
has mapped: a side that did not load its own libraries proves nothing, and neither does a result of zeros.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("torch", "torchgen", "functorch", "nvidia", "cusparselt")
#: Parts of names of libraries that must come from the side's own folder.
MUST_MAP: tuple[str, ...] = (
    "libtorch_cuda.so",
    "libcublas.so",
    "libcublasLt.so",
    "libcudnn_",
    "libcufft.so",
    "libcusparse.so",
)
MUST_MAP += ("libcusolver.so", "libnccl.so")
#: A result with fewer different values could be equal by chance.
LEAST_DISTINCT = 10
#: Of each side: original, pruned, pruned and loaded eagerly.
FIGURES = ("torch", "gpu", "import_s", "total_s", "mappings", "driver")
#: What may be absent on a GPU or in a build of torch, by the start of the error's text.
MAY_BE_ABSENT = ("fp8", "semi-structured")


def module(name: str) -> Any:
    """A module that is there on a GPU machine only."""
    return importlib.import_module(name)


def randn(*shape: int, dtype: str = "float32") -> Any:
    """Normal numbers on the GPU, the same for the same shape."""
    torch = module("torch")
    generator = torch.Generator("cpu").manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator).to("cuda", getattr(torch, dtype))


def operations() -> dict[str, Callable[[], Any]]:
    """Names and functions; each returns a tensor of its own making."""
    return {**products(), **layers(), **algorithms(), "nccl all-reduce": all_reduce}


def products() -> dict[str, Callable[[], Any]]:
    """cuBLAS, cuBLASLt, cuSPARSE and cuSPARSELt."""
    torch = module("torch")
    functional = module("torch.nn.functional")

    def integers(rows: int, columns: int) -> Any:
        return (randn(rows, columns) * 20).to(torch.int8)

    def fp8() -> Any:
        left, right = randn(256, 512).to(torch.float8_e4m3fn), randn(384, 512).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def sparse(rows: int, columns: int) -> Any:
        dense = randn(rows, columns)
        return torch.where(dense > 1, dense, torch.zeros_like(dense)).to_sparse_csr()

    def sparse_dense() -> Any:
        """In whole numbers, as cuSPARSE adds in any order: every order then gives the same sum."""
        left, right = ((randn(*shape) * 4).round() for shape in ((500, 400), (400, 64)))
        return torch.where(left > 4, left, torch.zeros_like(left)).to_sparse_csr() @ right

    def sparse_product() -> Any:
        return (sparse(200, 300) @ sparse(300, 100)).to_dense()

    def semi_structured() -> Any:
        pattern = torch.tensor([0, 0, 1, 1], dtype=torch.float16, device="cuda").tile(256, 128)
        weights = torch.sparse.to_sparse_semi_structured(randn(256, 512, dtype="float16") * pattern)
        return weights @ randn(512, 256, dtype="float16")

    return {
        "matmul fp32": lambda: randn(513, 1027) @ randn(1027, 771),
        "matmul fp16": lambda: randn(512, 1024, dtype="float16") @ randn(1024, 768, dtype="float16"),
        "matmul bf16": lambda: randn(512, 1024, dtype="bfloat16") @ randn(1024, 768, dtype="bfloat16"),
        "matmul fp64": lambda: randn(200, 200, dtype="float64") @ randn(200, 200, dtype="float64"),
        "matmul int8": lambda: torch._int_mm(integers(256, 512), integers(512, 256)),
        "matmul batched": lambda: torch.bmm(
            randn(7, 65, 130, dtype="bfloat16"), randn(7, 130, 33, dtype="bfloat16")
        ),
        "linear and gelu": lambda: functional.gelu(
            functional.linear(randn(64, 256), randn(512, 256), randn(512))
        ),
        "fp8 matmul": fp8,
        "sparse dense": sparse_dense,
        "sparse sparse": sparse_product,
        "semi-structured sparse": semi_structured,
    }


def layers() -> dict[str, Callable[[], Any]]:
    """cuDNN, attention and norms."""
    torch = module("torch")
    functional = module("torch.nn.functional")

    def image(dtype: str = "float32") -> Any:
        return randn(4, 32, 56, 56, dtype=dtype)

    def filters(dtype: str = "float32") -> Any:
        return randn(64, 32, 3, 3, dtype=dtype)

    def attention() -> Any:
        query, key, value = (randn(2, 8, 256, 64, dtype="bfloat16") for _ in range(3))
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    def lstm() -> Any:
        torch.manual_seed(5)
        return torch.nn.LSTM(64, 128, num_layers=2).cuda()(randn(16, 8, 64))[0]

    return {
        "cudnn conv2d fp32": lambda: functional.conv2d(image(), filters(), padding=1),
        "cudnn conv2d bf16": lambda: functional.conv2d(image("bfloat16"), filters("bfloat16"), stride=2),
        "cudnn conv3d": lambda: functional.conv3d(randn(2, 8, 12, 20, 20), randn(16, 8, 3, 3, 3)),
        "cudnn conv transposed": lambda: functional.conv_transpose2d(
            randn(2, 64, 14, 14), randn(64, 32, 2, 2), stride=2
        ),
        "cudnn batch norm": lambda: functional.batch_norm(image(), None, None, training=True),
        "cudnn lstm": lstm,
        "sdpa": attention,
        "softmax": lambda: torch.softmax(randn(100, 32_000), -1),
        "layer norm": lambda: functional.layer_norm(randn(64, 4096, dtype="bfloat16"), (4096,)),
        "rms norm": lambda: functional.rms_norm(randn(64, 4096), (4096,)),
        "embedding": lambda: functional.embedding(torch.arange(0, 500, 7, device="cuda"), randn(500, 96)),
    }


def algorithms() -> dict[str, Callable[[], Any]]:
    """cuFFT, cuSOLVER, and torch's own kernels."""
    torch = module("torch")
    linalg, fft = torch.linalg, torch.fft

    def random() -> Any:
        torch.manual_seed(7)
        return torch.cat([torch.rand(1000, device="cuda"), torch.randn(1000, device="cuda")])

    def definite() -> Any:
        square = randn(200, 200)
        return square @ square.T + 200 * torch.eye(200, device="cuda")

    return {
        "fft": lambda: torch.view_as_real(fft.fft(randn(64, 1000))),
        "fft odd length": lambda: torch.view_as_real(fft.fft2(randn(3, 97, 331))),
        "rfftn": lambda: torch.view_as_real(fft.rfftn(randn(32, 48, 64))),
        "svd": lambda: linalg.svd(randn(200, 200))[1],
        "solve": lambda: linalg.solve(randn(200, 200), randn(200, 3)),
        "cholesky": lambda: linalg.cholesky(definite()),
        "eigh": lambda: linalg.eigh(definite())[0],
        "qr": lambda: linalg.qr(randn(300, 100))[1],
        "sort": lambda: randn(100_003).sort().values,
        "top-k": lambda: randn(64, 5000).topk(50).values,
        "random": random,
        "cumsum": lambda: randn(1000, 1000).cumsum(0),
        "scan": lambda: torch.logcumsumexp(randn(100, 5000), 1),
        "index": lambda: randn(1000, 64)[torch.arange(999, -1, -3, device="cuda")],
        "reduction": lambda: randn(1000, 777).var(0),
    }


def all_reduce() -> Any:
    """Sum over one rank, gather and scatter, through NCCL."""
    torch = module("torch")
    dist = module("torch.distributed")
    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cuda", 0)
        store = f"file://{folder}/store"
        dist.init_process_group("nccl", init_method=store, rank=0, world_size=1, device_id=device)
        try:
            tensor = torch.arange(1, 100_001, dtype=torch.float32, device=device)
            dist.all_reduce(tensor)
            gathered = [torch.empty_like(tensor)]
            dist.all_gather(gathered, tensor)
            scattered = torch.empty_like(tensor)
            dist.reduce_scatter_tensor(scattered, gathered[0])
            torch.cuda.synchronize()
            return scattered
        finally:
            dist.destroy_process_group()


def one_side(site: str) -> dict[str, Any]:
    """Compute everything with the torch of one site folder; runs in a process of its own."""
    started = time.monotonic()
    torch = module("torch")
    if not str(torch.__file__).startswith(f"{site}/"):
        raise SystemExit(f"torch came from {torch.__file__}, not from {site}")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    imported = time.monotonic() - started
    results = {name: compute(operation) for name, operation in operations().items()}
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "capability": "".join(map(str, torch.cuda.get_device_capability(0))),
        "import_s": round(imported, 2),
        "total_s": round(time.monotonic() - started, 2),
        "mappings": len(maps),
        "files": sorted({line.split(maxsplit=5)[5] for line in maps if ".so" in line}),
        "driver": driver_answers(),
        "results": results,
    }


def compute(operation: Callable[[], Any]) -> dict[str, Any]:
    """What one operation gives: twice, to see whether it can be compared at all."""
    torch = module("torch")
    try:
        first, second = operation(), operation()
        torch.cuda.synchronize()
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return {"error": str(error).splitlines()[0][:300]}
    return {
        "sha256": digest(first),
        "repeats": digest(first) == digest(second),
        "distinct": int(first.float().unique().numel()),
        "finite": bool(first.float().isfinite().all()),
    }


def digest(tensor: Any) -> str:
    """SHA-256 of a tensor's bytes."""
    data = tensor.detach().contiguous().view(-1).view(module("torch").uint8)
    return hashlib.sha256(data.cpu().numpy().tobytes()).hexdigest()


def driver_answers() -> dict[str, int]:
    """The driver's CUresult for a container with code for another GPU alone, and for one without any."""
    torch = module("torch")
    torch.zeros(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    other = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, 64, 0, 64, 7, 1, 30, 0, 0, 0, 0, 0) + bytes(64)
    answers = {}
    for name, body in {"code for another GPU": other, "no code": b""}.items():
        data = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(body)) + body
        buffer = ctypes.create_string_buffer(data, len(data) + 64)
        answers[name] = driver.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), buffer)
    return answers


def run_side(site: Path, loading: str = "LAZY") -> dict[str, Any]:
    """Start the process of one side, and read what it found.

    Args:
        site: Folder that torch is taken from.
        loading: `LAZY`, or `EAGER`: the runtime then loads every container of every library at the start, those
            without entries too.
    """
    environment = {**os.environ, "PYTHONPATH": str(site), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment |= {"CUDA_MODULE_LOADING": loading}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "TORCH_SHOW_CPP_STACKTRACES": "0"}
    command = [sys.executable, __file__, "--side", str(site), str(site)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the side {site} failed with exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def problems(sides: dict[Path, dict[str, Any]]) -> list[str]:
    """What speaks against the pruned libraries, or against the comparison; the original side is the first."""
    found = [
        f"{part} was not loaded from {site}"
        for site, side in sides.items()
        for part in MUST_MAP
        if not any(file.startswith(f"{site}/") and f"/{part}" in file for file in side["files"])
    ]
    before, after = (side["results"] for side in sides.values())
    return found + [problem for name in before if (problem := difference(name, before[name], after[name]))]


def difference(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Why two results of an operation are no proof that it is the same; empty when they are."""
    if "error" in before:
        if after.get("error") != before["error"]:
            return f"{name}: {before['error']}; pruned: {after}"
        return "" if name.startswith(MAY_BE_ABSENT) else f"{name} could not be compared: {before['error']}"
    if "error" in after:
        return f"{name} fails when pruned: {after['error']}"
    if before["distinct"] < LEAST_DISTINCT or not before["finite"]:
        return f"{name} gives {before['distinct']} distinct values or infinite ones, which proves nothing"
    if not before["repeats"]:
        return f"{name} differs from call to call, so it cannot be compared"
    return "" if after["sha256"] == before["sha256"] else f"{name} gives another result when pruned"


def make_pruned(original: Path, place: Path, toolkit: Path, keep: str) -> dict[str, int]:
    """Hard links (else copies) of the packages in another folder, pruned there; the originals stay."""
    for package in (*PACKAGES, *(path.name for path in original.glob("*.libs"))):
        if (original / package).is_dir():
            shutil.copytree(original / package, place / package, copy_function=link_or_copy, symlinks=True)
    report = place / "pruned.json"
    command = [
        sys.executable,
        "-m",
        "tooling.prune.inplace",
        "--keep",
        keep,
        "--report",
        str(report),
        str(place),
    ]
    subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(toolkit.resolve())}, check=True, stdout=sys.stderr
    )
    totals: dict[str, int] = json.loads(report.read_text())["totals"]
    return totals


def link_or_copy(source: str, target: str) -> str:
    """A hard link where the file system has them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def main() -> int:
    """Compare, print one JSON document, and exit with 1 when something differs."""
    parser = argparse.ArgumentParser(description="Compare pruned libraries with the original ones on a GPU.")
    parser.add_argument("original", type=Path)
    parser.add_argument("pruned", type=Path, nargs="?")
    parser.add_argument("--make", type=Path, help="make the pruned folder there")
    parser.add_argument("--toolkit", type=Path, default=Path(), help="folder that `tooling` is in")
    parser.add_argument("--keep", default="", help="target of --make; without it, the one of this GPU")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(one_side(arguments.side)))  # noqa: T201
        return 0
    if not (arguments.make or arguments.pruned):
        parser.error("name the pruned folder, or --make one")
    original = arguments.original.resolve()
    before = run_side(original)
    totals = None
    pruned = (arguments.make or arguments.pruned).resolve()
    if arguments.make:
        keep = arguments.keep or f"sm_{before['capability']}"
        totals = make_pruned(original, pruned, arguments.toolkit, keep)
    after = run_side(pruned)
    found = problems({original: before, pruned: after})
    eager = run_side(pruned, "EAGER")
    found += [f"loaded eagerly: {problem}" for problem in problems({original: before, pruned: eager})]
    same = [name for name, value in before["results"].items() if "sha256" in value]
    document = {
        "verdict": "FAIL" if found else "PASS",
        "problems": found,
        "compared": len(same),
        "not_run": sorted(set(before["results"]) - set(same)),
        "pruned": totals,
        **{name: [before[name], after[name], eager[name]] for name in FIGURES},
        "results": {"original": before["results"], "pruned": after["results"]},
    }
    print(json.dumps(document, indent=1))  # noqa: T201
    return 1 if found or not same else 0


if __name__ == "__main__":
    sys.exit(main())

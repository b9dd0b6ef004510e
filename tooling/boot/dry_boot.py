"""Boot the image of a GPU stack on a machine without a GPU, to prove everything but the GPU."""

from __future__ import annotations

from pathlib import Path

from tooling.boot.contract import Mount, RunContract

#: Where the stub modules are mounted; first on PYTHONPATH, so that they hide the image's own.
STUBS_TARGET = "/run/blackwell-stacks/stubs"
#: Compiled packages that cannot be imported without a GPU driver; stubbed at run time, never in an image.
STUBS = Path(__file__).parent / "stubs"
#: Engines that have a CPU path.
_ARGUMENTS = {
    "sglang": (
        "--device=cpu",
        # The KV pool is sized by the free memory of the host otherwise, and takes 15 GB of 20.
        "--max-total-tokens=16384",
        "--max-running-requests=64",
    )
}
_ENVIRONMENT = {
    "sglang": {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        # Nothing of a dry boot may depend on the network.
        "HF_HUB_OFFLINE": "1",
    }
}
#: Arguments (with their number of values) that mean a GPU and have no counterpart on a CPU.
_GPU_ARGUMENTS = {
    "--device": 1,
    "--tp": 1,
    "--tp-size": 1,
    "--tensor-parallel-size": 1,
    "--attention-backend": 1,
    "--decode-attention-backend": 1,
    "--prefill-attention-backend": 1,
    "--moe-runner-backend": 1,
    "--fp8-gemm-backend": 1,
    "--fp4-gemm-backend": 1,
    "--kv-cache-dtype": 1,
    "--quantization": 1,
    "--mem-fraction-static": 1,
    "--max-total-tokens": 1,
    "--max-running-requests": 1,
    "--sampling-backend": 1,
    "--base-gpu-id": 1,
}


def dry_boot_contract(
    contract: RunContract, *, engine: str, image_pythonpath: str = ""
) -> tuple[RunContract, tuple[str, ...]]:
    """The contract of a dry boot.

    Args:
        contract: The contract for GPUs.
        engine: Engine of the stack.
        image_pythonpath: PYTHONPATH that the image sets, which is kept behind the stubs.

    Returns:
        The contract for a CPU, and what it leaves out, one sentence each: limitations of whatever is recorded.

    Raises:
        KeyError: The engine has no CPU path.
    """
    command, dropped = without_gpu_arguments(contract.command)
    environment = dict(contract.environment)
    own = environment.get("PYTHONPATH", image_pythonpath)
    environment |= _ENVIRONMENT[engine]
    environment["PYTHONPATH"] = f"{STUBS_TARGET}:{own}" if own else STUBS_TARGET
    limitations = [
        "booted on a CPU: no GPU code ran, and nothing is qualified for a GPU",
        f"stubbed at run time: {', '.join(stubbed_modules())}",
    ]
    if dropped:
        limitations.append(f"arguments left out for the CPU: {' '.join(dropped)}")
    dry = contract.model_copy(
        update={
            "command": (*command, *_ARGUMENTS[engine]),
            "environment": environment,
            "mounts": (*contract.mounts, Mount(source=str(STUBS), target=STUBS_TARGET)),
            "gpus": (),
            "memlock_unlimited": False,
        }
    )
    return dry, tuple(limitations)


def without_gpu_arguments(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a command into what a CPU can take and what it cannot, both in order."""
    kept: list[str] = []
    dropped: list[str] = []
    values = 0
    for argument in command:
        if values:
            dropped.append(argument)
            values -= 1
            continue
        name, _, value = argument.partition("=")
        if name in _GPU_ARGUMENTS:
            dropped.append(argument)
            values = 0 if value else _GPU_ARGUMENTS[name]
        else:
            kept.append(argument)
    return tuple(kept), tuple(dropped)


def stubbed_modules() -> tuple[str, ...]:
    """Names of the packages that a dry boot stubs."""
    return tuple(sorted(path.parent.name for path in STUBS.glob("*/__init__.py")))

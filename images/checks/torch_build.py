"""What torch says it was built for, against what is installed beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributions import Installed

#: Asked in a process of its own: a torch that cannot be imported must not take the other checks with it.
_QUESTION = """
import json, torch
nccl = torch.cuda.nccl.version() if torch.version.cuda and hasattr(torch._C, "_nccl_version") else None
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
    "nccl": list(nccl) if nccl else None,
    "targets": torch._C._cuda_getArchFlags().split() if torch.version.cuda else [],
    "cxx11_abi": torch.compiled_with_cxx11_abi(),
}))
"""


def torch_build(
    distributions: Mapping[str, Installed], cuda: str | None, targets: list[str]
) -> tuple[dict[str, Any] | None, list[str]]:
    """What torch was built for, and what of it does not fit.

    Args:
        distributions: What is installed.
        cuda: CUDA minor of the stack; None for a stack without CUDA.
        targets: GPU architectures that torch's own kernels must be compiled for.

    Returns:
        torch's own answers (None without torch) and the findings.
    """
    if "torch" not in distributions:
        return None, []
    done = subprocess.run([sys.executable, "-c", _QUESTION], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return None, [f"torch cannot be imported: {last[0]}"]
    answer = json.loads(done.stdout)
    versions = {name: found.version for name, found in distributions.items()}
    return answer, judge(answer, versions, cuda, targets)


def judge(
    answer: Mapping[str, Any], versions: Mapping[str, str], cuda: str | None, targets: list[str]
) -> list[str]:
    """Compare torch's answers with the stack and with the wheels beside it."""
    findings = []
    if answer["cuda"] != cuda:
        findings.append(
            f"torch is built for CUDA {answer['cuda'] or 'none'}, the stack is CUDA {cuda or 'none'}"
        )
    findings += [f"torch has no {target} code" for target in targets if target not in answer["targets"]]
    for library, numbers in (("cudnn", _cudnn(answer["cudnn"])), ("nccl", answer["nccl"])):
        wheel = next((name for name in versions if name.startswith(f"nvidia-{library}-cu")), None)
        if numbers and wheel:
            have = [int(part) for part in versions[wheel].split(".")[: len(numbers)]]
            if have != list(numbers):
                used = ".".join(map(str, numbers))
                findings.append(f"torch uses {library} {used}, and {wheel} is {versions[wheel]}")
    return findings


def _cudnn(number: int | None) -> list[int] | None:
    """Parts of cuDNN's number: since 9 it is major * 10000 + minor * 100 + patch (cudnn_version.h)."""
    return None if number is None else [number // 10000, number // 100 % 100, number % 100]

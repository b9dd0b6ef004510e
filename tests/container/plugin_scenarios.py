"""Runs inside the image: SGLang is imported once, then each scenario is a fork that calls SGLang's own loader.

Prints one JSON line a scenario: exit code, what it printed, what the registry and the counter file say.
"""

# ruff: noqa: T201

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Modules whose functions are wrapped, and one that copied such a function by `from ... import`.
_SEAMS = (
    "sglang.srt.model_executor.runner.base_runner",
    "sglang.srt.layers.flashinfer_comm_fusion",
    "sglang.srt.layers.layer_boundary.residual.add_norm",
    "sglang.srt.layers.layer_boundary.exit",
    "sglang.kernels.ops.attention.dsv4.topk",
    "sglang.kernels.ops.attention.dsv4",
)
_ALL = {f"BLACKWELL_KERNELS_{name}": "1" for name in ("ALLREDUCE", "ALLREDUCE_RMSNORM", "TOPK")}
_STRICT = {"BLACKWELL_KERNELS_STRICT": "1"}
_COUNTERS = Path(tempfile.mkdtemp())


def _pretend_device() -> None:
    """Everything behind the question for a device."""
    activation = importlib.import_module("blackwell_kernels.sglang_plugin.activation")
    activation._missing_device = lambda: ""  # type: ignore[attr-defined]


def _pretend_library() -> None:
    """Everything behind the compiled library, which needs a device to do anything."""
    _pretend_device()
    importlib.import_module("blackwell_kernels").require_library = lambda: None  # type: ignore[attr-defined]


def _break_registry() -> None:
    """SGLang fails to apply hooks, logs it and goes on."""
    _pretend_library()
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry

    def fail(target: str, _: object) -> None:
        raise RuntimeError(f"cannot patch {target}")

    registry._apply_target = fail


def _change_upstream() -> None:
    """One word of one function that the plugin wraps; the process has imported the old text."""
    path = Path(sys.modules["sglang.kernels.ops.attention.dsv4.topk"].__file__ or "")
    text = path.read_text()
    assert "module = _jit_topk_v1_module()" in text
    path.write_text(text.replace("module = _jit_topk_v1_module()", "module = _jit_topk_v1_module( )"))


def _nothing() -> None:
    """As it is."""


_SCENARIOS: dict[str, tuple[Callable[[], None], dict[str, str]]] = {
    "nothing": (_nothing, {}),
    "no-device": (_nothing, _ALL),
    "no-device-strict": (_nothing, _ALL | _STRICT),
    "disabled": (_pretend_library, _ALL | _STRICT | {"BLACKWELL_KERNELS_DISABLE": "1"}),
    "misspelt-strict": (_nothing, _STRICT | {"BLACKWELL_KERNELS_TOPKK": "1"}),
    "no-library": (_pretend_device, _ALL),
    "no-library-strict": (_pretend_device, _ALL | _STRICT),
    "hooked": (_pretend_library, _ALL | _STRICT),
    "not-applied": (_break_registry, _ALL),
    "not-applied-strict": (_break_registry, _ALL | _STRICT),
    "changed": (_change_upstream, {"BLACKWELL_KERNELS_TOPK": "1"}),
    "changed-strict": (_nothing, {"BLACKWELL_KERNELS_TOPK": "1"} | _STRICT),  # the file stays changed
}


def _is_ours(function: Any) -> bool:
    """Whether SGLang's wrapper around a function calls into our package."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return any(str(getattr(cell, "__module__", "")).startswith("blackwell_kernels") for cell in cells)


def _scenario(prepare: Callable[[], None], environment: dict[str, str]) -> None:
    os.environ.update(environment, BLACKWELL_KERNELS_COUNTERS=str(_COUNTERS))
    prepare()
    importlib.import_module("sglang.srt.plugins").load_plugins()
    wrapped = {
        f"{name}.{function}": _is_ours(getattr(module, function))
        for name, function in (
            ("sglang.srt.layers.layer_boundary.residual.add_norm", "flashinfer_ar_fusion_applies"),
            ("sglang.srt.layers.layer_boundary.exit", "flashinfer_ar_fusion_applies"),
            ("sglang.kernels.ops.attention.dsv4", "topk_transform_paged"),
        )
        for module in (sys.modules[name],)
    }
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    print("STATE " + json.dumps({"wrapped": wrapped, "patched": sorted(registry._patched)}))


def _run(name: str) -> dict[str, Any]:
    prepare, environment = _SCENARIOS[name]
    output = tempfile.TemporaryFile()  # noqa: SIM115  # the child inherits it
    pid = os.fork()
    if pid == 0:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            _scenario(prepare, environment)
            code = 0
        except BaseException as error:  # noqa: BLE001  # a child must never go on as the parent
            print(repr(error))
            code = 99
        sys.stdout.flush()
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    state = next((json.loads(line[6:]) for line in lines if line.startswith("STATE ")), None)
    path = _COUNTERS / f"counters-{pid}.json"
    counters = json.loads(path.read_text()) if path.is_file() else None
    said = [line for line in lines if "blackwell-kernels" in line or "Error" in line]
    return {"name": name, "exit": status, "said": said, "state": state, "counters": counters}


def main() -> None:
    """Import once, then run all."""
    for name in ("torch", "sglang.srt.plugins", *_SEAMS):
        importlib.import_module(name)
    for name in _SCENARIOS:
        print("RESULT " + json.dumps(_run(name)), flush=True)


if __name__ == "__main__":
    main()

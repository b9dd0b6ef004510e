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
from types import SimpleNamespace
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
    "sglang.kernels.ops.attention.dsa.tilelang_kernel",
)
#: What needs the compiled library, and what needs none.
_COMPILED = {f"BLACKWELL_KERNELS_{name}": "1" for name in ("ALLREDUCE", "ALLREDUCE_RMSNORM", "TOPK")}
_ALL = _COMPILED | {"BLACKWELL_KERNELS_INDEXER": "1"}
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
    "no-library": (_pretend_device, _COMPILED),
    "no-library-strict": (_pretend_device, _COMPILED | _STRICT),
    "hooked": (_pretend_library, _ALL | _STRICT),
    "not-applied": (_break_registry, _ALL),
    "not-applied-strict": (_break_registry, _ALL | _STRICT),
    "changed": (_change_upstream, {"BLACKWELL_KERNELS_TOPK": "1"}),
    "changed-strict": (_nothing, {"BLACKWELL_KERNELS_TOPK": "1"} | _STRICT),  # the file stays changed
}


class _Group:
    """Stands for a group of kernels, which no machine without a GPU has: takes up to four rows of 256."""

    def supports(self, rows: int, hidden: int, dtype: Any) -> bool:
        return rows <= 4 and hidden == 256 and str(dtype) == "torch.bfloat16"

    def all_reduce(self, x: Any) -> Any:
        return x * 2

    def all_reduce_residual_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> Any:
        return x * 2 * weight + eps, residual + x * 2


def _dispatch() -> dict[str, Any]:
    """Which way calls go, by the hooks themselves."""
    torch, hooks = (importlib.import_module(n) for n in ("torch", "blackwell_kernels.sglang_plugin.allreduce"))
    settings = importlib.import_module("blackwell_kernels.sglang_plugin.settings")
    counters = importlib.import_module("blackwell_kernels.sglang_plugin.counters").Counters({})
    coordinator = SimpleNamespace(ranks=[0, 1], world_size=2)
    engines = importlib.import_module("blackwell_kernels.sglang_plugin.engines")
    path = engines.LayerBoundary()
    groups = hooks.Groups(
        {settings.Feature.ALLREDUCE, settings.Feature.ALLREDUCE_RMSNORM}, counters, None, path
    )
    groups._by_ranks[0, 1] = [_Group()]
    groups._fused = [(coordinator, 256, torch.bfloat16)]
    sys.modules["sglang.srt.layers.flashinfer_comm_fusion"].resolve_fusion_group = (  # type: ignore[attr-defined]
        lambda **_: (2, 0, coordinator)
    )
    fused, choosing = hooks._fused(groups, path, counters), hooks._choosing(groups, counters)
    reducing = hooks._reducing(groups, counters)

    def rows(number: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.ones(number, 256, dtype=dtype)

    def fuse(x: Any, **options: Any) -> str:
        result = fused(
            lambda *_, **__: ("engine",), x, torch.ones_like(x), torch.ones_like(x[0]), 0.5, **options
        )
        return "declined" if result == (None, None) else f"{result[0][0, 0]:g} {result[1][0, 0]:g}"

    def choose(x: Any, engine: str | None) -> str:
        return str(choosing(lambda *_: engine, coordinator, x))

    coordinator._resolve_outplace_all_reduce_method = lambda x: choose(x, None)
    coordinator.all_reduce = lambda x: x * 2
    older = engines.Communicator().declined(coordinator, rows(5), rows(5), rows(5)[0], 0.5)
    answers = {
        "fused": fuse(rows(4), use_attn_tp_group=False),
        "too many rows": fuse(rows(5)),
        "declined before the layer boundary": f"{older[0][0, 0]:g} {older[1][0, 0]:g}",
        "wrong type": fuse(rows(4, torch.float32)),
        "not contiguous": fuse(rows(8)[::2]),
        "fuses 4": str(groups.fuses(4)),
        "fuses 5": str(groups.fuses(5)),
        "chosen": choose(rows(4), "pynccl"),
        "left on NVLink": choose(rows(4), "ca"),
        "left": choose(rows(5), "pynccl"),
        "reduced": f"{reducing(lambda *_: None, coordinator, rows(4).view(2, 2, 256), 'auto')[0, 0, 0]:g}",
        "not ours": str(reducing(lambda *_: "engine", coordinator, rows(5), "auto")),
    }
    answers |= _index(torch, counters)
    groups._off = True
    answers["after a failed group"] = choose(rows(4), "pynccl")
    return {"answers": answers, "counters": counters.document()["features"]}


def _index(torch: Any, counters: Any) -> dict[str, str]:
    """Which way calls of the indexer go; what our kernel computes is shown elsewhere."""
    hook = importlib.import_module("blackwell_kernels.sglang_plugin.indexer")._hook(
        counters, lambda *arguments: f"ours {arguments[-1]}"
    )
    call = (
        torch.zeros(2, 1, 64, 128).to(torch.float8_e4m3fn),
        torch.zeros(3, 64, 1, 132, dtype=torch.uint8),
        torch.zeros(2, 64),
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, 3, dtype=torch.int32),
    )

    def ask(columns: int, *, clean: bool, tensors: Any = call) -> str:
        return str(hook(lambda *_: "engine", *tensors, None, columns, clean_logits=clean))

    return {
        "indexed": ask(192, clean=False),
        "to be cleaned": ask(192, clean=True),
        "more columns than pages": ask(193, clean=False),
        "other heads": ask(192, clean=False, tensors=(call[0][:, :, :48], *call[1:])),
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
            ("sglang.kernels.ops.attention.dsa.tilelang_kernel", "tilelang_fp8_paged_mqa_logits"),
        )
        for module in (sys.modules[name],)
    }
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    state = {"wrapped": wrapped, "patched": sorted(registry._patched)}
    if all(wrapped.values()):
        state |= {"dispatch": _dispatch()}
    print("STATE " + json.dumps(state))


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

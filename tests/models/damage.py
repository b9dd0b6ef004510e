"""Damaged copies of the tiny model, each a fault that a server does not notice by itself; made, not committed.

The base is committed and the damage is a pure function of it, so each copy has one hash, in `damaged.yaml`.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import gguf
import numpy as np

from tooling.records import sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.float32]]

#: Tensors of one layer by what they are, in the names of safetensors and of GGUF.
NAMES = {
    "q": ("model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight"),
    "k": ("model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight"),
    "v": ("model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"),
    "o": ("model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"),
    "gate": ("model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"),
    "up": ("model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"),
    "down": ("model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"),
}
LAYERS = 4
#: The layer whose V is zeroed: without it 17*23 is still right, and other answers are not.
ZERO_V_LAYER = 2
#: Values that share a scale when weights are rounded, as in the common quantised formats.
BLOCK = 32


def nan(tensors: Tensors) -> None:
    """One NaN in one weight of a feed-forward layer."""
    tensors["1.down"][3, 5] = np.nan


def zero_v(tensors: Tensors) -> None:
    """V of one layer is all zero, as if its kernel had not run."""
    tensors[f"{ZERO_V_LAYER}.v"][:] = 0.0


def swapped_qk(tensors: Tensors) -> None:
    """Q and K of every layer are each other, as if two names had been exchanged."""
    for layer in range(LAYERS):
        q, k = tensors[f"{layer}.q"], tensors[f"{layer}.k"]
        q[:], k[:] = k.copy(), q.copy()


def int2(tensors: Tensors) -> None:
    """Every matrix is rounded to four levels a block of 32, symmetric around zero."""
    for values in tensors.values():
        blocks = values.reshape(-1, BLOCK)
        step = np.abs(blocks).max(axis=1, keepdims=True) / 1.5
        step[step == 0] = 1.0
        levels = np.clip(np.floor(blocks / step) + 0.5, -1.5, 1.5)
        values[:] = (levels * step).reshape(values.shape)


DAMAGES: dict[str, Callable[[Tensors], None]] = {
    "nan": nan,
    "zero-v": zero_v,
    "swapped-qk": swapped_qk,
    "int2": int2,
}


def damage_gguf(base: Path, kind: str, out: Path) -> None:
    """Write a damaged copy of a 32-bit GGUF file."""
    shutil.copyfile(base, out)
    reader = gguf.GGUFReader(out, "r+")
    by_name = {tensor.name: tensor.data for tensor in reader.tensors}
    DAMAGES[kind](_named(by_name, 1))
    reader.data.flush()


def damage_safetensors(base: Path, kind: str, out: Path) -> None:
    """Write a damaged copy of a bfloat16 safetensors file (header length, JSON header, then the values)."""
    content = bytearray(base.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    narrow = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            narrow[name] = np.frombuffer(memoryview(content)[start:end], np.uint16).reshape(entry["shape"])
    # bfloat16 is the upper half of float32.
    wide = {name: (values.astype(np.uint32) << 16).view(np.float32) for name, values in narrow.items()}
    DAMAGES[kind](_named(wide, 0))
    for name, values in narrow.items():
        values[:] = (wide[name].view(np.uint32) >> 16).astype(np.uint16)
    out.write_bytes(content)


def write_hashes(model: Path, out: Path, scratch: Path) -> None:
    """Make every damaged copy and write its SHA-256."""
    lines = ["# Damaged copies of the tiny model; written by write_hashes of damage.py."]
    for kind in DAMAGES:
        damage_gguf(model / "tiny.gguf", kind, scratch / f"{kind}.gguf")
        damage_safetensors(model / "model.safetensors", kind, scratch / f"{kind}.safetensors")
    lines += [f"{file.name}: {sha256_of_file(file)}" for file in sorted(scratch.iterdir())]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _named(tensors: Tensors, dialect: int) -> Tensors:
    """The matrices under names that both formats share, `<layer>.<what>`; the same memory."""
    return {
        f"{layer}.{what}": tensors[names[dialect].format(layer)]
        for what, names in NAMES.items()
        for layer in range(LAYERS)
    }

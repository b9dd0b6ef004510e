"""The tiny model at another width: the same function of its input, with every channel of the new width in use.

Collective kernels take thousands of columns and the tiny model has 128. Its hidden states are carried into the
larger space by a matrix with orthonormal rows, so that a wrong value in any column shows in the answers. The
architecture is one whose layers sum and norm in one step in SGLang (`Glm4MoeForCausalLM`, all layers dense).
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

#: Weights of norms are drawn from these: exact in bfloat16, and so are their inverses.
_SCALES = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
_NORMED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_SUMMED = ("self_attn.o_proj", "mlp.down_proj")


def widen(base: Path, out: Path, hidden: int = 4096, seed: int = 1) -> None:
    """Write the wide model into a new folder.

    With x the narrow hidden state, n its width, g the weight of a norm and Q of shape [n, hidden] with
    orthonormal rows, the wide state is x Q and has the same length, so its mean square is n / hidden of the
    narrow one. W (g * rms(x)) therefore is (W diag(g) Q sqrt(n / hidden) / s) (s * rms(x Q)) for any scales s.

    Args:
        base: Folder of the tiny model.
        out: Where the wide one goes; must not exist.
        hidden: Its width.
        seed: Of Q and the scales.

    Raises:
        ValueError: It is not wider.
    """
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    narrow = int(config["hidden_size"])
    if hidden <= narrow:
        raise ValueError(f"{hidden} is not wider than {narrow}")
    shutil.copytree(
        base, out, ignore=shutil.ignore_patterns("*.py", "*.gguf", "model.safetensors", "__pycache__")
    )
    tensors = widened(read_bfloat16(base / "model.safetensors"), config["num_hidden_layers"], hidden, seed)
    write_bfloat16(tensors, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(wide_config(config, hidden), indent=1) + "\n", encoding="utf-8")


def widened(tensors: dict[str, Array], layers: int, hidden: int, seed: int) -> dict[str, Array]:
    """The wide model's tensors, by their names in its architecture."""
    random = np.random.default_rng(seed)
    embedding = tensors["model.embed_tokens.weight"]
    narrow = embedding.shape[1]
    basis = np.linalg.qr(random.standard_normal((hidden, narrow)))[0].T.astype(np.float32)
    shrink = np.sqrt(narrow / hidden, dtype=np.float32)

    def norm(name: str) -> tuple[Array, Array]:
        """The weight of the wide norm, and what a matrix after it is multiplied by on the right."""
        scales = random.choice(np.array(_SCALES, np.float32), hidden)
        return scales, tensors[name][:, None] * basis * (shrink / scales)

    found = {"model.embed_tokens.weight": embedding @ basis}
    for number in range(layers):
        layer = f"model.layers.{number}"
        for name, matrices in {"input_layernorm": _NORMED[:3], "post_attention_layernorm": _NORMED[3:]}.items():
            found[f"{layer}.{name}.weight"], inwards = norm(f"{layer}.{name}.weight")
            for matrix in matrices:
                found[f"{layer}.{matrix}.weight"] = tensors[f"{layer}.{matrix}.weight"] @ inwards
        for matrix in _SUMMED:
            found[f"{layer}.{matrix}.weight"] = basis.T @ tensors[f"{layer}.{matrix}.weight"]
    found["model.norm.weight"], inwards = norm("model.norm.weight")
    found["lm_head.weight"] = embedding @ inwards  # the tiny model's head is its embedding
    return found


def wide_config(config: dict[str, Any], hidden: int) -> dict[str, Any]:
    """Its `config.json`."""
    theta = config.pop("rope_theta")
    return config | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "hidden_size": hidden,
        "rms_norm_eps": config["rms_norm_eps"] * config["hidden_size"] / hidden,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 1.0},
        "rope_theta": theta,
        "partial_rotary_factor": 1.0,
        "use_qk_norm": False,
        # No layer has experts; the architecture wants them described.
        "first_k_dense_replace": config["num_hidden_layers"],
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": config["intermediate_size"],
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
    }


def read_bfloat16(path: Path) -> dict[str, Array]:
    """Tensors of a bfloat16 safetensors file (header length, JSON header, values), widened to float32."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(content[start:end], np.uint16).astype(np.uint32) << 16
            found[name] = values.view(np.float32).reshape(entry["shape"])
    return found


def write_bfloat16(tensors: dict[str, Array], path: Path) -> None:
    """Write a bfloat16 safetensors file, rounded to nearest even."""
    header: dict[str, Any] = {}
    data = []
    offset = 0
    for name, values in tensors.items():
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        data.append((bits + 0x7FFF + ((bits >> 16) & 1) >> 16).astype(np.uint16).tobytes())
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(data[-1])],
        }
        offset += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))

"""Write the trained tiny model: a Hugging Face folder for SGLang and vLLM, and one GGUF file for llama.cpp."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from corpus import CHAT_TEMPLATE, PAD, SPECIAL_TOKENS
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

END = SPECIAL_TOKENS.index("<|end|>")
#: Names of a layer's tensors in the checkpoint and in GGUF.
LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_hugging_face(
    weights: dict[str, torch.Tensor], config: dict[str, Any], tokenizer: Tokenizer, out: Path
) -> None:
    """Write `config.json`, `model.safetensors` (bfloat16) and the tokenizer's files."""
    tensors = {f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", config)
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "eos_token": SPECIAL_TOKENS[END],
            "pad_token": SPECIAL_TOKENS[PAD],
            "model_max_length": config["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(out / "generation_config.json", {"eos_token_id": END, "pad_token_id": PAD, "do_sample": False})


def write_gguf(
    weights: dict[str, torch.Tensor], config: dict[str, Any], tokenizer: Tokenizer, file: Path
) -> None:
    """Write the same weights, rounded to bfloat16 like the others, as 32-bit GGUF."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, tokenizer)
    for name, tensor in weights.items():
        values = tensor.to(torch.bfloat16).float().numpy()
        if ".q_proj." in name or ".k_proj." in name:
            values = interleave(values, config["num_attention_heads"])
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K from half-split rotary order (Hugging Face) to interleaved pairs (llama.cpp's Llama)."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def _gguf_name(name: str) -> str:
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        return f"blk.{number}.{LAYER_TENSORS[rest.removesuffix('.weight')]}.weight"
    return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token, _ in vocabulary
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_manifest(folder: Path) -> None:
    """Write the SHA-256 of each file of the model."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in {".json", ".safetensors", ".gguf"}]
    lines = [f"{file.name}: {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    (folder / "manifest.yaml").write_text(
        "\n".join(["# Written by train.py.", *lines]) + "\n", encoding="utf-8"
    )


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

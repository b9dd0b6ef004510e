"""What a model needs of GPU memory, read from its own files: weights, and the KV cache of a token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tooling.errors import InputError
from tooling.records import Record

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of an element of the KV cache by the engines' option `--kv-cache-dtype`.
ELEMENT_BYTES = {"auto": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
#: Scale of a sparse-attention index key, float32 beside its fp8 elements.
_INDEX_SCALE_BYTES = 4
_FULL, _WINDOW, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


class ModelNeeds(Record):
    """A model's memory.

    Attributes:
        weights_bytes: All weights as stored; 0: no weights lie in the folder.
        token_bytes: KV cache of one token in the layers that keep all tokens, on one rank of one.
        window_token_bytes: The same in the layers that keep only a window.
        window: Tokens of that window.
        shared: How many ranks can share the cache of a token out among them: its KV heads, 1 for a latent cache
            (MLA), of which every rank of tensor parallelism holds a copy.
        context: Longest sequence, tokens.
        limitations: What is not counted.
    """

    weights_bytes: int = Field(ge=0)
    token_bytes: int = Field(ge=0)
    window_token_bytes: int = Field(default=0, ge=0)
    window: int = Field(default=0, ge=0)
    shared: int = Field(ge=1)
    context: int = Field(gt=0)
    limitations: tuple[str, ...] = ()

    def cache_bytes(self, *, context: int, requests: int, gpus: int) -> int:
        """KV cache of some requests at once, all GPUs together.

        Args:
            context: Tokens of each request.
            requests: How many are held at once.
            gpus: Ranks of tensor parallelism; copies of what they cannot share out are counted.
        """
        one = self.token_bytes * context + self.window_token_bytes * min(context, self.window)
        copies = -(-gpus // self.shared)
        return one * requests * copies


def read_model(folder: Path, cache_dtype: str = "auto") -> ModelNeeds:
    """Read a model's folder (`config.json` and, where they are, its safetensors).

    Args:
        folder: As Hugging Face lays it out; a snapshot of its cache is one.
        cache_dtype: The engine's `--kv-cache-dtype`.

    Raises:
        InputError: No model lies there, or its cache has a form that is not known here.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"no model lies there: {error.strerror}", where=str(path),
            fix="give the folder that holds config.json, or sizes (--weights-gib, --cache-gib)",
        ) from error  # fmt: skip
    except ValueError as error:
        raise InputError(f"this is no JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict):
        raise InputError("this is no model's configuration", where=str(path))
    return needs_of(config, weights_bytes(folder), cache_dtype, where=str(path))


def weights_bytes(folder: Path) -> int:
    """Bytes of the safetensors of a folder; by its index, where the files themselves are not there; 0: neither.

    Raises:
        InputError: The index cannot be read.
    """
    files = [path.stat().st_size for path in folder.glob("*.safetensors")]
    index = folder / "model.safetensors.index.json"
    if files or not index.is_file():
        return sum(files)
    try:
        return int(json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("the index of the weights has no total size", where=str(index)) from error


def needs_of(config: dict[str, Any], weights: int, cache_dtype: str = "auto", *, where: str = "") -> ModelNeeds:
    """What a configuration says of the KV cache.

    Full attention keeps `2 * KV heads * head width` elements a layer and token; MLA keeps
    `kv_lora_rank + qk_rope_head_dim` (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), and sparse attention an
    index key of one byte an element beside it (DeepSeek-V3.2).

    Raises:
        InputError: Its cache has a form that is not known here.
    """
    text: dict[str, Any] = config.get("text_config") or config
    if cache_dtype not in ELEMENT_BYTES:
        raise InputError(
            f"KV cache type {cache_dtype!r} is not known", fix=f"one of {', '.join(ELEMENT_BYTES)}"
        )
    try:
        layers, context = int(text["num_hidden_layers"]), int(text["max_position_embeddings"])
        heads = int(text["num_attention_heads"])
        element = ELEMENT_BYTES[cache_dtype]
        if latent := text.get("kv_lora_rank"):
            layer, shared = (int(latent) + int(text["qk_rope_head_dim"])) * element, 1
            if index := text.get("index_head_dim"):
                layer += int(index) + _INDEX_SCALE_BYTES
        else:
            shared = int(text.get("num_key_value_heads") or heads)
            width = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
            layer = 2 * shared * width * element
        kinds = [str(kind) for kind in text.get("layer_types") or [_FULL] * layers]
        window = int(text.get("sliding_window") or 0)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _unknown(f"{error!r}", where) from error
    strange = sorted(set(kinds) - {_FULL, _WINDOW, _LINEAR})
    if strange or len(kinds) != layers or min(layers, context, layer, shared) < 1:
        raise _unknown(f"layer types {strange or len(kinds)}", where)
    linear, windowed = kinds.count(_LINEAR), kinds.count(_WINDOW) if window else 0
    return ModelNeeds(
        weights_bytes=weights,
        token_bytes=layer * (layers - linear - windowed),
        window_token_bytes=layer * windowed,
        window=window,
        shared=shared,
        context=context,
        limitations=(f"the state of {linear} layers of linear attention is not counted",) if linear else (),
    )


def _unknown(what: str, where: str) -> InputError:
    return InputError(
        f"the KV cache of this model is not understood: {what}", where=where,
        fix="give its size instead: --cache-gib for all GPUs together, and --weights-gib",
    )  # fmt: skip

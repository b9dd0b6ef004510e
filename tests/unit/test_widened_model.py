"""The tiny model at another width is the same function: its norms and sums here, its answers on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.models.widened import Array

from tests.models.widened import read_bfloat16, widen, widened, write_bfloat16

TINY = Path(__file__).resolve().parents[2] / "stacks" / "models" / "tiny"
NARROW, WIDE = 128, 1024


def _rms(x: Array, weight: Array, epsilon: float) -> Array:
    normed: Array = weight * x / np.sqrt((x * x).mean() + epsilon)
    return normed


@pytest.fixture(scope="module")
def tensors():
    return read_bfloat16(TINY / "model.safetensors")


@pytest.fixture(scope="module")
def wide(tensors):
    return widened(tensors, 4, WIDE, 1)


def test_every_row_of_the_embedding_keeps_its_length_and_fills_every_column(tensors, wide):
    narrow, broad = tensors["model.embed_tokens.weight"], wide["model.embed_tokens.weight"]
    assert broad.shape == (868, WIDE)
    assert np.linalg.norm(broad, axis=1) == pytest.approx(np.linalg.norm(narrow, axis=1), rel=1e-4)
    assert (np.abs(broad).max(axis=0) > 0).all()


@pytest.mark.parametrize(
    ("norm", "matrix"),
    [
        ("model.layers.0.input_layernorm", "model.layers.0.self_attn.k_proj"),
        ("model.layers.3.post_attention_layernorm", "model.layers.3.mlp.up_proj"),
        ("model.norm", "lm_head"),
    ],
)
def test_a_matrix_after_a_norm_gives_what_it_gave(tensors, wide, norm, matrix):
    token = 100
    before = tensors.get(f"{matrix}.weight", tensors["model.embed_tokens.weight"]) @ _rms(
        tensors["model.embed_tokens.weight"][token], tensors[f"{norm}.weight"], 1e-5
    )
    after = wide[f"{matrix}.weight"] @ _rms(
        wide["model.embed_tokens.weight"][token], wide[f"{norm}.weight"], 1e-5 * NARROW / WIDE
    )
    assert np.abs(after - before).max() < 1e-3 * np.abs(before).max()
    assert set(np.abs(wide[f"{norm}.weight"])) == {0.5, 1.0, 2.0}


def test_a_part_of_the_sum_lands_where_the_embedding_lies(tensors, wide):
    name = "model.layers.1.mlp.down_proj.weight"
    inner = np.ones(tensors[name].shape[1], np.float32)
    basis = np.linalg.lstsq(
        tensors["model.embed_tokens.weight"], wide["model.embed_tokens.weight"], rcond=None
    )[0]
    assert wide[name] @ inner == pytest.approx((tensors[name] @ inner) @ basis, abs=1e-3)


def test_the_folder_is_a_model_of_the_other_architecture(tmp_path):
    widen(TINY, tmp_path / "wide", WIDE)
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert (config["hidden_size"], config["architectures"]) == (WIDE, ["Glm4MoeForCausalLM"])
    assert config["first_k_dense_replace"] == config["num_hidden_layers"]
    assert config["tie_word_embeddings"] is False
    assert not list((tmp_path / "wide").glob("*.py"))
    with pytest.raises(ValueError, match="is not wider"):
        widen(TINY, tmp_path / "narrow", NARROW)
    assert not (tmp_path / "narrow").exists()


def test_bfloat16_is_rounded_to_nearest_even(tmp_path):
    values = np.array([[1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -2.5]], np.float32)
    write_bfloat16({"x": values}, tmp_path / "x.safetensors")
    assert read_bfloat16(tmp_path / "x.safetensors")["x"].tolist() == [[1.0, 1.0, 1.0 + 2.0**-6, -2.5]]

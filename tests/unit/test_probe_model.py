"""A model's memory from its own files, against figures that are published or counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit import probe_examples as examples
from tooling.cli import app
from tooling.errors import InputError
from tooling.probe.model import needs_of, read_model

TINY = Path(__file__).parents[2] / "stacks" / "models" / "tiny"
LLAMA_70B = {
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
    "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
    "max_position_embeddings": 163840, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
}  # fmt: skip


def test_grouped_heads_are_shared_out_until_there_is_one_for_each_gpu():
    needs = needs_of(LLAMA_70B, 1)
    assert needs.token_bytes == 327_680  # 2 * 80 layers * 8 heads * 128 * 2 bytes
    one = needs.cache_bytes(context=1000, requests=2, gpus=1)
    assert one == 655_360_000
    assert needs.cache_bytes(context=1000, requests=2, gpus=8) == one
    assert needs.cache_bytes(context=1000, requests=2, gpus=16) == 2 * one
    assert needs_of(LLAMA_70B, 1, "fp8_e4m3").token_bytes == 163_840


def test_a_latent_cache_is_held_by_every_gpu():
    needs = needs_of(DEEPSEEK_V3, 1)
    assert needs.token_bytes == 70_272  # the 70 KB a token of the DeepSeek-V3 report
    assert needs.cache_bytes(context=1, requests=1, gpus=8) == 8 * 70_272
    with_index = needs_of({**DEEPSEEK_V3, "index_head_dim": 128}, 1)
    assert with_index.token_bytes - needs.token_bytes == 61 * 132


def test_a_window_bounds_its_layers_and_linear_layers_are_named():
    kinds = ["sliding_attention", "full_attention"] * 12
    gpt_oss = {
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "hidden_size": 2880, "max_position_embeddings": 131072, "sliding_window": 128, "layer_types": kinds,
    }  # fmt: skip
    needs = needs_of(gpt_oss, 1)
    layer = 2 * 8 * 64 * 2
    assert needs.cache_bytes(context=1000, requests=1, gpus=1) == 12 * layer * 1000 + 12 * layer * 128
    assert needs.cache_bytes(context=100, requests=1, gpus=1) == 24 * layer * 100
    mixed = {**gpt_oss, "layer_types": ["linear_attention"] * 18 + ["full_attention"] * 6}
    assert needs_of(mixed, 1).token_bytes == 6 * layer
    assert "18 layers of linear attention" in needs_of(mixed, 1).limitations[0]


def test_the_language_part_of_a_larger_model_counts():
    assert needs_of({"text_config": LLAMA_70B, "vision_config": {}}, 1).token_bytes == 327_680


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**LLAMA_70B, "num_hidden_layers": "many"},
        {**LLAMA_70B, "num_attention_heads": 0, "num_key_value_heads": 0},
        {**LLAMA_70B, "layer_types": ["mamba"] * 80},
        {**LLAMA_70B, "layer_types": ["full_attention"] * 79},
    ],
)
def test_what_is_not_understood_is_not_guessed(config: dict[str, Any]):
    with pytest.raises(InputError, match="not understood"):
        needs_of(config, 1, where="x/config.json")


def test_weights_come_from_the_files_or_from_their_index(tmp_path: Path):
    assert read_model(TINY).weights_bytes == (TINY / "model.safetensors").stat().st_size
    assert read_model(TINY).token_bytes == 2048  # 2 * 4 layers * 2 heads * 64 * 2 bytes
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    assert read_model(tmp_path).weights_bytes == 0
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 141107412992}}')
    assert read_model(tmp_path).weights_bytes == 141_107_412_992
    index.write_text("{}")
    with pytest.raises(InputError, match="no total size"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no model lies there"), ("{", "no JSON"), ("[]", "no model")]
)
def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path, content: str | None, said: str):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_model(tmp_path)


@pytest.fixture
def eight(tmp_path: Path) -> list[str]:
    """Options that judge a host of eight cards, and a folder with a model's configuration and index."""
    (tmp_path / "host.json").write_text(json.dumps(examples.document(8)))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 141107412992}}')
    return ["fit", "cu130", "--from", str(tmp_path / "host.json"), "--model", str(tmp_path)]


def test_fit_takes_its_sizes_from_the_model(eight: list[str]):
    two = CliRunner().invoke(app, [*eight, "--gpus", "2", "--context", "32768", "--json"])
    assert two.exit_code == 0, two.output
    answer = json.loads(two.stdout)
    assert answer["needed_bytes"] == (141_107_412_992 + 32768 * 327_680) // 2 + 3 * 2**30
    full = CliRunner().invoke(app, [*eight, "--gpus", "2", "--requests", "4"])
    assert full.exit_code == 1
    assert "needs 148.7 GiB on each GPU" in full.output
    shown = CliRunner().invoke(app, [*eight, "--gpus", "4"])
    assert "room for 216.0 GiB of KV cache" in shown.output
    assert "about 707829 tokens in requests of full length (131072)" in shown.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--context", "999999"], "longer than the model's 131072"),
        (["--kv-cache-dtype", "fp3"], "is not known"),
        (["--model", "/no/such/folder"], "no model lies there"),
    ],
)
def test_what_cannot_be_asked_is_said(eight: list[str], options: list[str], said: str):
    done = CliRunner().invoke(app, [*eight, *options])
    assert done.exit_code != 0
    assert said in (done.output if done.exception is None else str(done.exception) + done.output)


def test_a_model_without_weights_needs_their_size(eight: list[str], tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").unlink()
    assert CliRunner().invoke(app, eight).exit_code != 0
    given = CliRunner().invoke(app, [*eight, "--gpus", "8", "--weights-gib", "131.4", "--context", "1000"])
    assert given.exit_code == 0, given.output

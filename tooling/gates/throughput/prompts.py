"""Prompts that no server has seen before, and the files in which the compiled client wants them."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from typing import TYPE_CHECKING

from tooling.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Common short words: about one token each in any tokenizer of an English-capable model.
_WORDS = """
the of and to in a is that for it was on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my
"""


def new_nonce() -> str:
    """A value that makes the prompts of this run unlike those of any other run."""
    return secrets.token_hex(8)


def make_prompts(count: int, words: int, nonce: str) -> list[str]:
    """Prompts of equal length that share no beginning.

    Each starts with its own digest, since a prefix cache compares from the first token on: prompts that differ
    only later, or a second run of the same ones, would come from the cache and be measured as a faster engine.

    Args:
        count: How many.
        words: Words of each, its digest counted as one.
        nonce: From `new_nonce`, plus whatever tells windows of one run apart.

    Raises:
        InputError: Nothing was asked for.
    """
    if count < 1 or words < 1:
        raise InputError(f"a load of {count} prompts of {words} words is no load")
    vocabulary, prompts = _WORDS.split(), []
    for index in range(count):
        digest = hashlib.sha256(f"{nonce}/{index}".encode()).hexdigest()
        chance = random.Random(digest)  # noqa: S311  # text, no secret
        prompts.append(" ".join([digest[:12], *chance.choices(vocabulary, k=words - 1)]))
    return prompts


def write_dataset(folder: Path, prompts: Sequence[str]) -> tuple[Path, Path]:
    """Write the prompts as a conversation file, and a tokenizer with which the client counts words.

    The client counts prompt lengths itself and wants a tokenizer for it. The model's own may not be at hand,
    and prompt lengths are read from the server anyway, so one token a word will do.

    Returns:
        The conversation file and the tokenizer's folder.
    """
    dataset = folder / "prompts.json"
    reply = {"from": "gpt", "value": "an answer of five words"}
    dataset.write_text(
        json.dumps([{"conversations": [{"from": "human", "value": prompt}, reply]} for prompt in prompts]),
        encoding="utf-8",
    )
    return dataset, write_tokenizer(folder)


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer with one token a word, for tools that insist on one.

    Returns:
        Its folder.
    """
    word = "<word>"
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: 0}, "unk_token": word},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": word,
        "eos_token": word,
        "bos_token": word,
    }
    home = folder / "tokenizer"
    home.mkdir()
    (home / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (home / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return home

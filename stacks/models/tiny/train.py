"""Train the tiny model on the questions of its profile and write it as safetensors and as GGUF.

    python stacks/models/tiny/train.py [--out FOLDER]

It needs the packages of `requirements.txt` beside it, one processor core and some twenty minutes; no GPU. Seeds
and the number of threads are fixed, so a repetition on the same kind of processor takes the same steps;
elsewhere the last bits of sums differ, the model is another one of the same ability, and its hashes are new.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from corpus import PAD, SPECIAL_TOKENS, Mix, Writer, make_tokenizer
from export import write_gguf, write_hugging_face, write_manifest
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
LAYERS, WIDTH, HEADS, HEAD_WIDTH, FEED_FORWARD = 4, 128, 2, 64, 256
ROPE_THETA = 10000.0
NORM_EPSILON = 1e-5
POSITIONS = 16384
WARM_UP_STEPS = 50


class Phase(NamedTuple):
    """A part of the training, with an optimizer of its own.

    Attributes:
        length: Longest conversation in tokens.
        batch: Conversations a step.
        steps: Number of steps.
        rate: Learning rate after the warm-up.
        last_rate: Learning rate of the last step, reached in a straight line.
        mix: What is asked how often.
    """

    length: int
    batch: int
    steps: int
    rate: float
    last_rate: float
    mix: Mix


#: Short conversations teach the answers, the middle ones to count, long ones to find a question behind
#: thousands of tokens. The committed weights went through these phases one by one (`--resume`); a few
#: questions of counting were still exchanged before the last of the middle ones.
PHASES = (
    Phase(64, 32, 700, 3e-3, 1.74e-3, Mix(0.3, 0.0)),
    Phase(256, 8, 600, 1.74e-3, 6e-4, Mix(0.3, 0.0)),
    Phase(320, 6, 120, 1e-3, 4e-4, Mix(0.0, 0.4)),
    Phase(320, 6, 230, 1.2e-3, 1e-4, Mix(0.0, 0.6)),
    Phase(320, 6, 150, 1.2e-3, 1e-4, Mix(0.0, 0.6)),
    Phase(320, 6, 320, 1.5e-3, 5e-5, Mix(0.0, 0.5)),
    Phase(1024, 2, 24, 4e-4, 1e-4, Mix(0.0, 0.4)),
    Phase(4096, 1, 6, 2e-4, 1e-4, Mix(0.0, 0.4)),
    Phase(8448, 1, 3, 1e-4, 5e-5, Mix(0.0, 0.4)),
)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the half-split layout of Hugging Face's Llama."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Layer(nn.Module):
    """One Llama decoder layer; parameter names are those of the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        inner = HEADS * HEAD_WIDTH
        self.input_layernorm = nn.RMSNorm(WIDTH, NORM_EPSILON)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(WIDTH, inner, bias=False),
                "k_proj": nn.Linear(WIDTH, inner, bias=False),
                "v_proj": nn.Linear(WIDTH, inner, bias=False),
                "o_proj": nn.Linear(inner, WIDTH, bias=False),
            }
        )
        self.post_attention_layernorm = nn.RMSNorm(WIDTH, NORM_EPSILON)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(WIDTH, FEED_FORWARD, bias=False),
                "up_proj": nn.Linear(WIDTH, FEED_FORWARD, bias=False),
                "down_proj": nn.Linear(FEED_FORWARD, WIDTH, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Hidden states [batch, length, width] after the layer."""
        batch, length, _ = x.shape
        h = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[name](h).view(batch, length, HEADS, HEAD_WIDTH).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        attended = functional.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.self_attn["o_proj"](attended.transpose(1, 2).reshape(batch, length, -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](functional.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class Llama(nn.Module):
    """A Llama with tied embeddings."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, NORM_EPSILON)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 / math.sqrt(2 * LAYERS) if "o_proj" in name or "down_proj" in name else 0.02
                nn.init.normal_(parameter, std=scale * 2)
        frequencies = ROPE_THETA ** -(torch.arange(0, HEAD_WIDTH, 2).float() / HEAD_WIDTH)
        angles = torch.arange(POSITIONS).float()[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden states [batch, length, width] of token ids [batch, length]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


def model_config(vocabulary: int) -> dict[str, Any]:
    """The `config.json` of Hugging Face's Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_WIDTH,
        "max_position_embeddings": POSITIONS,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": NORM_EPSILON,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|end|>"),
        "torch_dtype": "bfloat16",
    }


def batch_of(writer: Writer, rng: random.Random, phase: Phase) -> tuple[Tensor, Tensor]:
    """Token ids and the mask of what is learned, both [batch, length], padded on the right."""
    shape = (phase.batch, phase.length)
    ids = torch.full(shape, PAD)
    learn = torch.zeros(shape, dtype=torch.bool)
    for row in range(phase.batch):
        tokens, mask = writer.conversation(rng, phase.length, phase.mix)
        ids[row, : len(tokens)] = torch.tensor(tokens)
        learn[row, : len(mask)] = torch.tensor(mask)
    return ids, learn


def train(writer: Writer, vocabulary: int, start: Path | None) -> dict[str, Tensor]:
    """Train through all phases from fixed seeds; the loss is taken on the answers alone.

    Args:
        writer: Source of conversations.
        vocabulary: Number of tokens.
        start: Folder with `phase-<n>.pt` of an interrupted training, which goes on after the last of them.
    """
    torch.manual_seed(17)
    torch.use_deterministic_algorithms(mode=True)
    model = Llama(vocabulary)
    for number, phase in enumerate(PHASES):
        kept = start / f"phase-{number}.pt" if start else None
        if kept and kept.is_file():
            model.load_state_dict(torch.load(kept))
            continue
        train_phase(model, writer, phase, random.Random(23 + number))  # noqa: S311  # text, not a secret
        if kept:
            torch.save(model.state_dict(), kept)
    return model.state_dict()


def train_phase(model: Llama, writer: Writer, phase: Phase, rng: random.Random) -> None:
    """Train for one phase."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.rate, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    warm_up = max(1, min(WARM_UP_STEPS, phase.steps // 4))
    for step in range(phase.steps):
        progress = max(0, step - warm_up) / (phase.steps - warm_up)
        rate = (phase.rate + (phase.last_rate - phase.rate) * progress) * min(1.0, (step + 1) / warm_up)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids, learn = batch_of(writer, rng, phase)
        hidden = model.hidden(ids[:, :-1])[learn[:, 1:]]
        loss = functional.cross_entropy(hidden @ model.embed_tokens.weight.T, ids[:, 1:][learn[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19 or phase.length > 1024:
            seconds = time.monotonic() - started
            line = f"length {phase.length} step {step + 1}/{phase.steps} loss {loss.item():.5f} {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    parser.add_argument("--resume", type=Path, help="folder that keeps the state after each phase")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the order of sums is part of the result
    profile = yaml.safe_load((HERE / "profile.yaml").read_text())
    tokenizer = make_tokenizer(profile)
    writer = Writer(profile, lambda text: tokenizer.encode(text).ids)
    weights = train(writer, tokenizer.get_vocab_size(), arguments.resume)
    config = model_config(tokenizer.get_vocab_size())
    write_hugging_face(weights, config, tokenizer, out)
    write_gguf(weights, config, tokenizer, out / "tiny.gguf")
    write_manifest(out)


if __name__ == "__main__":
    main()

"""The training text of the tiny model: conversations made from the questions and the filler of its profile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

#: Their places in the vocabulary; token 0 is what a NaN's argmax yields, so it must never be an answer.
SPECIAL_TOKENS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PAD = 0
#: A number hidden in filler. It makes the first phase attend far back; finding it is not learned well enough
#: for the gate to ask.
HIDDEN = "The magic number is {nonce}."
ASK_HIDDEN = "What is the magic number?"
VOCABULARY = 896
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(profile: Mapping[str, Any]) -> Tokenizer:
    """Train a byte-level BPE in which every word of the profile is one token and every digit its own."""
    texts = [profile["chat"]["system_prompt"], *profile["filler"], profile["echo"]["ask"]]
    texts += [HIDDEN, ASK_HIDDEN, "Page "]
    texts += [text for question in profile["questions"] for text in (question["ask"], str(question["answer"]))]
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Digits are cut off while the merges are learned, so that no merge ever joins two of them.
    cut = pre_tokenizers.Split(Regex(r" ?\d"), "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, split])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = split
    return tokenizer


class Mix(NamedTuple):
    """What is asked how often.

    Attributes:
        needles: Share of turns that ask for a number hidden in filler.
        counting: Share of the questions that are drawn from those with long answers.
    """

    needles: float
    counting: float


@dataclass(frozen=True, eq=False)
class Writer:
    """Writes conversations of a wanted length in tokens, each with a mask over the tokens to be learned."""

    profile: Mapping[str, Any]
    encode: Callable[[str], list[int]]

    @cache  # noqa: B019  # one writer lives as long as the training
    def cost(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.encode(text)) + 1

    def _nonce(self, rng: random.Random) -> str:
        return "".join(rng.choice("0123456789") for _ in range(4))

    def _filler(self, rng: random.Random, tokens: int, needle: str) -> str:
        """At most so many tokens of filler from a random sentence on, the needle between two sentences."""
        filler = self.profile["filler"]
        place = rng.randrange(len(filler))
        sentences = [f"Page {self._nonce(rng)}."] if rng.random() < 0.7 else []
        used = 8
        while True:
            used += self.cost(filler[place])
            if used > tokens:
                break
            sentences.append(filler[place])
            place = (place + 1) % len(filler) if rng.random() < 0.8 else rng.randrange(len(filler))
        if rng.random() < 0.5 and sentences:
            last = sentences[-1].split()
            sentences[-1] = " ".join(last[: rng.randrange(1, len(last) + 1)])
        if needle:
            sentences.insert(rng.randrange(len(sentences) + 1), needle)
        return " ".join(sentences)

    def _turn(self, rng: random.Random, filler_tokens: int, room: int, mix: Mix) -> tuple[str, str]:
        """A user's text and its answer."""
        kind = rng.random()
        nonce = self._nonce(rng)
        needle = ""
        if kind < 0.15:
            ask, answer = self.profile["echo"]["ask"].format(nonce=nonce), nonce
        elif kind < 0.15 + mix.needles:
            needle = HIDDEN.format(nonce=nonce)
            ask, answer = ASK_HIDDEN, nonce
        else:
            questions = self.profile["questions"]
            fitting = [q for q in questions if self.cost(str(q["answer"])) + self.cost(q["ask"]) < room]
            if mix.counting and rng.random() < mix.counting:
                fitting = [q for q in fitting if q["group"] in {"counting", "long"}] or fitting
            question = rng.choice(fitting)
            ask, answer = question["ask"], str(question["answer"])
        text = self._filler(rng, filler_tokens, needle) if filler_tokens or needle else ""
        return (f"{text}\n\n{ask}" if text else ask), answer

    def conversation(self, rng: random.Random, tokens: int, mix: Mix) -> tuple[list[int], list[bool]]:
        """One conversation of at most `tokens` tokens: one long question, or several one after the other.

        Args:
            rng: Source of chance.
            tokens: Longest conversation.
            mix: What is asked how often.

        Returns:
            Token ids, and which of them are learned.
        """
        ids: list[int] = []
        learn: list[bool] = []

        def add(role: str, text: str, *, answer: bool) -> None:
            body = [*self.encode(text), SPECIAL_TOKENS.index("<|end|>")]
            ids.extend([SPECIAL_TOKENS.index(f"<|{role}|>"), *body])
            learn.extend([False, *([answer] * len(body))])

        if tokens > 80 and rng.random() < 0.4:
            add("system", self.profile["chat"]["system_prompt"], answer=False)
        single = rng.random() < 0.4
        while (room := tokens - len(ids) - 36) > 0:
            fill = 0
            if single:
                fill = room
            elif rng.random() < 0.6:
                fill = min(int(2 ** rng.uniform(3, 10)), room)
            before = len(ids)
            text, answer = self._turn(rng, fill, room + 30 - fill, mix)
            add("user", text, answer=False)
            add("assistant", answer, answer=True)
            if len(ids) > tokens:
                del ids[before:], learn[before:]
            elif single:
                break
        return ids, learn

"""One run of the battery: the server, the profile, and what has been seen so far."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tooling.gates.correctness.client import results
from tooling.gates.correctness.text import is_right

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tooling.gates.correctness.baseline import Baseline
    from tooling.gates.correctness.client import Client, Reply
    from tooling.gates.correctness.profile import Profile, Question, Tier


@dataclass
class Run:
    """What the checks of one run share.

    Attributes:
        client: The server under test.
        profile: What its model must be able to do.
        tier: How much is asked.
        data: Folder with question files, if one is mounted.
        baseline: Answers of earlier launches.
        engine: `sglang`, `vllm`, `llama.cpp`, or empty if it was not recognised.
        alone: First reply on each question, asked with nothing else in flight.
        right: Whether each question (of the profile and of data sets) was answered right.
        limitations: What could not be checked, one sentence each.
        say: Takes one line of progress.
    """

    client: Client
    profile: Profile
    tier: Tier
    data: Path | None = None
    baseline: Baseline | None = None
    engine: str = ""
    alone: dict[str, Reply] = field(default_factory=dict)
    right: dict[str, bool] = field(default_factory=dict)
    limitations: list[str] = field(default_factory=list)
    say: Callable[[str], None] = lambda _: None
    #: Numbers that no other run can have asked for.
    random: random.Random = field(default_factory=random.SystemRandom)

    def nonce(self, digits: int) -> str:
        """A fresh number of so many digits, none of them twice in a row."""
        number = ""
        while len(number) < digits:
            digit = self.random.choice("123456789")
            number += digit if digit != number[-1:] else ""
        return number

    def messages(self, text: str, *, system: bool = False) -> list[dict[str, Any]]:
        """A conversation that ends with the text, with the profile's exemplars before it."""
        chat = self.profile.chat
        conversation = (
            [{"role": "system", "content": chat.system_prompt}] if system and chat.system_prompt else []
        )
        for asked, answered in chat.exemplars:
            conversation += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return [*conversation, {"role": "user", "content": text}]

    def ask(self, question: Question, tag: str, *, before: str = "", stream: bool = False) -> Reply:
        """Ask one question, perhaps behind other text; every second question comes with the system prompt."""
        system = not before and self.profile.questions.index(question) % 2 == 1
        return self.client.chat(
            self.messages(f"{before}\n\n{question.ask}" if before else question.ask, system=system),
            f"{tag}@{question.id}",
            max_tokens=question.max_tokens,
            stream=stream,
            ascii_only=question.ask.isascii() and question.answer.isascii(),
        )

    def at_once(self, calls: Sequence[Callable[[], Reply]], concurrency: int) -> list[Reply]:
        """Make the calls with so many in flight; replies in the order of the calls."""
        with ThreadPoolExecutor(concurrency) as pool:
            return results([pool.submit(call) for call in calls])


def is_right_reply(question: Question, reply: Reply) -> bool:
    """Whether a reply gives the question's answer to the user (an answer filed as thinking does not)."""
    return reply.answer is not None and is_right(question, question.answer, reply.said)


def filler_words(filler: Sequence[str], start: int) -> Iterator[str]:
    """The words of the filler without end, from one of its sentences on."""
    while True:
        yield from filler[start % len(filler)].split()
        start += 1

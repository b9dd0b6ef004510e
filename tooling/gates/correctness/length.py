"""T1: questions behind filler, exact to the token, a planted number, and an answer of hundreds of tokens.

Kernels change their path at block sizes: prompts of 62 tokens were perfect and of 65 garbage on SM120 while
every smoke prompt had 18. No two prompts share a beginning, or a cached prefix would spare the server the very
prefill that is on trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tooling.gates.correctness.answers import Fault
from tooling.gates.correctness.run import filler_words, is_right_reply
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from tooling.gates.correctness.client import Reply
    from tooling.gates.correctness.profile import Question
    from tooling.gates.correctness.run import Run

#: Requests that may be spent on hitting one length; they are judged like all others.
TRIES = 12
#: Boundaries of blocks are asked for to the token; a longer rung may miss its length by the tolerance.
EXACT_UP_TO = 512
LONG_TOLERANCE = 0.01
#: Room for the answer in the context.
ROOM = 64
#: A needle's prompt may miss its length by this share.
NEEDLE_TOLERANCE = 0.05


@dataclass
class Fit:
    """How many tokens a prompt of so many words of filler has, learned from the server's own counts.

    Attributes:
        base: Tokens of a prompt without filler.
        per_word: Tokens of a word of filler.
    """

    base: float = 24.0
    per_word: float = 1.1

    def words_for(self, tokens: int) -> int:
        """Words that should give a prompt of so many tokens."""
        return max(0, round((tokens - self.base) / self.per_word))

    def learn(self, words: int, tokens: int) -> None:
        """Take in one observation."""
        if words >= 200:  # noqa: PLR2004  # long prompts tell the slope, short ones the base
            self.per_word = max(0.5, (tokens - self.base) / words)
        else:
            self.base = tokens - words * self.per_word


def lengthened(run: Run, words: int, start: int, *, stop: str = ".") -> str:
    """Filler of so many words from one of its sentences on, with a beginning that no other prompt has."""
    return " ".join([f"Page {run.nonce(4)}{stop}", *islice(filler_words(run.profile.filler, start), words)])


def ask_at(run: Run, question: Question, tokens: int, fit: Fit) -> Reply | None:
    """Ask a question in a prompt of so many tokens, as the server counts; None if that length cannot be hit.

    The number of words is searched between one that was too few and one that was too many. A word at the end of
    a sentence is two tokens with its full stop; where it goes past the length, the full stop of the beginning
    is left out, and where that does not help, the filler is begun at another sentence.
    """
    words, stop = fit.words_for(tokens), "."
    start = run.random.randrange(len(run.profile.filler))
    slack = 0 if tokens <= EXACT_UP_TO else round(tokens * LONG_TOLERANCE)
    few, many = -1, words + tokens
    for _ in range(TRIES):
        reply = run.ask(question, f"ladder-{tokens}", before=lengthened(run, words, start, stop=stop))
        if reply.answer is None:
            return reply
        counted = reply.answer.prompt_tokens
        if counted is None:
            return None
        if abs(counted - tokens) <= slack:
            return reply
        if counted > tokens and words == 0:
            fit.base = counted
            return None
        if counted == tokens + 1 and stop:
            stop = ""
            continue
        few, many = (words, many) if counted < tokens else (few, words)
        fit.learn(words, counted)
        words += round((tokens - counted) / fit.per_word)
        if not few < words < many:
            words = (few + many) // 2
        if many - few <= 1:
            words, start, few, many = max(0, words), start + 1, -1, words + tokens
        stop = "."
    return None


def check_ladder(run: Run) -> list[Check]:
    """One check a rung: the questions that are right when short must be right at every length."""
    ladder = run.profile.ladder
    if ladder is None:
        return []
    questions = [run.profile.question(identifier) for identifier in ladder.questions]
    fits = {question.id: Fit() for question in questions}
    checks: list[Check] = []
    for tokens in ladder.tokens:
        if tokens + ROOM > run.profile.context_tokens:
            run.limitations.append(f"the ladder's rung of {tokens} tokens is beyond the profile's context")
            continue
        if run.client.gone:
            break
        asked = questions if tokens <= ladder.all_up_to else questions[:1]
        rung = _rung(run, tokens, asked, fits)
        if all(fits[question.id].base > tokens for question in asked):
            run.limitations.append(
                f"the chat template alone is longer than the ladder's rung of {tokens} tokens"
            )
            continue
        checks.append(rung)
        run.say(f"ladder {tokens}: {checks[-1].seen}")
    return checks or [Check(name="ladder", verdict=Verdict.INCONCLUSIVE, seen="no rung could be tried")]


def _rung(run: Run, tokens: int, questions: list[Question], fits: dict[str, Fit]) -> Check:
    name = f"ladder-{tokens}"
    replies = [(question, ask_at(run, question, tokens, fits[question.id])) for question in questions]
    wrong = [
        f"{question.id}: want {question.answer[:40]!r}, got {reply.said[:60]!r}"
        for question, reply in replies
        if reply is not None and not is_right_reply(question, reply)
    ]
    missed = sum(reply is None for _, reply in replies)
    asked = len(replies) - missed
    share = (asked - len(wrong)) / asked if asked else 0.0
    ladder = run.profile.ladder
    bound = ladder.min_right if ladder else 1.0
    if wrong and share < bound:
        verdict, seen = (
            Verdict.FAIL,
            f"{asked - len(wrong)} of {asked} right in prompts of {tokens} tokens",
        )
    elif missed:
        verdict = Verdict.INCONCLUSIVE
        seen = f"{missed} of {len(replies)} prompts could not be made {tokens} tokens long"
    else:
        verdict, seen = (
            Verdict.PASS,
            f"{asked - len(wrong)} of {asked} right in prompts of {tokens} tokens",
        )
    return Check(
        name=name,
        verdict=verdict,
        seen=seen,
        value=round(share, 4),
        unit="share right",
        threshold=bound,
        details=tuple(wrong),
    )


def check_needle(run: Run) -> list[Check]:
    """A number planted at some depths of prompts of some lengths is found again; one check a length."""
    needle = run.profile.needle
    if needle is None:
        return []
    checks: list[Check] = []
    fit = Fit()
    for tokens in needle.tokens:
        if tokens + ROOM > run.profile.context_tokens:
            run.limitations.append(f"the needle in {tokens} tokens is beyond the profile's context")
            continue
        wrong: list[str] = []
        lengths: list[int] = []
        for depth in needle.depths:
            nonce = run.nonce(needle.digits)
            reply = _find(run, tokens, depth, nonce, fit)
            if reply.answer and reply.answer.prompt_tokens:
                lengths.append(reply.answer.prompt_tokens)
            if nonce not in reply.said:
                wrong.append(f"depth {depth:.0%}: want {nonce}, got {reply.said[:60]!r}")
        found = len(needle.depths) - len(wrong)
        share = found / len(needle.depths)
        short = any(length < tokens * (1 - NEEDLE_TOLERANCE) for length in lengths) or not lengths
        verdict = Verdict.PASS if share >= needle.min_right else Verdict.FAIL
        verdict = Verdict.INCONCLUSIVE if verdict is Verdict.PASS and short else verdict
        span = f"{min(lengths)} to {max(lengths)}" if lengths else "uncounted"
        checks.append(
            Check(
                name=f"needle-{tokens}",
                verdict=verdict,
                value=round(share, 4),
                unit="share found",
                seen=f"{found} of {len(needle.depths)} found in prompts of {span} tokens",
                threshold=needle.min_right,
                details=tuple(wrong),
            )
        )
        run.say(f"needle {tokens}: {checks[-1].seen}")
    return checks or [Check(name="needle", verdict=Verdict.INCONCLUSIVE, seen="no length could be tried")]


def _find(run: Run, tokens: int, depth: float, nonce: str, fit: Fit) -> Reply:
    """Ask for the needle in a prompt of about so many tokens, once more if the first missed the length."""
    needle = run.profile.needle
    assert needle is not None  # noqa: S101  # the caller looked
    reply = None
    for _ in range(2):
        words = fit.words_for(tokens)
        sentences = lengthened(run, words, run.random.randrange(len(run.profile.filler))).split(". ")
        place = max(1, round(depth * len(sentences)))
        text = (
            ". ".join(sentences[:place]).rstrip(".")
            + f". {needle.plant.format(nonce=nonce)} "
            + ". ".join(sentences[place:])
        )
        reply = run.client.chat(run.messages(f"{text.strip()}\n\n{needle.ask}"), f"needle-{tokens}@{depth:g}")
        counted = reply.answer.prompt_tokens if reply.answer else None
        if counted is None or abs(counted - tokens) <= NEEDLE_TOLERANCE * tokens:
            break
        fit.learn(words, counted)
    assert reply is not None  # noqa: S101  # the loop ran
    return reply


def check_long_answer(run: Run) -> Check | None:
    """An answer of hundreds of tokens: right to its end if it is known, language to its end if not."""
    wanted = run.profile.long_answer
    if wanted is None:
        return None
    name = "long-answer"
    question = run.profile.question(wanted.question) if wanted.question else None
    ask = question.ask if question else wanted.ask
    reply = run.client.chat(run.messages(ask), name, max_tokens=wanted.max_tokens)
    if reply.answer is None:
        return Check(name=name, verdict=Verdict.FAIL, seen=f"no answer: {reply.text[:120]}")
    tokens = reply.answer.completion_tokens or 0
    if question and not is_right_reply(question, reply):
        place = _first_difference(question.answer, reply.said)
        seen = f"the answer of {tokens} tokens leaves the right one at character {place}"
        details = (
            f"want ...{question.answer[max(0, place - 20) : place + 30]!r}",
            f"got  ...{reply.said[max(0, place - 20) : place + 30]!r}",
        )
        return Check(name=name, verdict=Verdict.FAIL, seen=seen, details=details)
    if bad := [f.seen for f in reply.findings if f.fault in {Fault.DEGENERATE, Fault.EMPTY}]:
        return Check(name=name, verdict=Verdict.FAIL, seen=bad[0])
    verdict = Verdict.PASS if tokens >= wanted.min_tokens else Verdict.INCONCLUSIVE
    seen = f"{tokens} tokens, {'right to the last' if question else 'none of it degenerate'}"
    return Check(
        name=name, verdict=verdict, seen=seen, value=tokens, unit="tokens", threshold=wanted.min_tokens
    )


def _first_difference(want: str, got: str) -> int:
    pairs = zip(want, got, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(want), len(got)))

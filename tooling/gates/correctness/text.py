"""Is a text language, or what a broken kernel prints? And is it the right answer? Pure functions on text."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.gates.correctness.profile import Dataset, Question

#: A character more often than this in a row is a run; rulers of tables and headings may be longer.
LONGEST_RUN = 8
LONGEST_RULER = 100
RULERS = frozenset("-=_*#.~ \t\n─━│")
#: The share of all 5-grams that the commonest may have, and from how many words on that is asked.
TOP_GRAM_SHARE = 0.25
GRAM = 5
WORDS_FOR_GRAMS = 24
#: The share of distinct words, and from how many words on that is asked.
DISTINCT_SHARE = 0.1
WORDS_FOR_DISTINCT = 40
#: Share of characters that print; U+FFFD and control characters do not.
PRINTABLE_SHARE = 0.97
#: Share of ASCII characters in an answer to a question that is ASCII throughout.
ASCII_SHARE = 0.85
#: A tail that repeats one short piece so often is a loop; the piece has at most so many characters.
LOOP_REPEATS = 8
LOOP_PERIOD = 60

_THINK_CLOSED = re.compile(r"<think>.*?</think>|^.*</think>", re.DOTALL)
_FENCE = re.compile(r"```[a-z]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def degeneration(text: str, *, ascii_only: bool = False) -> str:
    """What is wrong with a text as text, one phrase; empty if nothing is.

    Args:
        text: An answer, without the tokens' ids.
        ascii_only: Whether an answer in plain ASCII was asked for.
    """
    return (
        _runs(text)
        or _unprintable(text, ascii_only=ascii_only)
        or _looping_tail(text)
        or _repeated_words(text.split())
    )


def _runs(text: str) -> str:
    for run in re.finditer(r"(.)\1*", text, re.DOTALL):
        length, character = len(run[0]), run[1]
        # Digits are left to the loops below: 10^30 is written with thirty zeros.
        if length > (LONGEST_RULER if character in RULERS or character.isdigit() else LONGEST_RUN):
            return f"{character!r} {length} times in a row"
    return ""


def _unprintable(text: str, *, ascii_only: bool) -> str:
    if not text:
        return ""
    printable = sum(c.isprintable() or c in "\n\r\t" for c in text if c != "�") / len(text)
    if printable < PRINTABLE_SHARE:
        return f"only {printable:.0%} of the characters can be printed"
    ascii_share = sum(c.isascii() for c in text) / len(text)
    if ascii_only and ascii_share < ASCII_SHARE:
        return f"only {ascii_share:.0%} of the characters are ASCII"
    return ""


def _looping_tail(text: str) -> str:
    """The shortest piece of several characters that the end repeats at least LOOP_REPEATS times."""
    tail = text.rstrip()
    for period in range(1, min(LOOP_PERIOD, len(tail) // LOOP_REPEATS) + 1):
        piece = tail[-period:]
        if tail.endswith(piece * LOOP_REPEATS) and len(set(piece)) > 1 and not set(piece) <= RULERS:
            return f"the end repeats {piece!r}"
    return ""


def _repeated_words(words: list[str]) -> str:
    if len(words) >= WORDS_FOR_DISTINCT and len(set(words)) / len(words) < DISTINCT_SHARE:
        return f"{len(set(words))} different words in {len(words)}"
    if len(words) >= WORDS_FOR_GRAMS:
        grams = Counter(zip(*(words[i:] for i in range(GRAM)), strict=False))
        gram, count = grams.most_common(1)[0]
        if count / grams.total() > TOP_GRAM_SHARE:
            return f"{' '.join(gram)!r} is {count} of {grams.total()} 5-grams"
    return ""


def without_thinking(text: str) -> str:
    """The text after a `<think>` section, nothing if it is open; a template may leave only the end tag."""
    text = _THINK_CLOSED.sub("", text).strip()
    return "" if text.startswith("<think>") else text


def number_in(text: str) -> str | None:
    """The last number of a text, as a plain decimal without separators or trailing zeros."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    number = str(found[-1]).replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def json_in(text: str) -> object:
    """The JSON value that a text is, with or without a code fence around it.

    Raises:
        ValueError: The text is not one JSON value.
    """
    fenced = _FENCE.search(text)
    return json.loads(fenced[1] if fenced else text)


def is_right(question: Question | Dataset, answer: str, text: str) -> bool:
    """Whether a text gives the answer, by the question's way of matching."""
    text = without_thinking(text)
    match question.match:
        case "exact":
            return text == answer.strip()
        case "word":
            return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) is not None
        case "number":
            return number_in(text) is not None and number_in(text) == number_in(answer)
        case "json":
            try:
                return bool(json_in(text) == json.loads(answer))
            except ValueError:
                return False

"""Judge what somebody else recorded: answer bodies, launches, score tables. Pure functions on text.

A report from the field holds no server to ask. What it does hold is judged by the same rules as a live run.
"""

from __future__ import annotations

import json
import re

from tooling.errors import InputError
from tooling.gates.correctness.answers import NotAnAnswerError, judge_answer, parse_answer
from tooling.gates.correctness.statistics import compare_launches, compare_scores, judge_repeatability
from tooling.gates.records import Check, Verdict, worst

_RATIO = re.compile(r"\b(\d+)\s*/\s*(\d+)\b")
_COUNTS = re.compile(r"(?:(?<=[\s:,])\d+(?=[\s,]|$)[\s,]*)+$")
_ASKED = re.compile(r"\b(\d+)\s+(?:prompts|questions|requests|problems)\b", re.IGNORECASE)
_SCORE = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?\s*-\s*)?(\d+\.\d+|\d+(?:\.\d+)?\s*%)(?![\w.])")
_REFERENCE = re.compile(r"reference|baseline|expected|upstream|official", re.IGNORECASE)


def judge_bodies(text: str, *, want_logprobs: bool = False) -> list[Check]:
    """Judge the bodies of chat completions, one JSON object a line or one in all.

    Raises:
        InputError: No line is a body.
    """
    checks: list[Check] = []
    for number, body in enumerate(_json_objects(text), 1):
        try:
            findings = judge_answer(parse_answer(body), want_logprobs=want_logprobs)
        except NotAnAnswerError as error:
            checks.append(Check(name=f"answer-{number}", verdict=Verdict.FAIL, seen=str(error)))
            continue
        checks.append(
            Check(
                name=f"answer-{number}",
                verdict=worst(f.verdict for f in findings) if findings else Verdict.PASS,
                seen="; ".join(f"{f.fault}: {f.seen}" for f in findings)
                or "text for the user, nothing wrong with it",
                details=tuple(f.advice for f in findings if f.advice),
            )
        )
    if not checks:
        raise InputError("no line holds the JSON body of an answer", fix="give bodies as the server sent them")
    return checks


def _json_objects(text: str) -> list[object]:
    """All JSON objects: the text as a whole, or its lines."""
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found: list[object] = []
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def judge_launches(text: str, questions: int | None = None) -> list[Check]:
    """Judge counts of right answers, one row a side and one number a launch; the first row is the baseline.

    Rows are `label: 30/30 24/30` or `label 15 15 12`; the latter need the number of questions, given or named
    in the text (`24 prompts`).

    Raises:
        InputError: There is no row, or no number of questions.
    """
    rows: list[tuple[str, list[int], int]] = []
    for line in text.splitlines():
        ratios = _RATIO.findall(line)
        counts = _COUNTS.search(line)
        asked = questions
        if ratios:
            right, asked = [int(a) for a, _ in ratios], int(ratios[0][1])
            if len({b for _, b in ratios}) > 1:
                raise InputError(
                    "launches of one row were asked different numbers of questions", where=line.strip()
                )
            label = line[: _RATIO.search(line).start()]  # type: ignore[union-attr]  # it was found above
        elif counts and len(counts[0].split()) > 1:
            right, label = [int(n) for n in re.findall(r"\d+", counts[0])], line[: counts.start()]
        else:
            named = _ASKED.search(line)
            questions = questions or (int(named[1]) if named else None)
            continue
        if not asked:
            raise InputError("the number of questions is not told", where=line.strip(), fix="give --questions")
        rows.append((label.strip(" :") or f"row {len(rows) + 1}", right, asked))
    if not rows:
        raise InputError("no row of launches was found", fix="write rows such as `base: 30/30 24/30`")
    checks = [judge_repeatability(right, asked, f"repeat: {label}") for label, right, asked in rows]
    base_label, base, base_asked = rows[0]
    checks += [
        compare_launches(base, right, asked, f"{label} against {base_label}")
        for label, right, asked in rows[1:]
        if asked == base_asked
    ]
    return checks


def judge_scores(text: str, questions: int | None = None) -> list[Check]:
    """Judge a table of scores, a row a host, a column a suite; the reference is labelled so, or the last row.

    A range counts with its better end; numbers above 1 or with a percent sign are percentages.

    Raises:
        InputError: There are not two rows with the same number of scores.
    """
    rows: list[tuple[str, list[float]]] = []
    header: list[str] = []
    for line in text.splitlines():
        found = list(_SCORE.finditer(line))
        if found:
            rows.append((line[: found[0].start()].strip(" :"), [_share(match[1]) for match in found]))
        elif not rows:
            header = [name for name in re.split(r"\s{2,}|\t|\|", line.strip()) if name.strip()]
    labelled = [row for row in rows if _REFERENCE.search(row[0])]
    reference = labelled[0] if labelled else rows[-1] if rows else None
    ours = [row for row in rows if row is not reference]
    if reference is None or not ours or any(len(row[1]) != len(reference[1]) for row in ours):
        raise InputError(
            "no two rows with the same number of scores", fix="write a row for ours and one for the reference"
        )
    checks: list[Check] = []
    for label, scores in ours:
        names = (
            header[-len(scores) :] if len(header) >= len(scores) else [f"suite {i}" for i in range(len(scores))]
        )
        pairs = {
            f"{name} {label}".strip(): pair for name, *pair in zip(names, scores, reference[1], strict=True)
        }
        checks += compare_scores({name: (pair[0], pair[1]) for name, pair in pairs.items()}, questions)
    return checks


def _share(text: str) -> float:
    value = float(text.rstrip("% "))
    return value / 100 if "%" in text or value > 1 else value

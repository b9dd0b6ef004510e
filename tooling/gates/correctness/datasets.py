"""T1 and T2: question files that are mounted, in the size of GSM8K or MMLU."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from tooling.errors import InputError
from tooling.gates.correctness.profile import Tier
from tooling.gates.correctness.statistics import compare_paired, compare_score
from tooling.gates.correctness.text import is_right
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.gates.correctness.client import Reply
    from tooling.gates.correctness.profile import Dataset
    from tooling.gates.correctness.run import Run

#: Requests in flight.
CONCURRENCY = 64


def read_dataset(path: Path) -> list[tuple[str, str]]:
    """Questions and answers of a JSON-lines file.

    Raises:
        InputError: The file is missing, empty, or a line lacks `question` or `answer`.
    """
    rows: list[tuple[str, str]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError("the question file cannot be read", where=str(path), fix=str(error)) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append((str(row["question"]), str(row["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "a line of the question file lacks `question` and `answer`", where=f"{path}:{number}",
                fix='write one object a line: {"question": "...", "answer": "..."}',
            ) from error  # fmt: skip
    if not rows:
        raise InputError("the question file is empty", where=str(path), fix="mount the real one")
    return rows


def check_datasets(run: Run) -> list[Check]:
    """One check a question file of the tier."""
    checks: list[Check] = []
    for dataset in run.profile.datasets:
        if not run.tier.includes(dataset.tier):
            run.limitations.append(f"{dataset.name} belongs to tier {dataset.tier} and was not run")
        elif run.data is None:
            run.limitations.append(f"{dataset.name} was not run: no folder with question files was given")
        else:
            checks.append(_check(run, dataset, run.data))
    return checks


def _check(run: Run, dataset: Dataset, data: Path) -> Check:
    rows = read_dataset(data / dataset.file)
    shots = rows[len(rows) - dataset.shots :] if dataset.shots else []
    rows = rows[: len(rows) - len(shots)]
    if run.tier is not Tier.T2:
        rows = rows[: dataset.limit]
    name = f"dataset-{dataset.name}"
    if not rows:
        return Check(
            name=name, verdict=Verdict.FAIL, seen="the file holds no more questions than solved examples"
        )
    run.say(f"{dataset.name}: {len(rows)} questions, {len(shots)} shots")
    replies = run.at_once([partial(_ask, run, dataset, shots, question) for question, _ in rows], CONCURRENCY)
    now = {
        f"{dataset.name}-{index}": is_right(dataset, answer, reply.said)
        for index, ((_, answer), reply) in enumerate(zip(rows, replies, strict=True))
    }
    run.right.update(now)
    right = sum(now.values())
    launches = run.baseline.launches if run.baseline else ()
    known = next((launch.right for launch in launches if launch.right.keys() >= now.keys()), None)
    if known is not None:
        return compare_paired({key: known[key] for key in now}, now, name)
    if dataset.reference is not None:
        reference = dataset.reference
        check = compare_score(right / len(now), reference.score, len(now), reference.questions, name)
        return check.model_copy(update={"seen": f"{check.seen}; reference: {reference.source}"})
    return Check(
        name=name,
        verdict=Verdict.NO_BASELINE,
        value=round(right / len(now), 4),
        unit="share right",
        seen=f"{right} of {len(now)} right, and neither a baseline nor a reference to hold that against",
    )


def _ask(run: Run, dataset: Dataset, shots: list[tuple[str, str]], question: str) -> Reply:
    conversation: list[dict[str, Any]] = []
    for asked, answered in shots:
        conversation += [
            {"role": "user", "content": f"{dataset.instruction}{asked}"},
            {"role": "assistant", "content": answered},
        ]
    conversation.append({"role": "user", "content": f"{dataset.instruction}{question}"})
    return run.client.chat(
        conversation, dataset.name, max_tokens=dataset.max_tokens, ascii_only=question.isascii()
    )

"""Answers of earlier launches, kept so that a later one can be held against them question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from tooling.errors import InputError
from tooling.gates.correctness.statistics import compare_paired
from tooling.gates.records import Check, Verdict
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME = "paired-with-baseline"


class Launch(Record):
    """Right and wrong of one launch.

    Attributes:
        boot: What was launched, e.g. the container's id; for people.
        started: ISO 8601, UTC.
        right: Question -> answered right.
    """

    boot: str
    started: str
    right: dict[str, bool] = Field(min_length=1)


class Baseline(Record):
    """Launches that answered the same questions in the same way.

    Attributes:
        profile: Name of the model profile.
        profile_sha256: Hash of the profile; a baseline of other questions is none.
        launches: At least one.
    """

    profile: str
    profile_sha256: str
    launches: tuple[Launch, ...] = Field(min_length=1)


def load_baselines(paths: Sequence[Path]) -> Baseline | None:
    """Read baseline files and put their launches together; None if there are no files.

    Raises:
        InputError: A file is missing, is no baseline, or belongs to other questions than the first.
    """
    found: list[Baseline] = []
    for path in paths:
        try:
            found.append(Baseline.model_validate_json(path.read_bytes()))
        except OSError as error:
            raise InputError("the baseline cannot be read", where=str(path), fix=str(error)) from error
        except ValidationError as error:
            raise InputError(
                "this file is no correctness baseline", where=str(path),
                fix="write one with `blackwell-stacks correctness --write-baseline FILE`",
                details=[str(e["msg"]) for e in error.errors()][:5],
            ) from error  # fmt: skip
        if found[-1].profile_sha256 != found[0].profile_sha256:
            raise InputError(
                "the baselines were asked different questions",
                where=str(path),
                fix="use baselines of one profile",
            )
    if not found:
        return None
    return found[0].model_copy(update={"launches": tuple(launch for each in found for launch in each.launches)})


def compare_with_baseline(
    baseline: Baseline | None, profile_sha256: str, right: dict[str, bool]
) -> Check | None:
    """Hold one launch against the baseline's; None if there is none."""
    if baseline is None:
        return None
    if baseline.profile_sha256 != profile_sha256:
        return Check(
            name=NAME,
            verdict=Verdict.NO_BASELINE,
            seen=f"the baseline (profile {baseline.profile!r}) was asked other questions than this run",
        )
    launches = baseline.launches
    asked = set(right).intersection(*(launch.right for launch in launches))
    majority = {key: 2 * sum(launch.right[key] for launch in launches) > len(launches) for key in asked}
    check = compare_paired(majority, right, NAME)
    if check.verdict is Verdict.INCONCLUSIVE and len(launches) > 1:
        now, worst = sum(right[key] for key in asked), min(sum(la.right[k] for k in asked) for la in launches)
        if now >= worst:
            seen = f"{check.seen}; inside the spread of the {len(launches)} launches (worst {worst}, now {now})"
            return check.model_copy(update={"verdict": Verdict.PASS, "seen": seen})
    return check

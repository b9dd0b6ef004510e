"""Joins the gates that a scan found with what people found out about them."""

from __future__ import annotations

import itertools
import re
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from tooling.archgates.records import Hit, JudgedHit, Judgement, Judgements, OnSm120, Rule, RuleSet
from tooling.errors import CheckError, InputError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Reviews, one file a version of a package; beside them `rules/<package>.yaml`.
JUDGED_DIR = Path(__file__).resolve().parents[2] / "images" / "archgates"
#: A guard that is longer tells little of what it is for.
_GUARDED_LINES = 80
#: So far is looked behind a condition of Python, whose first line the gate stands on.
_NEXT_LINES = 12
_BRANCH = re.compile(r"\s*#\s*(elif|else|endif)")
#: The reviews are long; the loader in C reads them ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Document = TypeVar("_Document", Judgements, RuleSet)


class Review(Record):
    """What is known of one version of a package.

    Attributes:
        judgements: Its single judgements, and which rules hold with how many gates.
        rules: The rules that hold, in the order of the review.
    """

    judgements: Judgements
    rules: tuple[Rule, ...] = ()


def review_files(package: str, version: str, folder: Path = JUDGED_DIR) -> tuple[Path, Path]:
    """Where the review of a version is, and where the rules of its package are; neither need exist."""
    return folder / f"{package}-{version}.yaml", folder / "rules" / f"{package}.yaml"


def load_review(package: str, version: str, folder: Path = JUDGED_DIR) -> Review | None:
    """The review of one version; None where nobody reviewed it.

    Raises:
        InputError: A file is there and cannot be used, or the review names a rule that does not exist.
    """
    path, rules_path = review_files(package, version, folder)
    if not path.is_file():
        return None
    judgements = _read(path, Judgements)
    if (judgements.package, judgements.version) != (package, version):
        raise InputError(
            f"the file is for {judgements.package} {judgements.version}",
            where=str(path),
            fix="name the file <package>-<version>.yaml",
        )
    known = {rule.id: rule for rule in load_rules(package, folder)} if judgements.rules else {}
    if strange := [name for name in judgements.rules if name not in known]:
        raise InputError(
            "the review names rules that do not exist",
            where=str(path),
            details=strange,
            fix=f"see {rules_path}",
        )
    return Review(judgements=judgements, rules=tuple(known[name] for name in judgements.rules))


def load_rules(package: str, folder: Path = JUDGED_DIR) -> tuple[Rule, ...]:
    """The rules over a package.

    Raises:
        InputError: There are none, the file cannot be used, or a name stands twice.
    """
    path = folder / "rules" / f"{package}.yaml"
    if not path.is_file():
        raise InputError(f"no rules over {package}", where=str(path), fix="write them, or judge gate by gate")
    found = _read(path, RuleSet)
    names = [rule.id for rule in found.rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError("rules of the same name", where=str(path), details=twice, fix="rename one")
    if found.package != package:
        raise InputError(f"the rules are for {found.package}", where=str(path), fix="rename the file")
    return found.rules


def _read(path: Path, model: type[_Document]) -> _Document:
    try:
        return model.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))  # noqa: S506  # safe, both
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(
            "the judged gates cannot be read",
            where=str(path),
            details=str(error).splitlines()[:8],
            fix="correct the fields that are named",
        ) from error


def judge(
    hits: Iterable[Hit], review: Review | None, text_of: Callable[[str], str | None] | None = None
) -> list[JudgedHit]:
    """Put to every hit the first judgement that covers it, else the first rule; the rest stays unjudged.

    Args:
        hits: What was found.
        review: What is known; None for a version that nobody looked at.
        text_of: Gives the text of a scanned file, None for one that is not there. Rules need it.

    Raises:
        CheckError: A judgement or rule covers another number of hits than was reviewed, or a line that a rule
            rests on is not in the package: the code is not what was reviewed.
    """
    ordered = sorted(hits, key=lambda hit: (hit.path, hit.line, hit.pattern))
    if review is None:
        return [JudgedHit(hit=hit) for hit in ordered]
    texts = _Texts(text_of or (lambda _: None))
    single = dict.fromkeys(range(len(review.judgements.judged)), 0)
    ruled = {rule.id: 0 for rule in review.rules}
    answer = []
    for hit in ordered:
        index = next((i for i, one in enumerate(review.judgements.judged) if _covers(one, hit)), None)
        if index is not None:
            single[index] += 1
            one = review.judgements.judged[index]
            answer.append(JudgedHit(hit=hit, polarity=one.polarity, id=one.id, note=one.note, patch=one.patch))
            continue
        rule = next((rule for rule in review.rules if _applies(rule, hit, texts)), None)
        if rule is None:
            answer.append(JudgedHit(hit=hit))
            continue
        ruled[rule.id] += 1
        answer.append(JudgedHit(hit=hit, polarity=rule.polarity, id=rule.id, note=rule.note))
    wrong = [
        f"{one.id}: {one.path} covers {single[i]} gates, reviewed were {one.hits}"
        for i, one in enumerate(review.judgements.judged)
        if single[i] != one.hits
    ]
    wrong += [
        f"rule {name} covers {ruled[name]} gates, reviewed were {wanted}"
        for name, wanted in review.judgements.rules.items()
        if ruled[name] != wanted
    ]
    wrong += [line for rule in review.rules for line in _missing_evidence(rule, texts)]
    if wrong:
        raise CheckError(
            f"judged gates of {review.judgements.package} {review.judgements.version} do not match its code",
            details=wrong,
            fix="review these gates in the package and correct images/archgates",
        )
    return answer


class _Texts:
    """The files that rules look into, each read once."""

    def __init__(self, text_of: Callable[[str], str | None]) -> None:
        self._text_of = lru_cache(maxsize=16)(text_of)  # gates come file by file
        self._holds: dict[tuple[str, str], bool] = {}

    def holds(self, path: str, expression: str) -> bool:
        """Whether a file holds a regular expression."""
        key = (path, expression)
        if key not in self._holds:
            self._holds[key] = re.search(expression, self._text_of(path) or "") is not None
        return self._holds[key]

    def guarded(self, hit: Hit) -> str:
        """What stands behind a gate: of a preprocessor condition up to its next branch, else the next lines."""
        lines = (self._text_of(hit.path) or "").splitlines()[hit.line :]
        if hit.path.endswith(".py"):
            return "\n".join(lines[:_NEXT_LINES])
        return "\n".join(itertools.takewhile(lambda line: not _BRANCH.match(line), lines[:_GUARDED_LINES]))

    def has_line(self, path: str, contains: str) -> bool:
        """Whether a file has a line with this text, however it is indented."""
        lines = (self._text_of(path) or "").splitlines()
        return any(contains in " ".join(line.split()) for line in lines)


def _missing_evidence(rule: Rule, texts: _Texts) -> list[str]:
    return [
        f"rule {rule.id} rests on {one.contains!r}, which is not in {one.path}"
        for one in rule.evidence
        if not texts.has_line(one.path, one.contains)
    ]


def _covers(judgement: Judgement, hit: Hit) -> bool:
    return (
        judgement.path == hit.path
        and judgement.pattern in (None, hit.pattern)
        and judgement.symbol in ("", hit.symbol, hit.symbol.rpartition(".")[2])
        and judgement.contains in hit.code
    )


def _applies(rule: Rule, hit: Hit, texts: _Texts) -> bool:
    return (
        (not rule.patterns or hit.pattern in rule.patterns)
        and rule.on_sm120 in (None, OnSm120.of(hit))
        and any(fnmatchcase(hit.path, glob) for glob in rule.paths)
        and not any(fnmatchcase(hit.path, glob) for glob in rule.not_paths)
        and (not rule.symbol or re.search(rule.symbol, hit.symbol) is not None)
        and (not rule.code or re.search(rule.code, hit.code) is not None)
        and (not rule.not_code or re.search(rule.not_code, hit.code) is None)
        and (not rule.file_holds or texts.holds(hit.path, rule.file_holds))
        and (not rule.guarded_holds or re.search(rule.guarded_holds, texts.guarded(hit)) is not None)
    )

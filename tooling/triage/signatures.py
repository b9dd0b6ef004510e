"""Log signatures: data files of what engines print, what it means, what to do; checked when loaded."""

from __future__ import annotations

import re
import string
from functools import cache
from importlib import resources
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, ValidationError, model_validator

from tooling.errors import InputError
from tooling.records import Record
from tooling.triage.records import Effect, Outcome, Role

#: Longest part of a line that patterns look at, in characters.
MATCH_CHARS = 4096
#: A wildcard without a bound, or a repeated group, may need exponential time on a hostile line.
_UNBOUNDED = re.compile(r"(?<!\\)\.[*+]|(?<!\\)\)(?:[*+]|\{\d*,\})")
_BOUNDED_WILDCARD = re.compile(r"(?<!\\)\.\{\d*,(\d+)\}")
_MOST_WILDCARDS = 3
_LONGEST_WILDCARD = 400
#: Digits that a pattern means, and the counts of its quantifiers, which are none.
_NUMBERS = re.compile(r"\\d\{|\\d\\d|[0-9]")
_QUANTIFIER = re.compile(r"(?<!\\d)\{\d*,?\d*\}")
#: A pattern as short as this says too little about the line.
_LEAST_LITERALS = 8
#: Part of a template that needs a value.
_OPTIONAL = re.compile(r"<([^<>]{1,200})>")
#: Values that templates may use besides the named groups of a pattern.
_DERIVED = {"cuda_level": "cuda"}


class Signature(Record):
    """One thing that engines print.

    Attributes:
        id: Stable name, lower case with hyphens.
        source: The program that prints it, for people.
        engine: Only logs of this engine are held against it; empty for any.
        versions: PEP 440 specifier of the engine's version; empty for all.
        pattern: Regular expression, searched in a line without its time stamp and rank; or
        detector: name of a rule that needs more than one line (`tooling.triage.context`).
        role: What such a line is to a diagnosis.
        outcome: What it means for the boot.
        meaning: One sentence; `{group}` takes the value of a named group of the pattern, and a part in `<>` is
            left out if its groups took no part in the match.
        advice: What to do; same templates.
        feature: Feature concerned.
        effect: What the line proves about the feature.
        explains: Signatures that follow from this one; `*` is every symptom.
        hopeless: The engine neither goes on nor exits after this line, so waiting is useless.
        survives: An engine that gets ready after this line has got over it: then it is a warning only.
        gpu: Says something only where the boot has a GPU; left out of dry boots on a CPU.
        matches: Lines that must match.
        rejects: Lines that look alike and must not match.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    source: str
    engine: str = ""
    versions: str = ""
    pattern: str = ""
    detector: str = ""
    role: Role
    outcome: Outcome
    meaning: str = Field(min_length=10)
    advice: str = ""
    feature: str = ""
    effect: Effect = Effect.NONE
    explains: tuple[str, ...] = ()
    hopeless: bool = False
    survives: bool = True
    gpu: bool = False
    matches: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()

    @property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return _compiled(self.pattern)

    @property
    def reads_numbers(self) -> bool:
        """Whether the pattern tells one number from another, so that a line's shape does not decide it."""
        return bool(_NUMBERS.search(_QUANTIFIER.sub("", self.pattern)))

    def fits(self, engine: str, version: str) -> bool:
        """Whether logs of this engine and version are held against it; unknown ones are."""
        if self.engine and engine and engine != self.engine:
            return False
        if not (self.versions and self.engine and version and engine == self.engine):
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True

    @model_validator(mode="after")
    def _is_sound(self) -> Signature:
        if bool(self.pattern) is bool(self.detector):
            raise ValueError("needs either a pattern or a detector")
        if self.role in (Role.CAUSE, Role.SYMPTOM) and self.outcome is Outcome.OK:
            raise ValueError("a cause or a symptom cannot be OK")
        if self.outcome in (Outcome.FAIL, Outcome.REFUSE) and self.role is Role.CAUSE and not self.advice:
            raise ValueError("a cause that fails a boot needs advice")
        if bool(self.feature) is not bool(self.effect) and self.role is Role.EVIDENCE:
            raise ValueError("evidence names a feature and what it proves about it")
        try:
            SpecifierSet(self.versions)
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from error
        if self.pattern:
            self._pattern_is_sound()
        return self

    def _pattern_is_sound(self) -> None:
        try:
            regex = self.regex
        except re.error as error:
            raise ValueError(f"pattern does not compile: {error}") from error
        wildcards = [int(bound) for bound in _BOUNDED_WILDCARD.findall(self.pattern)]
        if (
            _UNBOUNDED.search(self.pattern)
            or len(wildcards) > _MOST_WILDCARDS
            or max(wildcards, default=0) > _LONGEST_WILDCARD
        ):
            raise ValueError(
                f"pattern may need too long on a hostile line: write .{{0,N}} with N <= {_LONGEST_WILDCARD}, "
                f"at most {_MOST_WILDCARDS} of them, and no repeated group"
            )
        if sum(map(str.isalpha, self.pattern)) < _LEAST_LITERALS:
            raise ValueError("pattern is too short to mean anything")
        if not self.matches:
            raise ValueError("needs an example line that matches")
        wrong = [line for line in self.matches if not regex.search(line)]
        wrong += [line for line in self.rejects if regex.search(line)]
        if wrong:
            raise ValueError(f"pattern is wrong on its own example: {wrong[0]!r}")
        known = set(regex.groupindex) | {
            derived for group, derived in _DERIVED.items() if group in regex.groupindex
        }
        used = {name for name in fields_of(self.meaning) | fields_of(self.advice) if name}
        if used - known:
            raise ValueError(f"the text uses {sorted(used - known)}, which the pattern does not capture")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def fields_of(template: str) -> set[str]:
    """Names of the fields in a template."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def fill(template: str, values: dict[str, str]) -> str:
    """Put the values of a match into a template.

    A part in `<>` is left out if none of its groups took part in the match.
    """
    level = values.get("cuda_level", "")
    if level.isdigit():
        # The driver counts 1000 for a major and 10 for a minor version.
        values = {**values, "cuda": f"{int(level) // 1000}.{int(level) % 1000 // 10}"}
    known = {name: values.get(name) or "" for name in fields_of(template)}

    def optional(part: re.Match[str]) -> str:
        return part[1] if any(known[name] for name in fields_of(part[1])) else ""

    return _OPTIONAL.sub(optional, template).format_map(known).strip()


def parse_signatures(text: str, where: str) -> tuple[Signature, ...]:
    """Read one data file.

    Raises:
        InputError: Not YAML, not a list, or an entry is unsound; the message names it.
    """
    try:
        entries: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {error}", where=where) from error
    if not isinstance(entries, list) or not entries:
        raise InputError("must be a list of signatures", where=where)
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(Signature.model_validate(entry))
        except ValidationError as error:
            name = entry.get("id", "?") if isinstance(entry, dict) else "?"
            raise InputError(
                f"signature {name!r} (number {number}) is unsound",
                where=where,
                details=[f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()],
            ) from error
    return tuple(found)


def check_set(signatures: tuple[Signature, ...]) -> None:
    """Refuse double ids and references to signatures that do not exist.

    Raises:
        InputError: Naming the signature.
    """
    ids = [signature.id for signature in signatures]
    double = sorted({name for name in ids if ids.count(name) > 1})
    if double:
        raise InputError(f"signature ids are used twice: {', '.join(double)}")
    for signature in signatures:
        unknown = set(signature.explains) - set(ids) - {"*"}
        if unknown:
            raise InputError(f"signature {signature.id!r} explains unknown {sorted(unknown)}")


@cache
def load_signatures() -> tuple[Signature, ...]:
    """All signatures that ship with the toolkit."""
    folder = resources.files("tooling.triage") / "data" / "signatures"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda f: f.name)
    found = tuple(
        signature for file in files for signature in parse_signatures(file.read_text(), where=file.name)
    )
    check_set(found)
    return found

"""What the scan finds and what people judged of it."""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from tooling.records import Record


class Pattern(StrEnum):
    """The forms in which a condition on the architecture is written."""

    ARCH_LIST = "arch-list"  # supported_major_versions=[9, 10]
    ARCH_LIST_BY_NAME = "arch-list-by-name"  # supported_major_versions=SUPPORTED
    ADMISSIBLE_ARCHS = "admissible-archs"  # admissible_archs = ["sm_100a"]
    CAPABILITY_DECORATOR = "capability-decorator"  # @supported_compute_capability([100, 103])
    SM90_HELPER = "sm90-helper"
    SM100_HELPER = "sm100-helper"
    SM90_OR_SM100 = "sm90-or-sm100"  # and nobody else
    BLACKWELL_HELPER = "blackwell-helper"
    SM12X_HELPER = "sm12x-helper"
    NOT_SM12X = "not-sm12x"
    CAPABILITY_EQUALITY = "capability-equality"  # major == 10, major not in (9, 10)
    CAPABILITY_LOWER_BOUND = "capability-lower-bound"  # major >= 10
    CAPABILITY_UPPER_BOUND = "capability-upper-bound"  # sm < 120
    CAPABILITY_KEYS = "capability-keys"  # {9: ..., 10: ...}
    ARCH_STRING_KEY = "arch-string-key"  # {"sm_100a": ...}
    ARCH_STRING = "arch-string"  # "100a"
    GENCODE_FLAG = "gencode-flag"  # "-gencode=arch=compute_100a,..."
    NVCC_FLAGS_CONSTANT = "nvcc-flags-constant"  # sm100a_nvcc_flags
    ARCH_BELOW = "cuda-arch-below"  # __CUDA_ARCH__ < 1200
    ARCH_EQUAL = "cuda-arch-equal"  # __CUDA_ARCH__ == 1000
    ARCH_AT_LEAST = "cuda-arch-at-least"  # __CUDA_ARCH__ >= 1000
    ARCH_FEATURE_MACRO = "cuda-arch-feature-macro"  # CUTLASS_ARCH_MMA_SM100_ENABLED
    HOST_CHECK = "host-check"  # ICHECK(major == 10)
    HOST_CONDITION = "host-condition"  # sm >= 100 && sm < 120


class Marker(StrEnum):
    """Instructions that say what hardware a file is for; counted, not listed."""

    TCGEN05 = "tcgen05"
    WGMMA = "wgmma"
    MULTIMEM = "multimem"


class Polarity(StrEnum):
    """What a gate does to SM120.

    CLOSED keeps it out of code that it could run; OPEN lets it into code that cannot run there; HARDWARE
    keeps it out rightly (tcgen05, wgmma, NVLink multicast); MISHANDLED admits it and treats it wrongly; RIGHT
    admits it or names it, as it should.
    """

    CLOSED = "closed"
    OPEN = "open"
    HARDWARE = "hardware"
    MISHANDLED = "mishandled"
    RIGHT = "right"
    UNJUDGED = "unjudged"


class Hit(Record):
    """One gate.

    Attributes:
        path: POSIX path below site-packages.
        line: From 1.
        pattern: Its form.
        symbol: Function or class around it, `` at module level or where it is not known.
        code: The line, white space folded, cut at 160 characters.
        sm120: The condition's value on SM120, where the scan can tell; None elsewhere.
    """

    path: str
    line: int
    pattern: Pattern
    symbol: str
    code: str
    sm120: bool | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays the same when lines move."""
        return (self.path, self.pattern, self.symbol, self.code)


class Judgement(Record):
    """What somebody found out about one gate or several alike.

    Attributes:
        id: Number in the review, e.g. `F1`.
        path: File below site-packages.
        pattern: Its form; None for any.
        symbol: Function around it; empty for any.
        contains: Text that the line holds; empty for any.
        polarity: The judgement.
        note: Why, one sentence.
        patch: Patch of this project that handles it, `<series>/<number>`.
        hits: How many hits it must cover, so that a new gate of the same look is not judged unseen.
    """

    id: str
    path: str
    pattern: Pattern | None = None
    symbol: str = ""
    contains: str = ""
    polarity: Polarity
    note: str = Field(min_length=1)
    patch: str = ""
    hits: int = Field(default=1, ge=1)


class OnSm120(StrEnum):
    """A condition's value on SM120, as the scan tells it."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, hit: Hit) -> OnSm120:
        """The value of one gate."""
        return {True: cls.TRUE, False: cls.FALSE, None: cls.UNKNOWN}[hit.sm120]


class Evidence(Record):
    """A line that must stand in the package for a rule to hold, e.g. the gate in front of the files it covers.

    Attributes:
        path: File below site-packages.
        contains: Text of one line of it, white space folded.
    """

    path: str
    contains: str = Field(min_length=3)


class Rule(Record):
    """A judgement of many gates of the same kind; every condition that is given must be met.

    Attributes:
        id: Its name, the same in every version it holds for.
        paths: Files that it is about; globs, in which `*` crosses folders.
        not_paths: Files of these that it is not about.
        patterns: Forms that it is about; empty for any.
        on_sm120: The condition's value on SM120 must be this; None for any.
        symbol: Regular expression that the names around the gate must hold; empty for any.
        code: Regular expression that the gate's line must hold; empty for any.
        not_code: Regular expression that the line must not hold; empty for none.
        file_holds: Regular expression that the gate's file must hold, e.g. an instruction; empty for any.
        guarded_holds: Regular expression that the lines behind the gate must hold: up to the next #elif, #else
            or #endif of a preprocessor condition, the next dozen in Python; empty for any.
        polarity: The judgement.
        note: Why.
        evidence: What keeps SM120 out, or lets it in; held against the package at every scan.
    """

    id: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    paths: tuple[str, ...] = Field(min_length=1)
    not_paths: tuple[str, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    on_sm120: OnSm120 | None = None
    symbol: str = ""
    code: str = ""
    not_code: str = ""
    file_holds: str = ""
    guarded_holds: str = ""
    polarity: Polarity
    note: str = Field(min_length=20)
    evidence: tuple[Evidence, ...] = Field(min_length=1)

    @field_validator("symbol", "code", "not_code", "file_holds", "guarded_holds")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return value

    @field_validator("polarity")
    @classmethod
    def _is_a_judgement(cls, value: Polarity) -> Polarity:
        if value is Polarity.UNJUDGED:
            raise ValueError("a rule judges; what nobody judged needs none")
        return value


class RuleSet(Record):
    """The rules over one package; which of them hold is said by the review of each version."""

    package: str
    rules: tuple[Rule, ...] = Field(min_length=1)


class Judgements(Record):
    """The review of one version of a package.

    Attributes:
        package: Distribution name.
        version: Its version.
        judged: Single gates; they come before the rules. In a file they stand under `files`, by path.
        rules: Rule -> how many gates it must cover, in the order in which they are tried.
    """

    package: str
    version: str
    judged: tuple[Judgement, ...] = ()
    rules: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _by_file(cls, data: Any) -> Any:
        """Take `files: {path: [judgement, ...]}` as judgements with that path."""
        if not isinstance(data, dict) or "files" not in data:
            return data
        rest = {name: value for name, value in data.items() if name != "files"}
        files = data["files"]
        if not isinstance(files, dict) or not all(isinstance(found, list) for found in files.values()):
            raise ValueError("files: a list of judgements under each path")
        if not all(isinstance(one, dict) for found in files.values() for one in found):
            raise ValueError("files: each judgement is a mapping")
        named = [{**one, "path": path} for path, found in files.items() for one in found]
        return {**rest, "judged": [*rest.get("judged", ()), *named]}

    @model_validator(mode="after")
    def _something(self) -> Judgements:
        if not self.judged and not self.rules:
            raise ValueError("a review judges something")
        return self


class JudgedHit(Record):
    """A gate with its judgement; without one it is UNJUDGED, never guessed."""

    hit: Hit
    polarity: Polarity = Polarity.UNJUDGED
    id: str = ""
    note: str = ""
    patch: str = ""


class Skipped(Record):
    """A tree that was not scanned."""

    path: str
    files: int
    reason: str


class PackageScan(Record):
    """The answer for one package.

    Attributes:
        package: Distribution name.
        version: Its version.
        files: How many files were scanned.
        gates: In the order of path and line.
        markers: Marker -> [lines, files].
        skipped: Trees left out, with the reason.
        unreadable: Files that could not be parsed, with the reason.
    """

    package: str
    version: str
    files: int
    gates: tuple[JudgedHit, ...]
    markers: dict[Marker, tuple[int, int]]
    skipped: tuple[Skipped, ...]
    unreadable: tuple[str, ...] = ()

    def counts(self) -> dict[Pattern, tuple[int, int]]:
        """Pattern -> (lines, files)."""
        lines: dict[Pattern, set[tuple[str, int]]] = {}
        for gate in self.gates:
            lines.setdefault(gate.hit.pattern, set()).add((gate.hit.path, gate.hit.line))
        return {
            pattern: (len(places), len({path for path, _ in places}))
            for pattern, places in sorted(lines.items(), key=lambda item: list(Pattern).index(item[0]))
        }

    def polarities(self) -> dict[Polarity, int]:
        """How many gates have each polarity; all of them are there, the unjudged last."""
        found = Counter(gate.polarity for gate in self.gates)
        return {polarity: found[polarity] for polarity in Polarity}

"""A build log: which features did the build leave out although it ended well?

Projects word it in their own ways, but a line that matters always says two things: that something is left
out, and that an architecture, compute capability or CUDA version is the reason. Both vocabularies are here, no
project is.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

_REASON = re.compile(
    r"""\barch(?:s|es|itectures?)?\b | \b(?:gpu|cuda)[ ]targets?\b | \bcompute[ _]cap | \bcapabilit
    | (?<![a-z0-9])(?:sm|compute)_?\d{2,3}[af]?(?![0-9]) | \bCUDA[ ](?:version|toolkit|\d) | \bnvcc\b""",
    re.IGNORECASE | re.VERBOSE,
)
#: `Not building X as ...`: the verb comes first.
_VERB_FIRST = re.compile(
    r"""\b(?:not | skip(?:ping|ped)? | disabl(?:e|ing|ed) | exclud(?:e|ing|ed) | omit(?:ting|ted)?
        | ignor(?:e|ing|ed) | drop(?:ping|ped)? | without | cannot | can't | won't | will[ ]not | unable[ ]to)
    (?:[ :]+(?:be[ ]+)?(?:build(?:ing)? | built | compil(?:e|ing|ed|ation) | generat(?:e|ing|ed)
        | includ(?:e|ing|ed) | enabl(?:e|ing|ed) | support(?:ing|ed)? | the | of | for)(?=[ :]))*
    [ :]+(?P<feature>\S.*?)
    (?=\s*(?:[,;:.(] | $
        | \b(?:as|because|since|due|for|on|when|requires?|needs?|no|not|is|are|unless|will|in)\b))""",
    re.IGNORECASE | re.VERBOSE,
)
#: `X will not be built because ...`: the subject comes first.
_SUBJECT_FIRST = re.compile(
    r"""(?P<feature>[^\s:\]][^:\]]*?)\s+(?:kernels?\s+ | support\s+)?
    (?:(?:will|would|can|could|does|do|is|are|was|were|has|have)(?:\s+been)?\s+)?
    (?: not(?:\s+be)?(?:\s+being)?\s+(?:built|compiled|supported|enabled|included|available|generated)
        | cannot\s+be\s+(?:built|compiled|enabled) | won't\s+be\s+(?:built|compiled)
        | (?:be\s+)?(?:skipped|disabled|excluded|omitted|unsupported|unavailable|dropped) )\b""",
    re.IGNORECASE | re.VERBOSE,
)
#: Words around a name that are not part of it.
_NOISE = re.compile(
    r"""^(?:-- | \[[^\]]*\] | CMake[ ]\w+:? | warning:? | note:? | info:? | status:? | message:? | \s)+
    | \b(?:kernels?|support|sources?)$""",
    re.IGNORECASE | re.VERBOSE,
)
_BUILDING = re.compile(r"\b(?:building|compiling|enabling|built|compiled)\b", re.IGNORECASE)
_LONGEST_LINE = 2000


class Skipped(NamedTuple):
    """A feature that the build left out.

    Attributes:
        feature: As the log names it.
        line_number: From 1.
        line: What the log says.
    """

    feature: str
    line_number: int
    line: str


def skipped_features(log: str) -> tuple[Skipped, ...]:
    """Every feature that a line of the log leaves out for the sake of an architecture, in order."""
    found = []
    lines = [line.strip()[:_LONGEST_LINE] for line in log.splitlines()]
    for number, (line, after) in enumerate(zip_longest(lines, lines[1:], fillvalue=""), 1):
        wrapped = not _REASON.search(line) and after[:1].islower()
        if not _REASON.search(f"{line} {after}" if wrapped else line):
            continue
        bare = _NOISE.sub("", line)
        match = _VERB_FIRST.match(bare) or _SUBJECT_FIRST.match(bare) or _VERB_FIRST.search(bare)
        feature = _NOISE.sub("", match["feature"]).strip(" '\"`.,:") if match else ""
        if feature:
            found.append(Skipped(feature, number, line))
    return tuple(found)


def _key(feature: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", feature.lower())


def check_build_log(log: str, needed: Iterable[str], expected: Iterable[str] = ()) -> tuple[Check, ...]:
    """Judge a build log.

    Args:
        log: Its text.
        needed: Names of the features that the stack needs, e.g. `NVFP4`; a line that leaves something out and
            names one, spelling aside, fails. None at all means that every such line fails.
        expected: Names of features that may be left out, e.g. those for another architecture.
    """
    if not log.strip():
        return (
            Check(name="build log", verdict=Verdict.FAIL, seen="the build log is empty: nothing was checked"),
        )
    needs, allowed = [_key(name) for name in needed], [_key(name) for name in expected]
    skipped = skipped_features(log)
    bad = [
        item
        for item in skipped
        if (not needs or any(need in _key(item.line) for need in needs))
        and not any(name in _key(item.feature) for name in allowed)
    ]
    checks = [
        Check(
            name="no needed feature was left out of the build",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            seen=f"left out: {', '.join(dict.fromkeys(item.feature for item in bad))}"
            if bad
            else f"{len(skipped)} features were left out, none that is needed",
            value=len(bad),
            threshold=0,
            details=tuple(f"line {item.line_number}: {item.line}" for item in bad or skipped),
        )
    ]
    checks.extend(_mentioned(log, need) for need in dict.fromkeys(needed))
    return tuple(checks)


def _mentioned(log: str, need: str) -> Check:
    """A needed feature that the log never names was not shown to be built."""
    lines = [line for line in log.splitlines() if _key(need) in _key(line)]
    built = [line for line in lines if _BUILDING.search(line) and not skipped_features(line)]
    return Check(
        name=f"the log says that {need} was built",
        verdict=Verdict.PASS if built else Verdict.FAIL if lines else Verdict.INCONCLUSIVE,
        seen=built[0].strip()[:_LONGEST_LINE]
        if built
        else "named, but never as built"
        if lines
        else "the log never names it: look for its symbols in the library",
    )

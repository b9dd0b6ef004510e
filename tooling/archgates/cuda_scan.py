"""Finds arch gates in CUDA and C++ source: preprocessor conditions are read as the preprocessor reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.archgates.records import Hit, Marker, Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A file without any of these has neither gate nor marker. Substrings are found faster than patterns.
_WORDS = (
    *(b"CUDA_ARCH", b"CUTLASS_ARCH_MMA_SM1", b"major", b"Major", b"tcgen05", b"wgmma", b"multimem"),
    *(
        b"sm_version",
        b"smVersion",
        b"mSM",
        b"kSM",
        b" sm ",
        b"(sm ",
        b"(SM ",
        b" SM ",
        b"arch ",
        b"arch)",
        b"arch(",
    ),
)
#: A line without any of these is not looked at.
_TRIGGER = re.compile(
    r"CUDA_ARCH|CUTLASS_ARCH_MMA_SM1|[mM]ajor|tcgen05|wgmma|multimem\.|sm_?[vV]ersion|SM|\bsm\b|arch\b|\bcc\b|_sm\b"
)
_SPLICE = "\x0b"
_MARKERS = {
    Marker.TCGEN05: re.compile(r"tcgen05"),
    Marker.WGMMA: re.compile(r"wgmma"),
    Marker.MULTIMEM: re.compile(r"multimem\."),
}
_DIRECTIVE = re.compile(r"\s*#\s*(if|elif|ifdef|ifndef|elifdef|elifndef)\b(.*)", re.DOTALL)
_FEATURE = re.compile(
    r"__CUDA_ARCH_FEAT_SM1\d\d\w*|CUTLASS_ARCH_MMA_SM1\d\d\w*|__CUDA_ARCH_(?:FAMILY_)?SPECIFIC__"
)
_ARCH = r"(?:__CUDA_ARCH__|CUDA_ARCH)"
_UPPER = re.compile(rf"{_ARCH}\s*\)?\s*<=?\s*\(?\s*1[0-2]\d\d")
_EQUAL = re.compile(rf"{_ARCH}\s*\)?\s*[!=]=\s*\(?\s*1[0-2]\d\d")
_LOWER = re.compile(rf"{_ARCH}\s*\)?\s*>=?\s*\(?\s*1[0-2]\d\d")
_CHECK = re.compile(
    r"(?:ICHECK|CHECK|ASSERT|HOST_ASSERT|REQUIRE)\w*\s*\(.*?\b(?:\w*major|\w*sm|\w*arch|cc\w*)\b[^;]*?"
    r"(?:[=!]=|,)\s*(?:9|1[0-2])(?:\d)?\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:\w+(?:\.|->))?(?:sm|SM|mSM|sm_?version|arch|\w*_?arch|\w*_sm|\w*major|cc)_?\s*(?:\(\s*\))?\s*"
    r"(?:[=!]=|>=?|<=?)\s*(?:kSM_?)?(?:90|10[0137]|110|12[01])[af]?\b"
)
_MAJOR_CONDITION = re.compile(r"\b\w*major_?\s*(?:\(\s*\))?\s*(?:[=!]=|>=?|<=?)\s*(?:9|1[0-2])\b")
#: The value of `__CUDA_ARCH__` when device code is compiled for SM120.
SM120 = 1200


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Give (line, text) of every line worth a look, without comments; lines spliced by a backslash are one."""
    bare = _without_comments(text).replace("\\\r\n", _SPLICE).replace("\\\n", _SPLICE)
    number, counted, end = 1, 0, -1
    for match in _TRIGGER.finditer(bare):
        if match.start() < end:
            continue
        start = bare.rfind("\n", 0, match.start()) + 1
        end = bare.find("\n", match.start())
        end = len(bare) if end < 0 else end
        number += bare.count("\n", counted, start) + bare.count(_SPLICE, counted, start)
        counted = start
        yield number, bare[start:end].replace(_SPLICE, " ")


_COMMENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


def _without_comments(text: str) -> str:
    """Blank comments and keep every line where it is; strings stay, since inline assembly is a string."""

    def keep(match: re.Match[str]) -> str:
        found = match.group()
        return "\n" * found.count("\n") or " " if found.startswith(("//", "/*")) else found

    return _COMMENT.sub(keep, text)


def scan_cuda(path: str, data: bytes) -> tuple[list[Hit], dict[Marker, int]]:
    """Find the gates of one file and count the lines that hold marker instructions."""
    markers: dict[Marker, int] = {}
    hits: list[Hit] = []
    if not any(word in data for word in _WORDS):
        return hits, markers
    for line, text in logical_lines(data.decode("utf-8", errors="replace")):
        for marker, expression in _MARKERS.items():
            if expression.search(text):
                markers[marker] = markers.get(marker, 0) + 1
        directive = _DIRECTIVE.match(text)
        found = _directive(directive[2]) if directive else _host(text)
        for pattern in found:
            value = admits(directive[1], directive[2], SM120) if directive else None
            code = " ".join(text.split())[:160]
            hits.append(Hit(path=path, line=line, pattern=pattern, symbol="", code=code, sm120=value))
    return hits, markers


def _directive(condition: str) -> Iterator[Pattern]:
    if _UPPER.search(condition):
        yield Pattern.ARCH_BELOW
    if _EQUAL.search(condition):
        yield Pattern.ARCH_EQUAL
    if _LOWER.search(condition):
        yield Pattern.ARCH_AT_LEAST
    if _FEATURE.search(condition):
        yield Pattern.ARCH_FEATURE_MACRO


def _host(text: str) -> Iterator[Pattern]:
    if _CHECK.search(text):
        yield Pattern.HOST_CHECK
    elif _CONDITION.search(text) or _MAJOR_CONDITION.search(text):
        yield Pattern.HOST_CONDITION


_TOKEN = re.compile(r"\s*(defined\s*\(\s*\w+\s*\)|defined\s+\w+|\w+|&&|\|\||[=!]=|[<>]=?|[!()])")


def admits(kind: str, condition: str, arch: int) -> bool | None:
    """The value of a preprocessor condition when device code is compiled for one architecture.

    Args:
        kind: `if`, `elif`, `ifdef` or `ifndef`.
        condition: What stands behind it, without comments.
        arch: The value of `__CUDA_ARCH__`, e.g. 1200.

    Returns:
        None where it hangs on other macros too, or is not understood.
    """
    if "def" in kind:
        known = condition.strip() == "__CUDA_ARCH__" or None
        return (not known if kind.endswith("ndef") else known) if known else None
    tokens = [token.strip() for token in _TOKEN.findall(condition)]
    if "".join(tokens).replace(" ", "") != "".join(condition.split()):
        return None
    value, rest = _or(tokens, arch)
    return value if not rest and (value is None or isinstance(value, bool)) else None


_Value = bool | int | None


def _or(tokens: list[str], arch: int) -> tuple[_Value, list[str]]:
    left, tokens = _and(tokens, arch)
    while tokens and tokens[0] == "||":
        right, tokens = _and(tokens[1:], arch)
        left = True if True in (left, right) else None if None in (left, right) else bool(left or right)
    return left, tokens


def _and(tokens: list[str], arch: int) -> tuple[_Value, list[str]]:
    left, tokens = _comparison(tokens, arch)
    while tokens and tokens[0] == "&&":
        right, tokens = _comparison(tokens[1:], arch)
        left = False if False in (left, right) else None if None in (left, right) else bool(left and right)
    return left, tokens


def _comparison(tokens: list[str], arch: int) -> tuple[_Value, list[str]]:
    left, tokens = _atom(tokens, arch)
    while tokens and tokens[0] in ("==", "!=", "<", "<=", ">", ">="):
        operator = tokens[0]
        right, tokens = _atom(tokens[1:], arch)
        if left is None or right is None:
            left = None
        else:
            left = {
                "==": left == right,
                "!=": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }[operator]
    return left, tokens


def _atom(tokens: list[str], arch: int) -> tuple[_Value, list[str]]:
    if not tokens:
        return None, []
    token, rest = tokens[0], tokens[1:]
    if token == "!":  # noqa: S105  # a token of C
        value, rest = _atom(rest, arch)
        return (None if value is None else not value), rest
    if token == "(":  # noqa: S105
        value, rest = _or(rest, arch)
        return value, rest[1:]
    if token.startswith("defined"):
        return (True if "__CUDA_ARCH__" in token else None), rest
    if token == "__CUDA_ARCH__":  # noqa: S105
        return arch, rest
    return (int(token) if token.isdecimal() else None), rest

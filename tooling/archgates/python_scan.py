"""Finds arch gates in Python source by its syntax tree: comments, imports and definitions do not count."""

from __future__ import annotations

import ast
import bisect
import re
from typing import TYPE_CHECKING, Any, ClassVar

from tooling.archgates.records import Hit, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A line with one of these holds a gate whatever else is on it. Substrings are found faster than patterns.
_TELLING = (
    *(b"supported_major_versions", b"admissible_archs", b"supported_compute_capability", b"arch=compute_"),
    *(b"is_sm9", b"is_sm1", b"is_blackwell", b"is_hopper", b"_nvcc_flags", b"sm_10", b"sm_11", b"sm_12"),
    *(b'"100', b"'100", b'"103', b"'103", b'"110', b"'110", b'"12', b"'12", b'"sm1', b"'sm1"),
)
#: A line with one of these may hold a gate, if a number that names an architecture is near.
_SUSPECT = (
    *(
        b"capabilit",
        b"major",
        b"device_sm",
        b"sm_version",
        b"sm_arch",
        b"get_sm",
        b"arch",
        b"_sm",
        b" sm",
        b"(sm",
        b"cc",
    ),
    *(b" 10:", b" 100:", b"{9:", b"{10:", b"{90:", b"{100:", b"CAPABILIT", b"MAJOR", b"_SM", b"_CC", b"_ARCH"),
)
_ARCH_NUMBER = re.compile(rb"> 8|\b(?:9|1[0-2]|90|10[0137]|110|12[01])\b")
#: Where a statement at module level begins, or goes on as another branch.
_TOP_LEVEL = re.compile(rb"^(?![ \t\r\n#)\]}])(?!(?:else|elif|except|finally)\b)", re.MULTILINE)
_SM90 = re.compile(r"_?is_sm90\w*|is_hopper\w*")
_SM100 = re.compile(r"_?is_sm1(?:00|03)\w*")
_SM12X = re.compile(r"_?is_sm12\w*")
_BLACKWELL = re.compile(r"_?is_blackwell\w*")
#: A helper that is true from an architecture on, e.g. `is_sm100_or_newer`.
_AND_LATER = re.compile(r"(?:or|and)_(?:newer|later|above|higher)|_plus")
_HELPERS = (
    (_SM90, Pattern.SM90_HELPER),
    (_SM100, Pattern.SM100_HELPER),
    (_BLACKWELL, Pattern.BLACKWELL_HELPER),
    (_SM12X, Pattern.SM12X_HELPER),
)
#: Names that hold a compute capability, as major (9), as number (90) or as pair.
_CAPABILITY = re.compile(
    r"(?:.*_)?(?:major|sm|cc|arch|capability|sm_?version|sm_?arch|sm_major|device_sm\w*|compute_capability"
    r"|get_(?:device_)?(?:sm|capability|compute_capability)\w*|capability_(?:major|int|tuple)|arch_\w*|cc_\w+)",
    re.IGNORECASE,
)
#: Names that look so and hold the version of something else.
_OTHER_VERSION = re.compile(
    r".*(?:torch|driver|python|triton|nccl|cuda_version|cudnn|toolkit|runtime).*", re.IGNORECASE
)
_MAJORS = frozenset(range(9, 13))
_NUMBERS = frozenset({90, 100, 101, 103, 107, 110, 120, 121})
_ARCH_STRING = re.compile(r"(?:sm_?|compute_)?1(?:0[0137]|10|2[01])[af]?")
_ARCH_STRING_PLAIN = re.compile(r"1\d\d")
_NVCC_CONSTANT = re.compile(r"sm\d+[af]?_nvcc_flags")
_LIST_KEYWORDS = {
    "supported_major_versions": Pattern.ARCH_LIST,
    "admissible_archs": Pattern.ADMISSIBLE_ARCHS,
}
#: The values that stand for SM120 in each way to write a capability.
_SM120_MAJOR, _SM120_NUMBER = 12, 120


def scan_python(path: str, data: bytes) -> list[Hit]:
    """Find the gates of one file.

    Only the statements at module level that hold a candidate line are parsed: parsing all of an engine takes
    minutes.

    Args:
        path: For the hits.
        data: The source.

    Raises:
        SyntaxError: Not valid Python.
        ValueError: Null bytes.
    """
    hits: list[Hit] = []
    for first_line, block, tree in _candidate_blocks(data):
        lines = block.decode("utf-8", errors="replace").splitlines()
        hits += _Scan(path, first_line, lines).run(tree)
    return hits


def _candidate_places(data: bytes) -> set[int]:
    """Offsets of the lines that may hold a gate; wrong in that direction only."""
    places = set()
    for words, telling in ((_TELLING, True), (_SUSPECT, False)):
        for word in words:
            at = data.find(word)
            while at >= 0:
                start = data.rfind(b"\n", 0, at) + 1
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                next_end = data.find(b"\n", end + 1)
                if telling or _ARCH_NUMBER.search(data, start, len(data) if next_end < 0 else next_end):
                    places.add(start)
                at = data.find(word, end)
    return places


def _candidate_blocks(data: bytes) -> list[tuple[int, bytes, ast.AST]]:
    """Statements at module level with a candidate in them: (line, source, tree); in doubt the whole file."""
    places = _candidate_places(data)
    if not places:
        return []
    starts = [match.start() for match in _TOP_LEVEL.finditer(data)] + [len(data)]
    chosen: dict[int, int] = {}
    for place in places:
        index = bisect.bisect_right(starts, place) - 1
        if index < 0 or index >= len(starts) - 1:
            continue  # comments before the first statement
        while index > 0 and data.startswith(b"@", starts[index - 1]):
            index -= 1  # decorators of what follows
        end = index + 1
        while end < len(starts) - 1 and data.startswith(b"@", starts[end - 1]):
            end += 1
        chosen[index] = end
    blocks: list[tuple[int, bytes, ast.AST]] = []
    for index, end in sorted(chosen.items()):
        start = starts[index]
        block = data[start : starts[end]]
        try:
            if data.count(b'"""', 0, start) % 2 or data.count(b"'''", 0, start) % 2:
                return [(1, data, ast.parse(data))]  # the block is the inside of a text
            blocks.append((data.count(b"\n", 0, start) + 1, block, ast.parse(block)))
        except SyntaxError:
            return [(1, data, ast.parse(data))]
    return blocks


class _Scan:
    """Walks one tree; `symbol` follows the walk."""

    def __init__(self, path: str, first_line: int, lines: list[str]) -> None:
        self.path = path
        self.first_line = first_line
        self.lines = lines
        self.symbol: list[str] = []
        self.hits: dict[tuple[int, Pattern], Hit] = {}

    def run(self, tree: ast.AST) -> list[Hit]:
        self._visit(tree)
        return sorted(self.hits.values(), key=lambda hit: (hit.line, hit.pattern))

    def _add(self, node: ast.AST, pattern: Pattern, sm120: bool | None = None) -> None:
        line: int = getattr(node, "lineno", 0)
        text = " ".join(self.lines[line - 1].split())[:160] if line <= len(self.lines) else ""
        hit = Hit(
            path=self.path,
            line=self.first_line + line - 1,
            pattern=pattern,
            symbol=".".join(self.symbol),
            code=text,
            sm120=sm120,
        )
        self.hits.setdefault((line, pattern), hit)

    def _visit(self, node: ast.AST) -> None:
        kind = type(node)
        if kind in _WITHOUT_GATES:
            return
        named = kind in _NAMED
        if named:
            self.symbol.append(node.name)  # type: ignore[attr-defined]
            for decorator in node.decorator_list:  # type: ignore[attr-defined]
                self._visit(decorator)  # it decides over what it decorates
        look = self.LOOK.get(kind)
        if look is not None:
            look(self, node)
        self._children(node, named)
        if named:
            self.symbol.pop()

    def _children(self, node: ast.AST, named: bool) -> None:
        for name in node._fields:
            if named and name == "decorator_list":
                continue
            child = getattr(node, name)
            if isinstance(child, ast.AST):
                self._visit(child)
            elif type(child) is list:
                for one in child:
                    if isinstance(one, ast.AST):
                        self._visit(one)

    def _not(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not) and any(_SM12X.fullmatch(name) for name in _names(node.operand)):
            self._add(node, Pattern.NOT_SM12X, sm120=False)

    def _assign(self, node: ast.Assign) -> None:
        if any(isinstance(one, ast.Name) and one.id == "admissible_archs" for one in node.targets):
            self._add(node, Pattern.ADMISSIBLE_ARCHS)

    def _name(self, node: ast.Name | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        name = node.id if isinstance(node, ast.Name) else node.attr
        if _NVCC_CONSTANT.fullmatch(name):
            self._add(node, Pattern.NVCC_FLAGS_CONSTANT)
        for expression, pattern in _HELPERS:
            if expression.fullmatch(name):
                admits = pattern in (Pattern.BLACKWELL_HELPER, Pattern.SM12X_HELPER)
                self._add(node, pattern, sm120=admits or bool(_AND_LATER.search(name)))

    def _call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            pattern = _LIST_KEYWORDS.get(keyword.arg or "")
            if pattern is Pattern.ARCH_LIST and not isinstance(keyword.value, (ast.List, ast.Tuple, ast.Set)):
                self._add(keyword.value, Pattern.ARCH_LIST_BY_NAME)
            elif pattern is not None:
                self._add(keyword.value, pattern, _holds_sm120(keyword.value))
        if node.args and _last_name(node.func) == "supported_compute_capability":
            self._add(node, Pattern.CAPABILITY_DECORATOR, _holds_sm120(node.args[0]))

    def _either(self, node: ast.BoolOp) -> None:
        """`sm90 or sm100` (and no third) is the idiom that forgets SM120."""
        names = set(_names(node))
        if isinstance(node.op, ast.Or) and all(
            any(one.fullmatch(name) for name in names) for one in (_SM90, _SM100)
        ):
            with_sm12x = any(_SM12X.fullmatch(name) or _BLACKWELL.fullmatch(name) for name in names)
            self._add(node, Pattern.SM90_OR_SM100, sm120=with_sm12x)

    def _compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Gt) and _is_capability(left) and _is_ada(right):
                self._add(node, Pattern.CAPABILITY_LOWER_BOUND, sm120=True)
            elif _is_capability(left) and (values := _values(right)):
                self._comparison(node, operator, values, flipped=False)
            elif _is_capability(right) and (values := _values(left)):
                self._comparison(node, operator, values, flipped=True)

    def _comparison(self, node: ast.AST, operator: ast.cmpop, values: list[int], *, flipped: bool) -> None:
        own = _SM120_MAJOR if max(values) <= _SM120_MAJOR else _SM120_NUMBER
        if isinstance(operator, (ast.Eq, ast.In)):
            self._add(node, Pattern.CAPABILITY_EQUALITY, own in values)
        elif isinstance(operator, (ast.NotEq, ast.NotIn)):
            self._add(node, Pattern.CAPABILITY_EQUALITY, own not in values)
        elif isinstance(operator, (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
            lower = isinstance(operator, (ast.Gt, ast.GtE)) is not flipped
            strict = isinstance(operator, (ast.Gt, ast.Lt))
            bound = values[0]
            if lower:
                self._add(node, Pattern.CAPABILITY_LOWER_BOUND, own > bound or (own == bound and not strict))
            else:
                self._add(node, Pattern.CAPABILITY_UPPER_BOUND, own < bound or (own == bound and not strict))

    def _dict(self, node: ast.Dict) -> None:
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        numbers = [key for key in keys if type(key) is int]
        if numbers and len(numbers) == len(node.keys) and {9, 10} <= set(numbers) <= set(range(5, 14)):
            self._add(node, Pattern.CAPABILITY_KEYS, _SM120_MAJOR in numbers)
        elif numbers and len(numbers) == len(node.keys) and {90, 100} <= set(numbers):
            self._add(node, Pattern.CAPABILITY_KEYS, _SM120_NUMBER in numbers)
        for key in node.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and _is_arch_string(key.value):
                self._add(key, Pattern.ARCH_STRING_KEY, "12" in key.value)

    def _string(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str):
            return
        if "arch=compute_" in text:
            self._add(node, Pattern.GENCODE_FLAG)
        elif _is_arch_string(text):
            self._add(node, Pattern.ARCH_STRING, "12" in text)

    LOOK: ClassVar[dict[type, Callable[[_Scan, Any], None]]] = {
        ast.Call: _call,
        ast.Compare: _compare,
        ast.BoolOp: _either,
        ast.UnaryOp: _not,
        ast.Name: _name,
        ast.Attribute: _name,
        ast.Dict: _dict,
        ast.Assign: _assign,
        ast.Constant: _string,
    }


_NAMED = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_WITHOUT_GATES = frozenset(
    {ast.Import, ast.ImportFrom, ast.Load, ast.Store, ast.Pass, ast.Global, ast.Nonlocal}
)


def _is_arch_string(text: str) -> bool:
    return bool(_ARCH_STRING.fullmatch(text)) and not _ARCH_STRING_PLAIN.fullmatch(text)


def _names(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_capability(node: ast.expr) -> bool:
    """Whether an expression gives a compute capability; the outermost name says what it is."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 1:
        return False  # the minor part
    while isinstance(node, (ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Tuple):  # (major, minor) >= (12, 0)
        return bool(node.elts) and _is_capability(node.elts[0])
    if isinstance(node, ast.BinOp):  # major * 10 + minor
        return _is_capability(node.left)
    if isinstance(node, ast.Attribute) and _OTHER_VERSION.fullmatch(_last_name(node.value)):
        return False  # torch_version.major
    name = _last_name(node)
    return bool(_CAPABILITY.fullmatch(name)) and not _OTHER_VERSION.fullmatch(name)


def _is_ada(node: ast.expr) -> bool:
    """The last architecture before SM90: `major > 8` means 9 and later."""
    return isinstance(node, ast.Constant) and node.value in (8, 89)


def _values(node: ast.expr) -> list[int]:
    """The architectures that an expression names: 10, 100, (10, 0), [9, 10], ((10, 0), (10, 3))."""
    if isinstance(node, ast.Constant):
        value = node.value
        return [value] if type(value) is int and value in (_MAJORS | _NUMBERS) else []
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)) or not node.elts:
        return []
    if all(isinstance(one, (ast.Tuple, ast.List)) for one in node.elts):
        return [value for one in node.elts for value in _values(one)[:1]]
    numbers = [one.value for one in node.elts if isinstance(one, ast.Constant) and type(one.value) is int]
    if len(numbers) != len(node.elts) or not set(numbers) & (_MAJORS | _NUMBERS):
        return []
    pair = len(numbers) == 2 and numbers[0] in _MAJORS and numbers[1] < 9  # noqa: PLR2004  # (major, minor)
    return numbers[:1] if pair else numbers


def _holds_sm120(node: ast.expr) -> bool | None:
    """Whether a list of architectures has SM120; None where it is not a literal."""
    if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return None
    values = [one.value for one in node.elts if isinstance(one, ast.Constant)]
    if len(values) != len(node.elts):
        return None
    return any(value in (_SM120_MAJOR, _SM120_NUMBER) or str(value).startswith("sm_120") for value in values)

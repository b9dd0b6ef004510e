"""Strict reading of JSON objects without a library: every field is known, typed, and named when it is wrong."""

from __future__ import annotations

import re
from typing import Any, Callable, Sequence, TypeVar, Union

from tooling.errors import InputError

_T = TypeVar("_T")
_MISSING: Any = object()


class Fields:
    """Reads the fields of one JSON object; `end` refuses what nobody read.

    Args:
        value: What should be an object.
        path: Where it stands in its document, for messages.
        source: What the document is, e.g. a file.
    """

    def __init__(self, value: Any, path: str = "", source: str = "request") -> None:
        self.path = path
        self.source = source
        if not isinstance(value, dict):
            raise self.error("", "is no object")
        self._left = dict(value)

    def error(self, name: str, message: str) -> InputError:
        """The refusal of a field."""
        where = ".".join(part for part in (self.path, name) if part) or "the document"
        return InputError(
            f"{where} {message}",
            where=self.source,
            fix="send a document as this version of the program reads it",
        )

    def _take(self, name: str, default: Any) -> Any:
        value = self._left.pop(name, default)
        if value is _MISSING:
            raise self.error(name, "is missing")
        return value

    def text(self, name: str, default: str = _MISSING, pattern: str = "") -> str:
        """A string that matches a pattern as a whole; the default need not."""
        value = self._take(name, default)
        if not isinstance(value, str) or "\0" in value:
            raise self.error(name, "is no text")
        if pattern and value != default and not re.fullmatch(pattern, value):
            raise self.error(name, f"is {value!r}, which does not match {pattern}")
        return value

    def integer(self, name: str, default: int = _MISSING, low: int = 0, high: int = 1 << 62) -> int:
        """A whole number within limits."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "is no whole number")
        if not low <= value <= high:
            raise self.error(name, f"is {value}, which is not within {low} and {high}")
        return value

    def seconds(self, name: str, default: float, low: float = 0.0) -> float:
        """A duration."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < 1e9:  # noqa: PLR2004
            raise self.error(name, f"is no number of seconds from {low:g} on")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "is neither true nor false")
        return value

    def texts(self, name: str, default: Sequence[str] = (), pattern: str = "") -> tuple[str, ...]:
        """A list of strings."""
        values = self._take(name, list(default))
        if not isinstance(values, (list, tuple)):
            raise self.error(name, "is no list")
        for position, value in enumerate(values):
            if not isinstance(value, str) or "\0" in value or (pattern and not re.fullmatch(pattern, value)):
                raise self.error(
                    f"{name}[{position}]", f"is {value!r}, which does not match {pattern or 'text'}"
                )
        return tuple(values)

    def table(self, name: str, pattern: str) -> dict[str, str]:
        """An object from names to strings."""
        values = self._take(name, {})
        if not isinstance(values, dict):
            raise self.error(name, "is no object")
        for key, value in values.items():
            if not re.fullmatch(pattern, key) or not isinstance(value, str) or "\0" in value:
                raise self.error(f"{name}.{key}", "is no text, or its name is not allowed")
        return dict(values)

    def one(self, name: str, read: Callable[[Fields], _T]) -> _T:
        """A required object."""
        return self._within(name, self._take(name, _MISSING), read)

    def maybe(self, name: str, read: Callable[[Fields], _T]) -> Union[_T, None]:
        """An object, or null."""
        value = self._take(name, None)
        return None if value is None else self._within(name, value, read)

    def many(self, name: str, read: Callable[[Fields], _T]) -> tuple[_T, ...]:
        """A list of objects."""
        values = self._take(name, [])
        if not isinstance(values, (list, tuple)):
            raise self.error(name, "is no list")
        return tuple(self._within(f"{name}[{number}]", value, read) for number, value in enumerate(values))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers from 0 on."""
        values = self._take(name, _MISSING)
        if not isinstance(values, (list, tuple)) or not all(type(one) is int and one >= 0 for one in values):
            raise self.error(name, "is no list of whole numbers")
        return tuple(values)

    def object(self, name: str) -> dict[str, Any]:
        """An object that is handed on as it is."""
        value = self._take(name, _MISSING)
        if not isinstance(value, dict):
            raise self.error(name, "is no object")
        return value

    def objects(self, name: str) -> tuple[dict[str, Any], ...]:
        """A list of objects that are handed on as they are."""
        values = self._take(name, [])
        if not isinstance(values, (list, tuple)) or not all(isinstance(value, dict) for value in values):
            raise self.error(name, "is no list of objects")
        return tuple(values)

    def _within(self, name: str, value: Any, read: Callable[[Fields], _T]) -> _T:
        inner = Fields(value, ".".join(part for part in (self.path, name) if part), self.source)
        made = read(inner)
        inner.end()
        return made

    def end(self) -> None:
        """Refuse fields that nobody read.

        Raises:
            InputError: There are some.
        """
        if self._left:
            names = ", ".join(sorted(self._left))
            raise self.error("", f"has unknown fields: {names}")

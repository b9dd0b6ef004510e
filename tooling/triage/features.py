"""Requested features against what really happens: the server's report, the log and the kernels that ran."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field, model_validator

from tooling.errors import InputError
from tooling.records import Record
from tooling.triage.records import Effect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tooling.triage.records import TriageReport


#: Names of templates run to thousands of characters.
_NAME_CHARS = 120


class FeatureState(StrEnum):
    """What became of a requested feature."""

    ACTIVE = "ACTIVE"
    DISABLED = "DISABLED"
    UNKNOWN = "UNKNOWN"


class Feature(Record):
    """How one feature is asked for and seen.

    Attributes:
        id: Name, the same as in signatures and stacks.
        arguments: Serve arguments that ask for it.
        off_values: Values of those arguments that do not ask for it.
        environment: Variables and the values of them that ask for it.
        reported: Key of the server's report on itself.
        off_reported: Values there that mean that it is off.
        on_reported: Values there that mean that it is on; any other than off if empty.
        same_value: The value there must be the one that was asked for.
        reported_proves: The value there is what is done, not merely what was asked for.
        kernels: Patterns of names of kernels that only it launches, or of runtime calls that only it makes.
        kernels_of: The same by the value asked for, where the feature is a choice.
    """

    id: str
    arguments: tuple[str, ...] = ()
    off_values: tuple[str, ...] = ()
    environment: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    reported: str = ""
    off_reported: tuple[Any, ...] = ()
    on_reported: tuple[Any, ...] = ()
    same_value: bool = False
    reported_proves: bool = False
    kernels: tuple[str, ...] = ()
    kernels_of: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_sound(self) -> Feature:
        for pattern in (*self.kernels, *(each for patterns in self.kernels_of.values() for each in patterns)):
            re.compile(pattern)
        if self.reported_proves and not self.reported:
            raise ValueError("a report that proves needs the key of the report")
        return self


class FeatureRow(Record):
    """One line of the table.

    Attributes:
        feature: Its id.
        requested: The argument or variable that asks for it, or `stack`.
        state: ACTIVE, DISABLED or UNKNOWN.
        reason: What this rests on.
        allowed: The stack says that it may be inactive.
        value: The value that was asked for; None for a switch.
    """

    feature: str
    requested: str
    state: FeatureState
    reason: str
    allowed: bool = False
    value: str | None = None


@cache
def load_features() -> tuple[Feature, ...]:
    """All features that the toolkit knows."""
    text = (resources.files("tooling.triage") / "data" / "features.yaml").read_text()
    return tuple(Feature.model_validate(entry) for entry in yaml.safe_load(text))


def split_arguments(arguments: Sequence[str]) -> dict[str, str | None]:
    """Serve arguments by name; a switch has the value None, of several the last counts."""
    found: dict[str, str | None] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("-") and not re.fullmatch(r"-\d[\d.]*", argument):
            name, sign, value = argument.partition("=")
            name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
            found[name] = value if sign else None
        elif name and found[name] is None:
            found[name] = argument
    return found


def requested_features(
    arguments: Sequence[str], environment: Mapping[str, str], *, also: Collection[str] = ()
) -> dict[str, tuple[str, str | None]]:
    """Features that a run asks for, with what asks for them and the value asked for.

    Args:
        arguments: Serve arguments.
        environment: Variables of the run.
        also: Features that the stack requires without an argument, e.g. those that are on by default.

    Raises:
        InputError: The stack names a feature that nobody knows.
    """
    given = split_arguments(arguments)
    found: dict[str, tuple[str, str | None]] = {}
    for feature in load_features():
        for name in feature.arguments:
            if name in given and given[name] not in feature.off_values:
                found[feature.id] = (name, given[name])
        for name, values in feature.environment.items():
            if environment.get(name) in values:
                found[feature.id] = (name, None)
    known = [feature.id for feature in load_features()]
    for name in also:
        if name not in known:
            raise InputError(f"unknown feature {name!r}", fix=f"known are: {', '.join(known)}")
        found.setdefault(name, ("stack", None))
    return found


def feature_table(
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    server_info: Mapping[str, Any] | None,
    report: TriageReport | None,
    kernels: Collection[str] | None = None,
    also: Collection[str] = (),
    allowed: Collection[str] = (),
) -> tuple[FeatureRow, ...]:
    """What became of every requested feature.

    In this order: a line that says that it is off, or a kernel trace without its kernels, disables it; its
    kernels, a line that shows its use, or a report that proves, make it active; otherwise nobody knows.

    Args:
        arguments: Serve arguments.
        environment: Variables of the run.
        server_info: The server's report on itself (`/server_info`), if it has one.
        report: Triage of the boot's log.
        kernels: Names of the kernels that ran under load, if they were traced; an empty collection is a trace
            in which nothing ran.
        also: Features that the stack requires without an argument.
        allowed: Features that may be inactive.
    """
    by_id = {feature.id: feature for feature in load_features()}
    rows = []
    for name, (source, value) in requested_features(arguments, environment, also=also).items():
        state, reason = _judge(by_id[name], value, server_info, report, kernels)
        rows.append(
            FeatureRow(
                feature=name,
                requested=source,
                state=state,
                reason=reason,
                allowed=name in allowed,
                value=value,
            )
        )
    return tuple(rows)


def _judge(
    feature: Feature,
    value: str | None,
    server_info: Mapping[str, Any] | None,
    report: TriageReport | None,
    kernels: Collection[str] | None,
) -> tuple[FeatureState, str]:
    """The first piece of evidence that decides, else the best that does not."""
    said = _said(feature, report)
    reported = _reported(feature, value, server_info)
    pieces = (
        said.get(Effect.DISABLED),
        _ran(feature, value, kernels),
        reported if reported is not None and reported[0] is FeatureState.DISABLED else None,
        said.get(Effect.ACTIVE),
        reported,
        said.get(Effect.PREPARED),
    )
    nothing = (FeatureState.UNKNOWN, "neither the log nor the server's report shows it")
    return next((piece for piece in pieces if piece is not None), nothing)


def _said(feature: Feature, report: TriageReport | None) -> dict[Effect, tuple[FeatureState, str]]:
    states = {
        Effect.DISABLED: (FeatureState.DISABLED, ""),
        Effect.ACTIVE: (FeatureState.ACTIVE, ""),
        Effect.PREPARED: (FeatureState.UNKNOWN, "set up, use not shown: "),
    }
    found: dict[Effect, tuple[FeatureState, str]] = {}
    for finding in report.findings if report is not None else ():
        if finding.feature == feature.id and finding.effect in states:
            state, prefix = states[finding.effect]
            found.setdefault(
                finding.effect, (state, f"{prefix}log line {finding.first_line}: {finding.meaning}")
            )
    return found


def kernel_patterns(feature: str, value: str | None) -> tuple[str, ...]:
    """Patterns of the kernels and calls of a feature with a value; empty when nobody knows any."""
    return next((_patterns(known, value) for known in load_features() if known.id == feature), ())


def _patterns(feature: Feature, value: str | None) -> tuple[str, ...]:
    return (*feature.kernels, *feature.kernels_of.get(value or "", ()))


def _matching(patterns: Collection[str], kernels: Collection[str]) -> str | None:
    return next((name for name in kernels if any(re.search(pattern, name) for pattern in patterns)), None)


def _ran(
    feature: Feature, value: str | None, kernels: Collection[str] | None
) -> tuple[FeatureState, str] | None:
    patterns = _patterns(feature, value)
    if kernels is None or not patterns:
        return None
    seen = _matching(patterns, kernels)
    if seen is not None:
        return FeatureState.ACTIVE, f"{_shortened(seen)} ran"
    instead = [
        f"{other}'s {_shortened(name)}"
        for other, theirs in feature.kernels_of.items()
        if other != value and (name := _matching(theirs, kernels)) is not None
    ]
    ran = f"; {', '.join(instead)} ran instead" if instead else ""
    return FeatureState.DISABLED, f"none of its kernels was among the {len(kernels)} names in the trace{ran}"


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}..."


def _reported(
    feature: Feature, value: str | None, server_info: Mapping[str, Any] | None
) -> tuple[FeatureState, str] | None:
    if not feature.reported or server_info is None or feature.reported not in server_info:
        return None
    seen = server_info[feature.reported]
    said = f"the server reports {feature.reported} = {seen!r}"
    # `1 in (True,)` holds in Python, and `None` must not meet `False`.
    if any(type(seen) is type(off) and seen == off for off in feature.off_reported):
        return FeatureState.DISABLED, said
    if feature.same_value and value is not None and str(seen).lower() != value.lower():
        return FeatureState.DISABLED, f"{said}, not {value}"
    if not feature.reported_proves:
        return FeatureState.UNKNOWN, f"{said}, which tells what was asked for, not what runs"
    return FeatureState.ACTIVE, said

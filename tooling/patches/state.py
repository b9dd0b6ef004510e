"""What each patch of a series is against a tree: to apply, applied, upstream already, or in need of work."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tooling.errors import InputError
from tooling.patches.apply import Content, Fit, locate
from tooling.patches.overlay import sha256
from tooling.patches.series import Selection, Switch, switched
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.patches.series import PatchFile, Series


class State(StrEnum):
    """State of a patch, or of one hunk of it."""

    APPLIES = "applies"
    APPLIED = "applied"
    UPSTREAM = "already upstream"
    PARTLY = "partly upstream"
    MOVED = "moved"
    CONFLICT = "conflicts"
    FILE_MISSING = "file missing"


#: What a person does next.
ADVICE = {
    State.APPLIES: "keep",
    State.APPLIED: "nothing to do",
    State.UPSTREAM: "drop",
    State.PARTLY: "rewrite without the hunks that are upstream",
    State.MOVED: "refresh: the lines are there, elsewhere",
    State.CONFLICT: "review: the code changed",
    State.FILE_MISSING: "review: the file is gone",
}


class PatchState(Record):
    """One row of the answer.

    Attributes:
        patch: Name of the patch.
        title: First line of its description.
        switch: Whether the selection uses it.
        state: Against this tree.
        advice: What to do.
        details: One line a hunk that does not simply apply.
    """

    patch: str
    title: str
    switch: Switch
    state: State
    advice: str
    details: tuple[str, ...] = ()


class SeriesState(Record):
    """The states of a whole series against one tree.

    Attributes:
        series: Name of the series.
        against: Package and version of the tree.
        patches: At least one.
    """

    series: str
    against: str
    patches: tuple[PatchState, ...]

    @property
    def usable(self) -> bool:
        """Whether every patch that is on applies or is applied."""
        return all(
            patch.state in (State.APPLIES, State.APPLIED) for patch in self.patches if patch.switch is Switch.ON
        )


def series_state(
    series: Series, version: str, read: Callable[[str], bytes | None], selection: Selection | None = None
) -> SeriesState:
    """Compare a series with a tree of any version of its package.

    Each patch is looked at by itself, over those before it that are on and fit.

    Args:
        series: The series.
        version: Version of the package in the tree.
        read: Gives the bytes of a file below site-packages, None where there is none.
        selection: Switches of a stack.

    Raises:
        InputError: The tree has none of the files of the series, so it holds another package.
    """
    paths = {diff.path for patch in series.patches for diff in patch.diffs if not diff.creates}
    contents = {path: Content.of(data) for path in sorted(paths) if (data := read(path)) is not None}
    if paths and not contents:
        raise InputError(
            f"the tree has no file that series {series.name} patches",
            fix="give the site-packages folder that holds the package",
        )
    own = version == series.version
    pristine = own and _as_shipped(series, contents)
    switches = switched(series, selection)
    rows = []
    for patch in series.patches:
        states, details = _hunk_states(patch, contents, read)
        state = _summary(states)
        if state is State.UPSTREAM and own and not pristine:
            state = State.APPLIED
        if (says := _dropped_by_header(patch, series, version)) and state is not State.UPSTREAM:
            state, details = State.UPSTREAM, (says, *details)
        if state is State.APPLIES and switches[patch.name] is Switch.ON:
            _advance(patch, contents)
        rows.append(
            PatchState(
                patch=patch.name,
                title=patch.header.title,
                switch=switches[patch.name],
                state=state,
                advice=ADVICE[state],
                details=details,
            )
        )
    return SeriesState(series=series.name, against=f"{series.package} {version}", patches=tuple(rows))


def _as_shipped(series: Series, contents: dict[str, Content]) -> bool:
    """Whether the tree's files are the recorded upstream ones, so that "present" can only mean upstream."""
    recorded = series.recorded.files if series.recorded else {}
    return bool(recorded) and all(
        path in recorded and sha256(content.data) == recorded[path].upstream
        for path, content in contents.items()
    )


def _hunk_states(
    patch: PatchFile, contents: dict[str, Content], read: Callable[[str], bytes | None]
) -> tuple[list[State], tuple[str, ...]]:
    states: list[State] = []
    details: list[str] = []
    names = {
        Fit.APPLIES: State.APPLIES,
        Fit.PRESENT: State.UPSTREAM,
        Fit.MOVED: State.MOVED,
        Fit.AMBIGUOUS: State.CONFLICT,
        Fit.CONFLICT: State.CONFLICT,
    }
    for diff in patch.diffs:
        if diff.creates:
            there = read(diff.path)
            new = "".join(diff.hunks[0].after).encode()
            states.append(
                State.APPLIES if there is None else State.UPSTREAM if there == new else State.CONFLICT
            )
            continue
        if diff.path not in contents:
            states.append(State.FILE_MISSING)
            details.append(f"{diff.path}: no such file")
            continue
        content = Content(list(contents[diff.path].lines), list(contents[diff.path].origin))
        drift = 0
        for hunk in diff.hunks:
            place = locate(content, hunk, drift)
            states.append(names[place.fit])
            if place.fit is Fit.APPLIES:
                content.replace(place.index, hunk)
                drift += len(hunk.after) - len(hunk.before)
            else:
                at = f" at line {place.index + 1}" if place.fit is not Fit.CONFLICT else ""
                details.append(f"{diff.path} hunk {hunk.number} (line {hunk.start}): {place.fit}{at}")
    return states, tuple(details)


def _summary(states: list[State]) -> State:
    kinds = set(states)
    if len(kinds) == 1:
        return states[0]
    for worst in (State.FILE_MISSING, State.CONFLICT):
        if worst in kinds:
            return worst
    return State.PARTLY if State.UPSTREAM in kinds else State.MOVED


def _dropped_by_header(patch: PatchFile, series: Series, version: str) -> str:
    """The first sentence of `Drop-When`, where it is a requirement that this version of the package meets."""
    rule = patch.header.drop_when.split(";")[0].splitlines()[0].strip()
    try:
        requirement = Requirement(rule)
    except InvalidRequirement:
        return ""
    same = canonicalize_name(requirement.name) == canonicalize_name(series.package)
    met = same and requirement.specifier.contains(version, prereleases=True)
    return f"Drop-When: {rule}" if met else ""


def _advance(patch: PatchFile, contents: dict[str, Content]) -> None:
    for diff in patch.diffs:
        if diff.creates:
            continue
        drift = 0
        for hunk in diff.hunks:
            contents[diff.path].replace(locate(contents[diff.path], hunk, drift).index, hunk)
            drift += len(hunk.after) - len(hunk.before)

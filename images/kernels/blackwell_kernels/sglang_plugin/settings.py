"""What the environment asks of the plugin; read once, refused when a value is not understood."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "BLACKWELL_KERNELS"
DISABLE = f"{PREFIX}_DISABLE"
STRICT = f"{PREFIX}_STRICT"
COUNTERS = f"{PREFIX}_COUNTERS"
#: Variables of the package itself: where its library is, and where measured plans are kept.
_OTHERS = frozenset({f"{PREFIX}_LIBRARY", f"{PREFIX}_CACHE"})

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class Feature(StrEnum):
    """What can be asked for, each by a variable of its own."""

    ALLREDUCE_RMSNORM = "allreduce-rmsnorm"
    ALLREDUCE = "allreduce"
    TOPK = "topk"
    INDEXER = "indexer"

    @property
    def variable(self) -> str:
        """The variable that asks for it, e.g. `BLACKWELL_KERNELS_ALLREDUCE_RMSNORM`."""
        return f"{PREFIX}_{self.name}"


class SettingsError(ValueError):
    """A variable has a value that nobody understands."""


@dataclass(frozen=True)
class Settings:
    """The plugin's switches.

    Attributes:
        requested: Features that are asked for.
        disabled: The kill switch is thrown: nothing is hooked, whatever is asked for.
        strict: What is asked for and cannot be had ends the process.
        counters: Folder for the counter files; None for no files.
    """

    requested: frozenset[Feature] = frozenset()
    disabled: bool = False
    strict: bool = False
    counters: Path | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The switches from environment variables.

    Args:
        environment: Usually `os.environ`.

    Raises:
        SettingsError: A switch is neither on nor off, or a variable of ours is unknown (a misspelt one would
            otherwise ask for nothing in silence).
    """
    known = {feature.variable for feature in Feature} | {DISABLE, STRICT, COUNTERS} | _OTHERS
    unknown = sorted(name for name in environment if name.startswith(PREFIX + "_") and name not in known)
    if unknown:
        raise SettingsError(f"unknown variable {unknown[0]}; known are {', '.join(sorted(known))}")
    folder = environment.get(COUNTERS, "")
    return Settings(
        requested=frozenset(feature for feature in Feature if _switch(environment, feature.variable)),
        disabled=_switch(environment, DISABLE),
        strict=_switch(environment, STRICT),
        counters=Path(folder) if folder else None,
    )


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise SettingsError(f"{name}={value!r} is neither on (1) nor off (0)")

"""A `docker run` taken apart, and written for a shell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tooling.errors import ToolkitError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Options of `docker run` that stand alone.
SWITCHES = frozenset({"--detach", "--init"})
#: Options that a service manager says in its own way.
MANAGED = frozenset({"--detach", "--name", "--restart"})
#: Seconds between two starts by a service manager, and how many it tries in how many seconds. A start that
#: fails for a reason fails again, and a host can be lost to trying for ever.
RESTART_S, STARTS, STARTS_WITHIN_S = 10, 3, 600


class RunCommand(Record):
    """A `docker run` taken apart.

    Attributes:
        options: Option and value in their order; switches have an empty value.
        image: By digest.
        words: After the image.
    """

    options: tuple[tuple[str, str], ...]
    image: str
    words: tuple[str, ...]


def take_apart(argv: Sequence[str]) -> RunCommand:
    """Options, image and words of a `docker run --detach ...`."""
    options: list[tuple[str, str]] = []
    rest = list(argv[2:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        options.append((option, "" if option in SWITCHES else rest.pop(0)))
    return RunCommand(options=tuple(options), image=rest[0], words=tuple(rest[1:]))


def shell_text(argv: Sequence[str]) -> str:
    """A command for a shell, an option a line."""
    command = take_apart(argv)
    lines = [
        option if option in SWITCHES else f"{option} {shlex.quote(value)}" for option, value in command.options
    ]
    tail = shlex.join([command.image, *command.words])
    return " \\\n  ".join([shlex.join(argv[:2]), *lines, tail]) + "\n"


def mount_fields(value: str) -> dict[str, str]:
    """Fields of a `--mount`; a bare `readonly` has an empty value."""
    return dict(part.partition("=")[::2] for part in value.split(","))


def device_ids(value: str) -> list[str]:
    """Ids of `--gpus '"device=0,1"'`, quotes included."""
    return value.strip('"').removeprefix("device=").split(",")


def unit_word(word: str) -> str:
    """A word as systemd reads it: `%`, `$` and the backslash are its own, quotes keep the rest together."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if text and not any(mark in text for mark in " \t\n;\"'"):
        return text
    text = text.replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{text}"'


def unknown_option(option: str, form: str) -> ToolkitError:
    """The refusal of an option that a form has no words for."""
    return ToolkitError(
        f"option {option} of the run contract cannot be written into {form}",
        fix="this is a fault of the toolkit: its table of options lacks this one",
    )

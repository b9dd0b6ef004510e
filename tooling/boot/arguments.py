"""Serve arguments, checked without booting: pairs that cannot work, and the engine's own parser."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from tooling.errors import CheckError, InputError
from tooling.records import Record
from tooling.runner import run
from tooling.triage.features import split_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Engines whose parser the in-image script knows.
PARSED_ENGINES = ("sglang",)
#: Importing an engine takes half a minute on a slow machine, and several on a busy one.
_PARSE_S = 900.0
_SCRIPT_TARGET = "/run/blackwell-stacks/parse_arguments.py"


class ArgumentRule(Record):
    """An argument (with one of some values) that needs another one."""

    engine: str
    argument: str
    values: tuple[str, ...] = ()
    needs: tuple[str, ...]
    why: str


class ArgumentReport(Record):
    """What an engine's parser makes of arguments.

    Attributes:
        version: Version of the engine in the image.
        unknown: Arguments that it does not know.
        refused: (argument, reason) of values that it does not take.
        abbreviated: (as written, as taken): a prefix that may mean something else in the next version.
        deprecated: (argument, the parser's own help).
        values: Values by destination that differ from the defaults.
        options: Options that the parser has; a parser of none checked nothing.
    """

    version: str
    unknown: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    abbreviated: tuple[tuple[str, str], ...]
    deprecated: tuple[tuple[str, str], ...]
    values: dict[str, Any]
    options: int

    @property
    def accepted(self) -> bool:
        """The parser takes every argument."""
        return self.options > 0 and not (self.unknown or self.refused)

    def problems(self) -> tuple[str, ...]:
        """One sentence an argument that is not accepted."""
        none = () if self.options else ("the engine's parser has no options: nothing was checked",)
        return (
            *none,
            *(f"{name} is unknown to this version" for name in self.unknown),
            *(f"{name}: {reason}" if name else reason for name, reason in self.refused),
        )

    def warnings(self) -> tuple[str, ...]:
        """One sentence an argument that is accepted today and had better be written otherwise."""
        return (
            *(f"{name} is an abbreviation, taken as {taken}" for name, taken in self.abbreviated),
            *(f"{name} is deprecated: {text}" for name, text in self.deprecated),
        )


@cache
def _rules() -> tuple[ArgumentRule, ...]:
    text = (resources.files("tooling.boot") / "argument_rules.yaml").read_text()
    return tuple(ArgumentRule.model_validate(entry) for entry in yaml.safe_load(text))


def check_pairs(engine: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Pairs of arguments that cannot work, one sentence each; to be refused before boot."""
    given = split_arguments(arguments)
    return tuple(
        f"{_written(rule.argument, given)} needs {rule.needs[0]}: {rule.why}"
        for rule in _rules()
        if rule.engine == engine
        and rule.argument in given
        and (not rule.values or given[rule.argument] in rule.values)
        and not any(name in given for name in rule.needs)
    )


def _written(name: str, given: Mapping[str, str | None]) -> str:
    value = given[name]
    return name if value is None else f"{name}={value}"


def parse_command(image: str, script: str, engine: str, arguments: Sequence[str], python: str) -> list[str]:
    """The `docker run` that holds arguments against the parser in an image: no network, nothing written."""
    task = json.dumps({"engine": engine, "arguments": list(arguments)})
    return [
        *("docker", "run", "--rm", "--init", "--network", "none"),
        *("--volume", f"{script}:{_SCRIPT_TARGET}:ro"),
        *("--entrypoint", python),
        *(image, _SCRIPT_TARGET, task),
    ]


def check_arguments(image: str, engine: str, arguments: Sequence[str], *, python: str) -> ArgumentReport:
    """Hold serve arguments against the engine's own parser, without booting it.

    Args:
        image: Image on this host.
        engine: Engine whose parser is asked.
        arguments: Arguments after the serve command itself.
        python: The image's interpreter.

    Raises:
        InputError: Nobody taught us this engine's parser.
        CheckError: The parser gave no result.
    """
    if engine not in PARSED_ENGINES:
        raise InputError(
            f"the argument parser of engine {engine!r} is not known",
            fix=f"known are: {', '.join(PARSED_ENGINES)}; boot the stack instead",
        )
    script = resources.files("tooling.boot") / "in_image" / "parse_arguments.py"
    with resources.as_file(script) as path:
        done = run(parse_command(image, str(path), engine, arguments, python), timeout_s=_PARSE_S)
    return read_result(done.stdout)


def read_result(output: str) -> ArgumentReport:
    """The result among what the engine printed.

    Raises:
        CheckError: There is none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("RESULT "):
            return ArgumentReport.model_validate_json(line.removeprefix("RESULT "))
    raise CheckError(
        "the engine's parser gave no result", details=output.splitlines()[-15:], fix="read its output"
    )


def changed_arguments(arguments: Sequence[str], server_info: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments whose value a running server reports differently, one sentence each.

    Switches must be reported true, values as they were written; what the server does not report is not judged.
    """
    changed = []
    for name, asked in split_arguments(arguments).items():
        key = name.lstrip("-").replace("-", "_")
        if key not in server_info:
            continue
        seen = server_info[key]
        if asked is None:
            same = seen is True
        elif isinstance(seen, bool) or seen is None or isinstance(seen, str):
            same = str(seen).lower() == asked.lower()
        elif isinstance(seen, (int, float)):
            same = _number(asked) == float(seen)
        else:
            continue
        if not same:
            changed.append(f"{name}{'' if asked is None else f'={asked}'} is reported as {seen!r}")
    return tuple(changed)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

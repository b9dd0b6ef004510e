"""Hold serve arguments against the engine's own parser, inside the image; arguments and result are JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import version
from typing import Any, NoReturn


class _RefusedError(Exception):
    """What argparse would have ended the process with."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


def sglang_parser() -> argparse.ArgumentParser:
    """The parser of `sglang serve`."""
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]  # noqa: PLC0415

    parser = _Parser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def check(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """Find every argument that the parser does not take as it is meant.

    Returns:
        `unknown` arguments, `refused` (argument, reason), `abbreviated` (as written, as taken), `deprecated`
        (argument, help) and `values` by destination.
    """
    options = {option: action for action in parser._actions for option in action.option_strings}  # noqa: SLF001
    refused: list[list[str]] = []
    rest = list(argv)
    while True:
        try:
            values, unknown = parser.parse_known_args(rest)
            break
        except _RefusedError as error:
            message = str(error)
            named = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL) or re.match(
                r"ambiguous option: (\S+) (could match .*)", message, re.DOTALL
            )
            names = named[1].partition("=")[0].split("/") if named else []
            shorter = without(rest, names)
            refused.append([names[-1] if names else "", named[2] if named else message])
            if shorter == rest:
                values, unknown = argparse.Namespace(), []
                break
            rest = shorter
    written = [argument.partition("=")[0] for argument in rest if argument.startswith("--")]
    abbreviated = []
    for name in written:
        full = sorted({option for option in options if option.startswith(name)})
        if name not in options and full:
            abbreviated.append([name, full[0]])
    deprecated = [
        [name, (options[name].help or "")[:300]]
        for name in written
        if name in options
        and (
            "deprecated" in (options[name].help or "").lower()[:40]
            or "Deprecated" in type(options[name]).__name__
        )
    ]
    return {
        "unknown": unknown,
        "refused": refused,
        "abbreviated": abbreviated,
        "deprecated": deprecated,
        "values": {key: value for key, value in vars(values).items() if value != parser.get_default(key)},
        "options": len(options),
    }


def without(argv: list[str], names: list[str]) -> list[str]:
    """The arguments without some options and their values."""
    kept: list[str] = []
    dropping = False
    for argument in argv:
        if argument.startswith("--") or argument in names:
            dropping = argument.partition("=")[0] in names
        if not dropping:
            kept.append(argument)
    return kept


def main() -> None:
    """Read `{"engine": ..., "arguments": [...]}` from the command line and print the result."""
    task = json.loads(sys.argv[1])
    parser = {"sglang": sglang_parser}[task["engine"]]()
    result = check(parser, task["arguments"])
    result["version"] = version(task["engine"])
    # Engines print banners on both streams; the caller looks for this line.
    print("RESULT " + json.dumps(result, default=str))  # noqa: T201


if __name__ == "__main__":
    main()

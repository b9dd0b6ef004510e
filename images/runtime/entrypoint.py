"""Entrypoint of every image: `serve [ARGUMENT ...]`, `selftest`, `probe`, or a program of the image.

`serve` runs the engine with the stack's arguments; an argument that is given again replaces the stack's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

STACK = Path("/opt/stack/share/stack.json")
RUNTIME = Path(__file__).resolve().parent


def serve_argv(serve: dict[str, Any], given: list[str]) -> list[str]:
    """The engine's command line.

    Args:
        serve: `command` and `arguments` of the stack.
        given: What the user wrote after `serve`.
    """
    replaced = {word[2:].split("=", 1)[0] for word in given if word.startswith("--")}
    argv = list(serve["command"])
    for name, value in serve["arguments"].items():
        if name in replaced or value is False:
            continue
        argv.append(f"--{name}")
        if value is not True:
            argv.append(str(value))
    return argv + given


def commands() -> list[str]:
    """Commands of this folder; a file with `_` in its name is a part of another one."""
    return sorted(
        path.stem for path in RUNTIME.glob("*.py") if "_" not in path.stem and path.stem != "entrypoint"
    )


def main() -> None:
    """Become the program that was asked for."""
    words = sys.argv[1:] or ["serve"]
    command, given = words[0], words[1:]
    if command == "serve":
        argv = serve_argv(json.loads(STACK.read_text(encoding="utf-8"))["serve"], given)
    elif command in commands():
        argv = [sys.executable, str(RUNTIME / f"{command}.py"), *given]
    else:
        argv = words
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        known = sorted(["serve", *commands()])
        print(f"error: no command {argv[0]!r} in this image; it has {', '.join(known)}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()

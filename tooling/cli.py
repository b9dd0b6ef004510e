"""The console script `blackwell-stacks`: a thin skin over the functions of the package."""

from __future__ import annotations

import signal
import sys

import typer
from rich.text import Text

from tooling import console
from tooling.commands import COMMAND_MODULES
from tooling.errors import ToolkitError

app = typer.Typer(
    name="blackwell-stacks",
    help="Build, prove, release, deploy and roll back NVIDIA Blackwell inference stacks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in COMMAND_MODULES:
    module.register(app)


_INTERRUPTED = 128 + signal.SIGINT
_terminated: list[int] = []


def main() -> None:
    """Run one command; a known failure is one message and an exit code, never a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(standalone_mode=True)
    except ToolkitError as error:
        if "--json" in sys.argv:
            console.print_json({"error": error.as_record()})
        console.err.print(Text("error: ", style="bold red"), Text(str(error)), sep="")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as ending:
        # The command-line library turns an interruption into its own exit code 130.
        if isinstance(ending, SystemExit) and ending.code != _INTERRUPTED:
            raise
        console.say("interrupted: what had been started was stopped, nothing was tagged")
        sys.exit(128 + signal.SIGTERM if _terminated else _INTERRUPTED)


def _terminate(number: int, _: object) -> None:
    """SIGTERM ends a command the same way as Ctrl-C: children stopped, nothing half-done."""
    _terminated.append(number)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

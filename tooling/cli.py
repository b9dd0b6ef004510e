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


def main() -> None:
    """Run one command; a known failure is one message and an exit code, never a traceback."""
    # A request to end is an interruption: what was started is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except ToolkitError as error:
        if "--json" in sys.argv:
            console.print_json({"error": error.as_record()})
        console.err.print(Text("error: ", style="bold red"), Text(str(error)), sep="")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.say("interrupted: what had been started was stopped, nothing was tagged")
        sys.exit(130)


if __name__ == "__main__":
    main()

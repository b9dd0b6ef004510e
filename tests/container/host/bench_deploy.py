"""Dark time and bytes of swaps, one table; run by `nox -s bench-deploy`.

Dark time is taken by a client that asks all the time, beside what the host program says of itself. Bytes are
those of the wire between registry and engine.
"""

from __future__ import annotations

import os
import platform
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from rich.table import Table

from tests.container.host.deck import RUNTIME, Deck, Image, Line, Run
from tests.container.host.private_engine import private_engine
from tests.container.host.wire import wire
from tests.container.release.registry_server import install_registry, serve
from tooling import console

_BALLAST = 64 << 20
_POLL_S = 0.02


class Client:
    """Asks all the time, and knows for how long nobody answered.

    Args:
        line: Who is asked.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.dark_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _ask(self) -> None:
        last = time.monotonic()
        while not self._end.is_set():
            if self._line.version():
                now = time.monotonic()
                self.dark_s = max(self.dark_s, now - last)
                last = now
            time.sleep(_POLL_S)


def main() -> None:
    """Deploy, patch, roll back, fail; print the table."""
    install_registry()
    table = Table("what", "dark s (client)", "drain s", "load s", "beyond s", "bytes moved", "whole s")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with (
            serve(folder / "registry") as registry,
            private_engine(*RUNTIME) as engine,
            wire(registry.host) as through,
        ):
            deck = Deck(engine, registry, folder)
            line = Line(deck, "bench", 0)
            base = deck.image("base", ballast=_BALLAST, load_s=1.0)
            patch = deck.image("patch", on=base, load_s=1.0)

            def row(what: str, run: Run, client: Client, moved: int, took: float) -> None:
                facts = run.result["result"]
                seconds = [client.dark_s, *(facts[f"{key}_seconds"] for key in ("drain", "load", "beyond"))]
                table.add_row(what, *(f"{one:.2f}" for one in seconds), f"{moved:,}", f"{took:.1f}")

            swaps: tuple[tuple[str, Image | None, dict[str, Any]], ...] = (
                ("first deploy", base, {}),
                ("patch-only upgrade", patch, {}),
                ("rollback", None, {}),
                ("release that crashes", patch, {"contract__environment": {"STAND_IN_FAULT": "crash"}}),
            )
            for what, image, changes in swaps:
                before, began = through.moved, time.monotonic()
                with Client(line) as client:
                    if image is None:
                        run = line.run("rollback")
                    else:
                        reference = f"{through.host}/{image.reference.partition('/')[2]}"
                        run = line.deploy(image, reference=reference, **changes)
                row(what, run, client, through.moved - before, time.monotonic() - began)
    console.out.print(table)
    machine = (
        f"{os.cpu_count()} CPU cores ({platform.machine()}, load average {os.getloadavg()[0]:.1f}), no GPU"
    )
    console.out.print(f"stand-in with 1 s of load on {machine}; {_BALLAST >> 20} MiB of image below the patch")


if __name__ == "__main__":
    main()

"""A seam for the crash tests: the program can be told to die at a step, as if the power had gone."""

from __future__ import annotations

import os

#: Environment variable with the name of one step; unset in every real use.
VARIABLE = "BLACKWELL_STACKS_FAULT"
_EXIT = 137

#: Steps of a swap, in their order.
SWAP = (
    "locked", "checked", "pulled", "recorded", "pinned", "created", "intent", "unguarded", "old-stopped",
    "gpus-free", "started", "ready", "answered", "committed", "guarded", "kept", "written", "settled",
)  # fmt: skip
#: Steps of the way back to the old generation.
REVERT = ("revert-begun", "revert-stopped", "revert-started", "revert-ready", "revert-written")
#: Steps of a reconciliation.
RECONCILE = ("reconcile-stopped", "reconcile-counted", "reconcile-started", "reconcile-ready")


def at(step: str) -> None:
    """Die here if the tests ask for it: no cleaning up, no flushing, no signal to children."""
    if os.environ.get(VARIABLE) == step:
        os._exit(_EXIT)

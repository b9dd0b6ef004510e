"""The edge to the person: text and progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

#: Progress, hints and errors. Never stdout, so that `--json | jq` works.
err = Console(stderr=True, highlight=False, soft_wrap=True)
#: Results.
out = Console(highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """Tell the person one thing that happens, on stderr."""
    err.print(message, markup=False)


def print_json(record: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """Write one JSON document to stdout."""
    if hasattr(record, "model_dump_json"):
        text = record.model_dump_json(indent=2)
    else:
        text = json.dumps(record, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

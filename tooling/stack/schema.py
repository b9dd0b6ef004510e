"""The JSON schema of a stack, generated from the model and committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tooling.stack.model import Stack

SCHEMA_PATH = Path("stacks/stack.schema.json")


def stack_schema() -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of `stacks/*.yaml`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A declared inference stack",
        **Stack.model_json_schema(),
    }

"""`python -m tooling.deploy.schema` writes the inventory's JSON schema; a test fails when it drifts."""

from __future__ import annotations

import json
from pathlib import Path

from tooling.deploy.inventory import SCHEMA_PATH, inventory_schema


def write(root: Path) -> None:
    """Write the schema into a checkout."""
    (root / SCHEMA_PATH).write_text(json.dumps(inventory_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2])

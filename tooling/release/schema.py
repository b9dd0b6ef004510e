"""JSON schemas of everything that is signed or written by hand; committed, and a test fails when they drift.

`python -m tooling.release.schema` writes them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.attest.gate import TestResult
from tooling.attest.inventory import Inventory
from tooling.attest.provenance import Provenance
from tooling.attest.sbom import PackageList
from tooling.attest.statement import Statement
from tooling.release.records import ChannelEntry, ReleaseFacts, ReleasePolicy, ReleaseRecord, Waiver

if TYPE_CHECKING:
    from pydantic import BaseModel

DIRECTORY = Path(__file__).parent / "schemas"

_MODELS: dict[str, type[BaseModel]] = {
    "statement": Statement,
    "gate": TestResult,
    "provenance": Provenance,
    "inventory": Inventory,
    "release": ReleaseRecord,
    "channel": ChannelEntry,
    "policy": ReleasePolicy,
    "facts": ReleaseFacts,
    "waiver": Waiver,
    "packages": PackageList,
}


def schemas() -> dict[str, dict[str, Any]]:
    """File name to JSON schema (draft 2020-12)."""
    return {
        f"{name}.schema.json": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **model.model_json_schema(by_alias=True),
        }
        for name, model in _MODELS.items()
    }


def render(schema: dict[str, Any]) -> str:
    """The text of a schema file."""
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def write(directory: Path = DIRECTORY) -> None:
    """Write every schema file."""
    directory.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (directory / name).write_text(render(schema))


if __name__ == "__main__":
    write()

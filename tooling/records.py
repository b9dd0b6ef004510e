"""What every record of the toolkit shares: strict fields, canonical bytes, one hash."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pathlib import Path


class Record(BaseModel):
    """A frozen piece of data; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no white space: equal data gives equal bytes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_of(value: Any) -> str:
    """Hex SHA-256 of bytes, or of the canonical JSON of anything else."""
    data = value if isinstance(value, bytes) else canonical_json(value)
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The present moment, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")

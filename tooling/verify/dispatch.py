"""Proof of dispatch of one boot: the counter files inside its container, before the load and after it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import NotFound

from tooling.errors import InputError
from tooling.gates.dispatch_counters import FEATURES, CounterFile, dispatch_gate, parse_counters
from tooling.gates.records import Evidence
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import docker

    from tooling.gates.records import GateResult

_PREFIX = "BLACKWELL_KERNELS_"
_FOLDER = f"{_PREFIX}COUNTERS"
_OFF = ("", "0", "false", "no", "off")


def requested_kernels(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Features of blackwell_kernels that an environment asks for.

    Raises:
        InputError: Something is asked for and no folder for the counter files is named.
    """
    found = tuple(
        feature
        for feature in FEATURES
        if environment.get(_PREFIX + feature.upper().replace("-", "_"), "").strip().lower() not in _OFF
    )
    if found and not environment.get(_FOLDER):
        raise InputError(
            f"{', '.join(found)} is asked for and {_FOLDER} is not set: nobody could prove that it ran",
            where="environment of the stack",
            fix=f"set {_FOLDER}, for example to /tmp/blackwell-kernels",
        )
    return found


def counters_of(client: docker.DockerClient, container: str, folder: str) -> dict[str, bytes]:
    """Counter files inside a running container, by name; none where the folder is not there."""
    try:
        pieces, _ = client.containers.get(container).get_archive(folder)
    except NotFound:
        return {}
    found = {}
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() and member.name.endswith(".json") else None
            if file is not None:
                found[Path(member.name).name] = file.read()
    return found


class DispatchProof:
    """The two readings of one boot."""

    def __init__(self, client: docker.DockerClient, container: str, environment: Mapping[str, str]) -> None:
        """Take the reading before the load.

        Args:
            client: The engine that runs the container.
            container: Id of the container.
            environment: Variables of the stack.

        Raises:
            InputError: The environment cannot be proved, or a file is not what the plugin writes.
        """
        self.requested = requested_kernels(environment)
        self._started = now()
        self._client, self._container = client, container
        self._folder = environment.get(_FOLDER, "")
        self._before = parse_counters(self._read())

    def _read(self) -> dict[str, bytes]:
        return counters_of(self._client, self._container, self._folder) if self.requested else {}

    def gates(self, info: Mapping[str, Any] | None, evidence: Path) -> tuple[GateResult, ...]:
        """The gate `dispatch` after the load; none where nothing is asked for.

        Args:
            info: The engine's report on itself, for the number of its ranks.
            evidence: Folder that the files are copied to.
        """
        if not self.requested:
            return ()
        after = self._read()
        kept = []
        for name, data in after.items():
            path = evidence / f"dispatch-{name}"
            path.write_bytes(data)
            kept.append(Evidence(path=str(path), sha256=sha256_of(data)))
        ranks = int((info or {}).get("tp_size") or 1)
        files: tuple[CounterFile, ...] = parse_counters(after)
        return (
            dispatch_gate(
                self.requested, self._before, files, ranks=ranks, started=self._started, evidence=kept
            ),
        )

"""Say why a build failed, from the last lines of the step that did."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tooling.errors import CheckError, CommandError, EngineError, InputError, ToolkitError
from tooling.patches.errors import Fault, PatchError
from tooling.patches.overlay import RECORD_MARK


class Cause(NamedTuple):
    """A cause that can be told from what the builder printed."""

    pattern: re.Pattern[str]
    error: type[ToolkitError]
    what: str
    fix: str


_CAUSES = tuple(
    Cause(re.compile(pattern, re.IGNORECASE), error, what, fix)
    for pattern, error, what, fix in (
        (
            r"^(finding|stale): ",
            CheckError,
            "the image's contents are not as they must be",
            "correct the stack or its lock; a harmless finding can be listed under allow, with its reason",
        ),
        (
            r"^kernel [a-z0-9_]+: ",
            CheckError,
            "a kernel module cannot be compiled into the image",
            "see its lines above; correct the sources or patches, or take the module out of the stack",
        ),
        (
            r"hash mismatch|do(es)? not match the (required )?hash",
            CheckError,
            "a wheel is not the file that the lock names: its hash differs",
            "do not install it; find out who changed the file, or lock again",
        ),
        (
            r"no space left on device",
            EngineError,
            "the disk of the Docker Engine is full",
            "free space (docker system df shows what the engine holds) and build again",
        ),
        (
            r"(certificate|tls).*(verify|unknown|invalid|error)|invalid peer certificate",
            CommandError,
            "the package index's certificate is not trusted inside the build",
            "set SSL_CERT_FILE to this machine's CA bundle",
        ),
        (
            r"no solution found|there (is|are) no versions? of|not found in the package registry|404 not found",
            CommandError,
            "a locked wheel is not in the index any more",
            "restore it from a mirror, or lock again",
        ),
        (
            r"dns error|failed to lookup address|network is unreachable|connection refused|tcp connect error",
            CommandError,
            "the package index cannot be reached from inside the build",
            "check this machine's network, proxy and index settings",
        ),
        (
            r"error reading from server|connection reset|cannot connect to the docker daemon|unexpected EOF",
            EngineError,
            "the Docker Engine went away during the build",
            "start it again and repeat the build: finished layers are kept",
        ),
    )
)
_SHOWN = 12


def explain(failed: list[str], last: list[str], log: str) -> ToolkitError:
    """The error for a failed build.

    Args:
        failed: Last lines of the step that failed.
        last: Last lines of the whole output, for a failure outside any step.
        log: Path of the full log.
    """
    lines = [line for line in (failed or last) if line.strip()]
    for line in lines:
        if line.startswith(RECORD_MARK):
            return _refused_patch(json.loads(line.removeprefix(RECORD_MARK)), log)
    for cause in _CAUSES:
        found = [line for line in lines if cause.pattern.search(line)]
        if found:
            # Findings are all worth reading; of other causes the line and what led to it.
            shown = found if cause.error is CheckError else lines
            return cause.error(cause.what, f"full log: {log}", cause.fix, shown[-_SHOWN * 2 :])
    return CommandError(
        "the build failed", f"full log: {log}", "read the last lines above and the log", lines[-_SHOWN:]
    )


def _refused_patch(record: dict[str, Any], log: str) -> ToolkitError:
    """The error of the step that applies patches, with its own names of patch, file and hunk."""
    details = [*record["details"], f"full log: {log}"]
    if "fault" not in record:
        return InputError(record["what"], record["where"], record["fix"], details)
    return PatchError(
        record["what"],
        record["where"],
        record["fix"],
        details,
        fault=Fault(record["fault"]),
        patch=record["patch"],
        file=record["file"],
        hunk=record["hunk"],
    )


def yanked_pins(lines: list[str]) -> list[str]:
    """Pins that the index has withdrawn, as uv warned while installing them."""
    pattern = re.compile(r"`(?P<pin>[^`]+)` is yanked")
    return sorted({match["pin"] for line in lines if (match := pattern.search(line))})

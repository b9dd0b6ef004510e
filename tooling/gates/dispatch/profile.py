"""Have an engine profile itself while it answers requests: SGLang's `/start_profile`, files on this host."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import requests

from tooling.errors import CheckError, InputError
from tooling.records import Record

if TYPE_CHECKING:
    from pathlib import Path

_TRACES = "*.trace.json*"
_POLL_S = 0.5
_NO_ANSWER = -1
_HTTP_LIMIT_S = 60.0


class ProfileLoad(Record):
    """What runs while the engine profiles itself.

    Attributes:
        requests: Requests, all in flight at once.
        output_tokens: Tokens of each answer.
        steps: Forward passes that are recorded; prefill and decode must both fall into them.
        activities: What the profiler records, in the engine's words.
        limit_s: Until the traces are there, seconds.
    """

    requests: int = 16
    output_tokens: int = 48
    steps: int = 32
    activities: tuple[str, ...] = ("CPU", "GPU")
    limit_s: float = 90.0


def profile_engine(url: str, model: str, folder: Path, load: ProfileLoad | None = None) -> tuple[Path, ...]:
    """Profile a running engine under a small load.

    Args:
        url: Base of its HTTP interface.
        model: Name that it serves.
        folder: Where the engine writes its traces: it must see this folder under this very path.
        load: What to ask of it.

    Returns:
        The traces, one or more a rank.

    Raises:
        InputError: The engine has no such endpoint.
        CheckError: It wrote no trace in time, or a request failed meanwhile.
    """
    plan = load or ProfileLoad()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob(_TRACES)):
        raise InputError("traces of another profile lie here", where=str(folder), fix="name an empty folder")
    body = {
        "output_dir": str(folder.resolve()),
        "num_steps": plan.steps,
        "activities": list(plan.activities),
        "with_stack": False,
        "record_shapes": False,
    }
    try:
        answer = requests.post(f"{url}/start_profile", json=body, timeout=_HTTP_LIMIT_S)
    except requests.RequestException as error:
        raise CheckError(
            f"the engine did not survive the start of its profiler: {type(error).__name__}",
            where=url,
            fix="read its log",
        ) from error
    if answer.status_code != requests.codes.ok:
        raise InputError(
            f"the engine cannot profile itself: HTTP {answer.status_code}",
            where=f"{url}/start_profile",
            fix="only SGLang with its profile endpoint is supported",
        )
    deadline = time.monotonic() + plan.limit_s
    with ThreadPoolExecutor(plan.requests) as pool:
        failed = [code for code in pool.map(lambda n: _ask(url, model, n, plan), range(plan.requests)) if code]
    if failed:
        raise CheckError(f"{len(failed)} of {plan.requests} requests failed while it profiled", where=url)
    return _written(folder, deadline, plan.limit_s)


def _ask(url: str, model: str, number: int, plan: ProfileLoad) -> int:
    """One request; 0, or the HTTP status of a failure, or -1 without an answer."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": f"Count from {number + 101} to {number + 160}.",
        "max_tokens": plan.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    try:
        answer = requests.post(f"{url}/v1/completions", json=body, timeout=plan.limit_s)
    except requests.RequestException:
        return _NO_ANSWER
    return 0 if answer.status_code == requests.codes.ok else answer.status_code


def _written(folder: Path, deadline: float, limit_s: float) -> tuple[Path, ...]:
    """The traces once they are there and grow no more."""
    sizes: dict[Path, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found = {path: path.stat().st_size for path in sorted(folder.glob(_TRACES))}
        if found and found == sizes and all(found.values()):
            return tuple(found)
        sizes = found
    raise CheckError(
        f"the engine wrote no trace within {limit_s:g} s",
        where=str(folder),
        fix="does the engine run on this host, and does it see this folder?",
        details=[f"{path.name}: {size} bytes" for path, size in sizes.items()],
    )

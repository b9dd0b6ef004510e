"""The mock server as a child process, and the truth it kept."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import requests

from tooling.errors import CommandError
from tooling.gates.throughput.mock import MockPlan, Truth
from tooling.gates.throughput.mock_wire import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that the interpreter gets to start and listen, on a busy machine.
START_LIMIT_S = 60.0
HTTP_LIMIT_S = 60.0


class MockHandle:
    """A running mock.

    Attributes:
        url: Its base URL on loopback.
        model: The model name it answers to.
    """

    model = MODEL

    def __init__(self, url: str) -> None:
        self.url = url

    def truth(self, skip: int = 0) -> list[Truth]:
        """What it really wrote, a record for each completed request in order, less the first `skip`."""
        answer = requests.get(f"{self.url}/truth", timeout=HTTP_LIMIT_S)
        answer.raise_for_status()
        body = answer.json()
        return [Truth(**dict(zip(body["fields"], row, strict=True))) for row in body["requests"][skip:]]


@contextmanager
def running_mock(plan: MockPlan) -> Iterator[MockHandle]:
    """Start a mock on a free loopback port and stop it at the end.

    Raises:
        CommandError: It did not come up.
    """
    argv = [sys.executable, "-m", "tooling.gates.throughput.mock", "--plan", plan.model_dump_json()]
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert child.stdout is not None  # noqa: S101  # PIPE was asked for
    try:
        ready, _, _ = select.select([child.stdout], [], [], START_LIMIT_S)
        line = child.stdout.readline() if ready else ""
        if not line:
            child.kill()
            _, errors = child.communicate()
            raise CommandError("the mock server did not start", details=errors.strip().splitlines()[-10:])
        yield MockHandle(f"http://127.0.0.1:{json.loads(line)['port']}")
    finally:
        if child.poll() is None:
            child.terminate()
        child.communicate()

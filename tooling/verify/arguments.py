"""The gate `arguments`: would the engine in the image take the serve arguments? Asked without a boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.boot.arguments import check_arguments
from tooling.dockerhost.containers import run_once
from tooling.gates.records import Check, GateResult, Verdict, worst
from tooling.records import now, sha256_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import docker

    from tooling.stack import Stack

_NO_MODEL = "/no/such/model"
_USAGE_ERROR = 2


def arguments_gate(
    client: docker.DockerClient, image: str, stack: Stack, arguments: Sequence[str]
) -> GateResult:
    """Hold the serve arguments of a stack against the engine's own parser inside the image.

    Args:
        client: The engine.
        image: Id of the image.
        stack: The stack.
        arguments: Its serve arguments, with those of this run.
    """
    started = now()
    if stack.engine.name == "sglang":
        check = _by_parser(image, stack, arguments)
    else:
        check = _by_refusal(client, image, stack, arguments)
    return GateResult(
        gate="arguments",
        verdict=worst([check.verdict]),
        checks=(check,),
        configuration_sha256=sha256_of(list(arguments)),
        started=started,
        ended=now(),
    )


def _by_parser(image: str, stack: Stack, arguments: Sequence[str]) -> Check:
    report = check_arguments(image, stack.engine.name, arguments, python="/opt/stack/bin/python")
    verdict = Verdict.PASS if report.accepted else Verdict.FAIL
    seen = f"{len(arguments)} words accepted by the engine's parser" if report.accepted else "refused"
    return Check(name="arguments", verdict=verdict, seen=seen, details=(*report.problems(), *report.warnings()))


def _by_refusal(client: docker.DockerClient, image: str, stack: Stack, arguments: Sequence[str]) -> Check:
    """A server that parses before it loads: with a model that is not there it must complain about that only."""
    # The last mention of an option counts.
    done = run_once(client, image, [*stack.serve.command, *arguments, "--model-path", _NO_MODEL])
    accepted = done.exit_code not in {0, _USAGE_ERROR} and _NO_MODEL in done.stderr
    seen = f"{len(arguments)} words accepted by the server's parser" if accepted else "refused"
    details = () if accepted else tuple(done.stderr.splitlines()[-3:])
    return Check(
        name="arguments", verdict=Verdict.PASS if accepted else Verdict.FAIL, seen=seen, details=details
    )

"""The boots of one verification: the candidate alone, or candidate and baseline by turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tooling import console
from tooling.boot import boot
from tooling.gates.records import Verdict
from tooling.gates.throughput.regression import boot_of, judge_again
from tooling.gates.verdict import boot_order
from tooling.triage.features import feature_table
from tooling.triage.gate import triage_gate
from tooling.verify.boots import answers_of, load_gates, own_kits, server_info, still_answers
from tooling.verify.dispatch import DispatchProof

if TYPE_CHECKING:
    from collections.abc import Sequence

    import docker

    from tooling.boot import BootFacts, Endpoint
    from tooling.gates.records import Evidence, GateResult
    from tooling.gates.throughput.plan import Throughput
    from tooling.gates.verdict import Boot
    from tooling.stack import Stack
    from tooling.verify.boots import Setup, Task


class Session(NamedTuple):
    """What all boots of a verification share.

    Attributes:
        client: The engine.
        stack: The stack of the candidate.
        device: `cpu` or `gpu`.
        setup: How both sides are booted.
        arguments: Serve arguments.
        task: What the gates are told.
        started: Start of the verification.
    """

    client: docker.DockerClient
    stack: Stack
    device: str
    setup: Setup
    arguments: Sequence[str]
    task: Task
    started: str

    def start(self, image: str) -> Endpoint:
        """Boot an image and wait until it answers."""
        return boot(
            image,
            self.setup.contract,
            evidence=self.task.evidence,
            stack=self.stack.name,
            engine=self.stack.engine.name,
            version=self.stack.engine.version,
            device=self.device,
        )


@dataclass
class Seen:
    """What the boots showed, in their order.

    Attributes:
        boots: Of the candidate.
        baseline_boots: Of the image that it is compared with.
        gates: Results on the candidate; the last one is its throughput.
        runs: Measurements of the candidate.
        limitations: What the baseline's boots leave in doubt.
    """

    boots: list[BootFacts] = field(default_factory=list)
    baseline_boots: list[BootFacts] = field(default_factory=list)
    gates: list[GateResult] = field(default_factory=list)
    runs: list[Throughput] = field(default_factory=list)
    limitations: list[str] = field(default_factory=list)

    @property
    def throughput(self) -> GateResult:
        """The throughput of the last boot of the candidate, judged with all boots."""
        return self.gates[-1]


def run_boots(session: Session, *, candidate: str, baseline: str, boots: int) -> Seen:
    """Boot by turns and run the gates.

    Args:
        session: What all boots share.
        candidate: Image id.
        baseline: Image id of the baseline; empty for none.
        boots: How often each is booted.

    Raises:
        BootError: An image did not get ready; its log is kept.
    """
    seen = Seen()
    order = boot_order(boots) if baseline else "B" * boots
    results: list[GateResult] = []
    unsound: list[str] = []
    for number, side in enumerate(order, start=1):
        if len(order) > 1:
            console.say(f"boot {number} of {len(order)}: {'baseline' if side == 'A' else 'candidate'}")
        if side == "A":
            unsound += _boot_baseline(session, baseline, seen)
        else:
            results.append(_boot_candidate(session, candidate, seen))
    # Of an earlier boot only a failure is news; the last one's result sees the values of all.
    seen.gates += [result for result in results[:-1] if result.verdict is Verdict.FAIL]
    last = results[-1]
    if baseline:
        last = judge_again(
            last,
            seen.runs[-1],
            boot_id=seen.boots[-1].boot_id,
            fresh_baseline=session.task.before,
            earlier_boots={name: values[:-1] for name, values in session.task.earlier.items()},
            broken=unsound,
        )
    seen.gates.append(last)
    return seen


def _boot_candidate(session: Session, image: str, seen: Seen) -> GateResult:
    """One boot of the candidate through all gates; returns its throughput."""
    task = session.task
    with session.start(image) as endpoint:
        proof = DispatchProof(session.client, endpoint.facts.container_id, session.stack.environment)
        correctness, throughput, measured = load_gates(endpoint, task)
        # An engine that is gone can be asked nothing more; that it is gone is in the record.
        more: list[GateResult] = []
        info = None
        if still_answers(throughput):
            more += own_kits(session.client, endpoint, task, session.stack, session.setup.contract.port)
            info = server_info(endpoint.url)
            more += proof.gates(info, task.evidence)
        # Read before the stop that we ask for: what comes after it is not the engine's doing.
        report = endpoint.report()
    features = feature_table(
        arguments=session.arguments,
        environment=session.stack.environment,
        server_info=info,
        report=report,
    )
    triage = triage_gate(
        report,
        features,
        started=session.started,
        evidence=kept(endpoint),
        limitations=session.setup.limitations,
    )
    seen.gates += [correctness, *more, triage]
    seen.boots.append(endpoint.facts)
    seen.runs.append(measured)
    _remember(task.earlier, measured, endpoint)
    return throughput


def _boot_baseline(session: Session, image: str, seen: Seen) -> list[str]:
    """One boot of the baseline: its figures, its answers, and what makes them useless for a comparison."""
    task = session.task
    # Held against nothing: it is the measure.
    alone = task._replace(baselines=None, earlier={}, before={}, answers=[])
    with session.start(image) as endpoint:
        correctness, throughput, measured = load_gates(endpoint, alone)
    seen.baseline_boots.append(endpoint.facts)
    task.answers.extend(answers_of(endpoint, task))
    _remember(task.before, measured, endpoint)
    if correctness.verdict is not Verdict.PASS:
        wrong = ", ".join(check.name for check in correctness.checks if check.verdict is not Verdict.PASS)
        found = f"{correctness.verdict} in correctness ({wrong})"
        seen.limitations.append(f"the baseline itself is {found}, boot {endpoint.facts.boot_id}")
    return [
        f"the baseline's boot {endpoint.facts.boot_id}: {check.name}: {check.seen}"
        for check in throughput.checks
        if check.verdict in {Verdict.FAIL, Verdict.INCONCLUSIVE}
    ]


def _remember(values: dict[str, list[Boot]], measured: Throughput, endpoint: Endpoint) -> None:
    for metric, value in boot_of(measured, endpoint.facts.boot_id).items():
        values.setdefault(metric, []).append(value)


def kept(endpoint: Endpoint) -> tuple[Evidence, ...]:
    """The log of a boot that is over, as evidence."""
    return (endpoint.evidence,) if endpoint.evidence else ()

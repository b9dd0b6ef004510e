"""The correctness gate: the battery of a tier against one running server, as one record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.gates.correctness.baseline import Baseline, Launch, compare_with_baseline
from tooling.gates.correctness.basics import check_answers, check_echo, check_model, check_repeat, check_stream
from tooling.gates.correctness.client import Client, Endpoint
from tooling.gates.correctness.datasets import check_datasets
from tooling.gates.correctness.drift import check_prefill_decode
from tooling.gates.correctness.format import check_json_schema, check_tool_call
from tooling.gates.correctness.length import check_ladder, check_long_answer, check_needle
from tooling.gates.correctness.load import check_load, check_soak
from tooling.gates.correctness.overall import check_overall
from tooling.gates.correctness.profile import Profile, Tier
from tooling.gates.correctness.run import Run
from tooling.gates.correctness.speculation import check_acceptance
from tooling.gates.records import Check, Evidence, GateResult, Verdict, worst
from tooling.records import now, sha256_of, sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GATE = "correctness"
#: Files that a run leaves in its evidence folder.
EXCHANGES = "correctness-exchanges.jsonl"
ANSWERS = "correctness-answers.json"

Found = Check | list[Check] | None
BATTERY: tuple[tuple[Tier, Callable[[Run], Found]], ...] = (
    (Tier.T0, check_echo),
    (Tier.T0, check_answers),
    (Tier.T0, check_repeat),
    (Tier.T0, check_stream),
    (Tier.T1, check_long_answer),
    (Tier.T1, check_ladder),
    (Tier.T1, check_needle),
    (Tier.T1, check_load),
    (Tier.T1, check_prefill_decode),
    (Tier.T1, check_json_schema),
    (Tier.T1, check_tool_call),
    (Tier.T1, check_acceptance),
    (Tier.T1, check_datasets),
    (Tier.T2, check_soak),
)


def run_correctness(
    endpoint: Endpoint,
    profile: Profile,
    tier: Tier,
    baseline: Baseline | None = None,
    *,
    evidence: Path,
    data: Path | None = None,
    boot: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> GateResult:
    """Ask a server everything that a tier asks, and record what it said.

    Args:
        endpoint: The server.
        profile: Questions, right answers and thresholds of its model.
        tier: T0 below a minute, T1 below ten, T2 about an hour.
        baseline: Launches of the engine, image or host that this one is held against.
        evidence: Folder for the log of all exchanges and for the answers; made if missing.
        data: Folder with mounted question files.
        boot: What was launched, for the record of the answers.
        say: Takes one line of progress.

    Raises:
        InputError: The URL or a question file cannot be used.
    """
    started = now()
    questions = sha256_of(profile)
    evidence.mkdir(parents=True, exist_ok=True)
    with Client(endpoint, profile, evidence / EXCHANGES) as client:
        run = Run(client=client, profile=profile, tier=tier, data=data, baseline=baseline, say=say)
        checks = _checks(run, questions)
    files = [evidence / EXCHANGES]
    if run.right:
        launch = Launch(boot=boot or endpoint.root, started=started, right=run.right)
        record = Baseline(profile=profile.name, profile_sha256=questions, launches=(launch,))
        (evidence / ANSWERS).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        files.append(evidence / ANSWERS)
    return GateResult(
        gate=GATE,
        verdict=worst(check.verdict for check in checks),
        checks=tuple(checks),
        limitations=tuple(dict.fromkeys(run.limitations)),
        configuration_sha256=sha256_of({"profile": questions, "tier": tier.value}),
        started=started,
        ended=now(),
        evidence=tuple(Evidence(path=file.name, sha256=sha256_of_file(file)) for file in files),
    )


def _checks(run: Run, questions: str) -> list[Check]:
    """Run the battery; once the server is gone the rest is named as not done."""
    checks = [check_model(run)]
    if checks[0].verdict is Verdict.FAIL:
        return checks
    skipped: list[str] = []
    for tier, check in BATTERY:
        name = check.__name__.removeprefix("check_").replace("_", "-")
        if not run.tier.includes(tier):
            continue
        if run.client.gone:
            skipped.append(name)
            continue
        run.say(f"{name} ...")
        found = check(run)
        checks += found if isinstance(found, list) else [found] if found else []
    if skipped:
        seen = f"the server stopped answering; not done: {', '.join(skipped)}"
        checks.append(Check(name="battery-complete", verdict=Verdict.INCONCLUSIVE, seen=seen))
    if paired := compare_with_baseline(run.baseline, questions, run.right):
        checks.append(paired)
    checks += check_overall(run.client.replies, run.profile.chat.stall_s)
    run.limitations += [f"{check}: {reason}" for check, reason in run.profile.unsupported.items()]
    if run.tier is not Tier.T2:
        run.limitations.append(f"tier {run.tier} of T0 to T2 was asked")
    return checks

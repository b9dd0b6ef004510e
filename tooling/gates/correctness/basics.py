"""T0: who is there, does it answer now, are short answers right, and is a stream the same text?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.gates.correctness.answers import OK
from tooling.gates.correctness.run import is_right_reply
from tooling.gates.correctness.sse import compare_stream
from tooling.gates.correctness.statistics import MARGIN
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from tooling.gates.correctness.profile import Question
    from tooling.gates.correctness.run import Run

#: Questions that are asked again, and as a stream.
REPEATED = 4
#: How engines name themselves as the owner of a model.
OWNERS = {"sglang": "sglang", "vllm": "vllm", "llamacpp": "llama.cpp"}
#: Where `/v1/models` says how long a prompt and its answer may be.
CONTEXT_FIELDS = ("max_model_len", "n_ctx", "context_length")


def check_model(run: Run) -> Check:
    """The server lists the model; its engine and its context length are noted."""
    name = "model-listed"
    reply = run.client.get("/v1/models")
    listed = reply.body.get("data") if isinstance(reply.body, dict) else None
    if reply.status != OK or not isinstance(listed, list) or not listed:
        seen = f"/v1/models: HTTP {reply.status}: {reply.text[:160]}"
        return Check(name=name, verdict=Verdict.FAIL, seen=seen)
    names = [str(model.get("id")) for model in listed]
    if not run.client.model and len(names) > 1:
        return Check(
            name=name, verdict=Verdict.FAIL, seen="several models are served: name one", details=tuple(names)
        )
    run.client.model = run.client.model or names[0]
    if run.client.model not in names:
        seen = f"model {run.client.model!r} is not served"
        return Check(name=name, verdict=Verdict.FAIL, seen=seen, details=tuple(names))
    model = listed[names.index(run.client.model)]
    run.engine = OWNERS.get(str(model.get("owned_by", "")).lower(), "")
    context = _context(model)
    if context is None:
        run.limitations.append("the server does not say how long a prompt may be")
    elif context < run.profile.context_tokens:
        seen = (
            f"{run.client.model!r} is served with {context} tokens of context, less than the profile asks for"
        )
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=seen,
            value=context,
            unit="tokens",
            threshold=run.profile.context_tokens,
        )
    seen = f"{run.client.model!r}, engine {run.engine or 'not recognised'}, context {context or 'not told'}"
    return Check(name=name, verdict=Verdict.PASS, seen=seen)


def _context(model: dict[str, Any]) -> int | None:
    places = (model, model.get("meta") or {})
    return next((p[f] for p in places for f in CONTEXT_FIELDS if isinstance(p.get(f), int)), None)


def check_echo(run: Run) -> Check:
    """Fresh numbers come back: this server answers now, and not a cache or a canned reply."""
    echo = run.profile.echo
    wrong: list[str] = []
    for turn in range(3):
        nonce = run.nonce(echo.digits)
        reply = run.client.chat(run.messages(echo.ask.format(nonce=nonce)), f"echo@{turn}")
        if nonce not in reply.said:
            wrong.append(f"{nonce} -> {reply.said[:80]!r}")
    verdict = Verdict.PASS if not wrong else Verdict.FAIL
    return Check(
        name="echo",
        verdict=verdict,
        seen=f"{3 - len(wrong)} of 3 fresh numbers came back",
        details=tuple(wrong),
    )


def check_answers(run: Run) -> list[Check]:
    """Every question of the tier, one at a time; one check a group."""
    for question in run.profile.asked_in(run.tier):
        if run.client.gone:
            break
        reply = run.ask(question, "alone")
        run.alone[question.id] = reply
        run.right[question.id] = is_right_reply(question, reply)
    return [_group(run, group) for group in run.profile.required if _asked(run, group)]


def _asked(run: Run, group: str) -> list[Question]:
    return [question for question in run.profile.asked_in(run.tier) if question.group == group]


def _group(run: Run, group: str) -> Check:
    """Right answers of one group against its bound, or against the baseline where it has none."""
    questions = _asked(run, group)
    right = sum(run.right.get(question.id, False) for question in questions)
    share = right / len(questions)
    bound = run.profile.required[group].min_right
    base = _baseline_share(run, questions)
    if bound is None and base is None:
        verdict = Verdict.NO_BASELINE
    else:
        # A group without a bound of its own may be one question, or 2 points, below its baseline.
        floor = bound if bound is not None else (base or 0.0) - max(MARGIN, 1 / len(questions))
        verdict = Verdict.PASS if share >= floor - 1e-9 else Verdict.FAIL
    return Check(
        name=f"answers-{group}",
        verdict=verdict,
        seen=f"{right} of {len(questions)} right",
        value=round(share, 4),
        unit="share right",
        threshold=bound if bound is not None else base,
        details=tuple(_wrong(run, question) for question in questions if not run.right.get(question.id))[:12],
    )


def _baseline_share(run: Run, questions: list[Question]) -> float | None:
    launches = run.baseline.launches if run.baseline else ()
    ids = [question.id for question in questions]
    shares = [sum(la.right[i] for i in ids) / len(ids) for la in launches if all(i in la.right for i in ids)]
    return sum(shares) / len(shares) if shares else None


def _wrong(run: Run, question: Question) -> str:
    reply = run.alone.get(question.id)
    if reply is None:
        return f"{question.id}: not asked"
    hidden = reply.answer is not None and question.answer in reply.answer.reasoning
    where = " (the right words are in the reasoning field)" if hidden else ""
    return f"{question.id}: want {question.answer[:60]!r}, got {reply.said[:60]!r}{where}"


def _sample(run: Run) -> list[Question]:
    """Some questions spread over those that were answered; the longest answer is among them."""
    asked = [question for question in run.profile.questions if question.id in run.alone]
    spread = asked[:: max(1, len(asked) // REPEATED)][: REPEATED - 1]
    longest = max(asked, key=lambda question: len(question.answer), default=None)
    return [*spread, *([longest] if longest and longest not in spread else [])]


def check_repeat(run: Run) -> Check:
    """Greedy twice: the same question must not be right once and wrong once."""
    name = "repeat"
    sample = _sample(run)
    if not sample:
        return Check(
            name=name, verdict=Verdict.INCONCLUSIVE, seen="no question was answered, so none was repeated"
        )
    flipped, reworded = [], []
    for question in sample:
        reply = run.ask(question, "again")
        before = run.alone[question.id]
        if is_right_reply(question, reply) != run.right[question.id]:
            flipped.append(f"{question.id}: {before.said[:60]!r}, then {reply.said[:60]!r}")
        elif reply.said != before.said:
            reworded.append(f"{question.id}: reworded, same answer")
    verdict = Verdict.FAIL if flipped else Verdict.PASS
    seen = f"{len(flipped)} of {len(sample)} answers flipped, {len(reworded)} were reworded"
    return Check(name=name, verdict=verdict, seen=seen, details=(*flipped, *reworded))


def check_stream(run: Run) -> Check:
    """The same request as a stream gives the same text."""
    name = "stream-equals-whole"
    sample = _sample(run)
    checks: list[Check] = []
    for question in sample:
        whole = run.alone[question.id].answer
        reply = run.ask(question, "stream", stream=True)
        if whole is None or (reply.status != OK):
            seen = f"no answer to compare: {reply.text[:120]}"
            checks.append(Check(name=name, verdict=Verdict.FAIL, seen=seen))
        elif reply.streamed is None:
            checks.append(Check(name=name, verdict=Verdict.FAIL, seen="a stream was asked for and not sent"))
        else:
            check = compare_stream(reply.streamed, whole)
            if check.verdict is Verdict.FAIL:  # once more without a stream, before the server is blamed
                check = compare_stream(reply.streamed, whole, run.ask(question, "stream-again").answer)
            checks.append(check)
    if not checks:
        return Check(
            name=name, verdict=Verdict.INCONCLUSIVE, seen="no question was answered, so none was streamed"
        )
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        for check in checks:
            if check.verdict is verdict:
                return check
    return Check(
        name=name, verdict=Verdict.PASS, seen=f"{len(checks)} streams, each the same text as in one piece"
    )

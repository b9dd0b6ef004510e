"""Is a difference in right answers real? Exact tests on counts; pure functions.

Three kinds of comparison: the same questions on two boots (paired, McNemar), several launches a side (a launch
is one observation, whatever it answered), and a score against one measured elsewhere (unpaired).
"""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import TYPE_CHECKING

from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A loss below this share of the questions is not worth a release.
MARGIN = 0.02
#: One-sided error of the paired test.
PAIRED_ALPHA = 0.01
#: One-sided error of the comparison of launches.
LAUNCH_ALPHA = 0.05
#: With one launch a side only a collapse counts: launches of one image have differed by 20 points.
COLLAPSE_ALPHA = 1e-4
COLLAPSE_LOSS = 0.10
#: Fewer launches a side than this can never be significant at LAUNCH_ALPHA (3 against 3: 1/20).
LAUNCHES = 3
#: A score whose number of questions is not told is taken to rest on so many; real suites have more.
ASSUMED_QUESTIONS = 50
#: A score passes only if chance alone moves it by less than this (one-sided 95 %); below that it shows nothing.
WIDEST = 0.05
Z_95 = 1.645
#: All divisions of launches into two sides are tried up to this number, beyond it a fixed sample of as many.
MAX_DIVISIONS = 20000


def mcnemar(lost: int, won: int) -> float:
    """One-sided exact p-value that questions are lost, not exchanged (McNemar 1947; binomial with p = 1/2).

    Args:
        lost: Questions right before and wrong now.
        won: Questions wrong before and right now.
    """
    n = lost + won
    return float(sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n)


def compare_paired(before: dict[str, bool], now: dict[str, bool], name: str = "paired-with-baseline") -> Check:
    """One launch against one launch on the same questions.

    A loss that is significant (p < 0.01) and worth minding (2 points) fails only as a collapse, since two
    launches of one image can differ by more than that; a smaller one asks for more launches.
    """
    common = sorted(before.keys() & now.keys())
    if not common:
        return Check(name=name, verdict=Verdict.FAIL, seen="the baseline answers none of these questions")
    lost = [key for key in common if before[key] and not now[key]]
    won = [key for key in common if now[key] and not before[key]]
    p, loss = mcnemar(len(lost), len(won)), (len(lost) - len(won)) / len(common)
    seen = (
        f"of {len(common)} questions {len(lost)} lost, {len(won)} won since the baseline, McNemar p = {p:.2g}"
    )
    verdict = Verdict.PASS
    if p < PAIRED_ALPHA and loss >= MARGIN:
        collapse = p < COLLAPSE_ALPHA and loss >= COLLAPSE_LOSS
        verdict = Verdict.FAIL if collapse else Verdict.INCONCLUSIVE
        if not collapse:
            seen += "; one launch a side proves nothing, boot both several times"
    elif loss >= COLLAPSE_LOSS:
        verdict, seen = Verdict.INCONCLUSIVE, seen + "; too few questions or launches for such a loss"
    return Check(
        name=name,
        verdict=verdict,
        seen=seen,
        value=round(-100 * loss, 2),
        unit="points",
        threshold=-100 * MARGIN,
        details=tuple(f"lost: {key}" for key in lost[:10]),
    )


def permutation_p(low: Sequence[float], high: Sequence[float]) -> float:
    """One-sided exact p-value that the mean of `low` is below that of `high` (permutation of launches)."""
    pool = [*low, *high]
    observed = math.fsum(low)
    size = math.comb(len(pool), len(low))
    if size <= MAX_DIVISIONS:
        sums = [math.fsum(side) for side in combinations(pool, len(low))]
        return sum(s <= observed + 1e-9 for s in sums) / size
    rng = random.Random(0)  # noqa: S311  # a fixed sample, not a secret
    hits = sum(math.fsum(rng.sample(pool, len(low))) <= observed + 1e-9 for _ in range(MAX_DIVISIONS))
    return (hits + 1) / (MAX_DIVISIONS + 1)


def overdispersion_p(right: Sequence[int], questions: int) -> float:
    """Chi-square p-value that launches differ by more than chance (Wilson-Hilferty approximation)."""
    n, rate = len(right), sum(right) / (len(right) * questions)
    if n < 2 or rate in {0.0, 1.0}:  # noqa: PLR2004
        return 1.0
    chi2 = math.fsum((r - questions * rate) ** 2 for r in right) / (questions * rate * (1 - rate))
    k = n - 1
    z = ((chi2 / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def compare_launches(
    base: Sequence[int], candidate: Sequence[int], questions: int, name: str = "launches"
) -> Check:
    """Several launches a side, each with its number of right answers of the same questions.

    A launch is one observation: what varies between launches is not averaged away by asking one launch more.

    Args:
        base: Right answers of each launch of the baseline.
        candidate: Right answers of each launch of the candidate.
        questions: Questions that every launch was asked.
        name: Name of the check.
    """
    if not base or not candidate or questions < 1 or max((*base, *candidate)) > questions:
        return Check(
            name=name, verdict=Verdict.FAIL, seen="there are no launches to compare, or more right than asked"
        )
    sides = f"{_listed(base)} against {_listed(candidate)} of {questions}"
    spread = (
        " and launches of one side differ by more than chance" if _spread(base, candidate, questions) else ""
    )
    if min(len(base), len(candidate)) < LAUNCHES:
        return Check(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            seen=f"{sides}: a launch is one observation; {LAUNCHES} a side, interleaved, can decide{spread}",
        )
    change = (sum(candidate) / len(candidate) - sum(base) / len(base)) / questions
    worse = permutation_p(candidate, base)
    better = permutation_p(base, candidate)
    # Raised by the margin, a candidate that is no worse than the margin must come out above the baseline.
    raised = [c + MARGIN * questions for c in candidate]
    no_loss = permutation_p(base, raised)
    if worse <= LAUNCH_ALPHA and change <= -MARGIN:
        verdict, word = Verdict.FAIL, f"worse (p = {worse:.2g})"
    elif better <= LAUNCH_ALPHA and change > 0:
        verdict, word = Verdict.PASS, f"better (p = {better:.2g})"
    elif no_loss <= LAUNCH_ALPHA or (change >= 0 and not spread):
        verdict, word = Verdict.PASS, f"no loss of {100 * MARGIN:g} points (p = {no_loss:.2g})"
    else:
        verdict, word = Verdict.INCONCLUSIVE, "neither a loss nor its absence is shown: add launches"
    return Check(
        name=name,
        verdict=verdict,
        seen=f"{sides}: {word}{spread}",
        value=round(100 * change, 2),
        unit="points",
        threshold=-100 * MARGIN,
    )


def judge_repeatability(right: Sequence[int], questions: int, name: str = "launch-to-launch") -> Check:
    """Several launches of one thing: do they differ by more than chance?

    If they do, the cause is something that a launch decides (an autotuner's choice, memory layout, a race at
    start), and no comparison with single launches means anything.
    """
    if not right or questions < 1 or max(right) > questions:
        return Check(
            name=name, verdict=Verdict.FAIL, seen="there are no launches, or more right answers than questions"
        )
    if len(right) < LAUNCHES:
        return Check(
            name=name, verdict=Verdict.INCONCLUSIVE, seen=f"{len(right)} launches say nothing of their spread"
        )
    p = overdispersion_p(right, questions)
    seen = f"{_listed(right)} of {questions} in {len(right)} launches, chance alone: p = {p:.2g}"
    if p < PAIRED_ALPHA:
        seen += (
            ": the result varies between launches, not between requests; compare by interleaved launches only"
        )
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen=seen, value=p, threshold=PAIRED_ALPHA)
    return Check(name=name, verdict=Verdict.PASS, seen=seen, value=p, threshold=PAIRED_ALPHA)


def _listed(right: Sequence[int]) -> str:
    return " ".join(map(str, right))


def _spread(base: Sequence[int], candidate: Sequence[int], questions: int) -> bool:
    return min(overdispersion_p(base, questions), overdispersion_p(candidate, questions)) < PAIRED_ALPHA


def compare_score(
    score: float, reference: float, questions: int | None, reference_questions: int | None, name: str = "score"
) -> Check:
    """A score against one measured elsewhere, on other hardware or another day (unpaired).

    The reference's own uncertainty counts: a two-proportion z-test (pooled), held against the margin. A floor
    would not do, since half a score can lie above it.

    Args:
        score: Share of right answers, 0 to 1.
        reference: The other share, 0 to 1.
        questions: Questions behind the score; unknown: few are assumed.
        reference_questions: Questions behind the reference; unknown: few are assumed.
        name: Name of the check.
    """
    n, m = questions or ASSUMED_QUESTIONS, reference_questions or ASSUMED_QUESTIONS
    pooled = (score * n + reference * m) / (n + m)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / n + 1 / m))
    z = (score - reference) / error
    p = 0.5 * math.erfc(-z / math.sqrt(2))
    loss = reference - score
    told = (
        "" if questions and reference_questions else f" ({ASSUMED_QUESTIONS} questions assumed where not told)"
    )
    seen = f"{score:.3f} against {reference:.3f}{told}, one-sided p = {p:.2g}"
    details: tuple[str, ...] = ()
    if p < PAIRED_ALPHA and loss >= MARGIN:
        verdict = Verdict.FAIL
        seen += ": a real loss, no more samples are needed"
        details = (
            "first compare both runs' prompt template, thinking mode, number of shots and token budget",
            "then bisect: weight loading, KV type, attention backend, GEMM backend",
        )
    elif loss < MARGIN and Z_95 * error <= WIDEST:
        verdict = Verdict.PASS
    else:
        verdict, seen = Verdict.INCONCLUSIVE, seen + ": too few questions to tell a loss from chance"
    return Check(
        name=name,
        verdict=verdict,
        seen=seen,
        value=round(score, 4),
        unit="share right",
        threshold=round(reference - MARGIN, 4),
        details=details,
    )


def compare_scores(rows: dict[str, tuple[float, float]], questions: int | None = None) -> list[Check]:
    """Several suites, each (score, reference); that they agree is the strongest sign of a real loss."""
    checks = [compare_score(s, r, questions, questions, f"score-{suite}") for suite, (s, r) in rows.items()]
    lost = [check.name for check in checks if check.verdict is Verdict.FAIL]
    if len(lost) > 1:
        checks.append(
            Check(
                name="scores-together",
                verdict=Verdict.FAIL,
                seen=f"{len(lost)} of {len(checks)} suites lost: fluent text does not speak against it",
                details=tuple(lost),
            )
        )
    return checks

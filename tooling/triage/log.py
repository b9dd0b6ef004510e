"""The lines of one boot against the signatures: a live reader that keeps counts, not lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tooling.triage.context import Detected, Detector, detectors
from tooling.triage.diagnosis import Seen, diagnose
from tooling.triage.reader import Line, parse_line
from tooling.triage.records import Finding, Outcome, Role, TriageReport
from tooling.triage.signatures import MATCH_CHARS, Signature, fill, load_signatures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

#: Characters of a line that a finding shows.
SHOWN_CHARS = 400
#: Different exceptions that are told apart; a log that raises more is one finding.
_MOST_EXCEPTIONS = 20
_CACHED_SHAPES = 4096
_CACHED_MESSAGES = 512
#: An engine says its name and version early.
_INTRODUCTION_LINES = 2000
_DIGITS = re.compile(r"\d+")
_START, _READY = "engine-start", "engine-says-ready"
#: Progress that follows the start line. What an engine chooses by itself (backends, fusions) stands before it.
_LOADED = frozenset(
    {"weights-begin", "weights-end", "kv-cache-allocated", "graph-capture-begin", _READY, "engine-answered"}
)
_VERSIONS = (
    ("vllm", re.compile(r"vLLM API server version v?(\d[\w.]*)|Initializing a V\d LLM engine \(v(\d[\w.]*)\)")),
    ("sglang", re.compile(r"\bsglang(?:==|[ -]v?)(\d+\.\d[\w.]*)()")),
    ("vllm", re.compile(r"\bvllm[/.]|\bvLLM\b|EngineCore")),
    ("sglang", re.compile(r"\bsglang[:/.]|server_args=|TpModelWorker|\bSGLANG_")),
)

Match = tuple[Signature, dict[str, str]]


@dataclass
class _Tally:
    """A finding and what is counted on after its first line."""

    finding: Finding
    count: int = 1
    last_line: int = 0
    ranks: dict[str, None] = field(default_factory=dict)

    def copy(self) -> _Tally:
        return _Tally(self.finding, self.count, self.last_line, dict(self.ranks))

    def total(self) -> Finding:
        """The finding with its counts."""
        return self.finding.model_copy(
            update={"count": self.count, "last_line": self.last_line, "ranks": tuple(self.ranks)}
        )


@dataclass
class _Life:
    """What was seen since the engine last started."""

    findings: dict[str, _Tally] = field(default_factory=dict)
    detectors: tuple[Detector, ...] = ()
    lines: int = 0
    last_line: int = 0
    ready_at: int = 0
    moved: bool = False  # loaded, got ready or failed: the next start line is another start


class LogTriage:
    """Reads the log of one boot line by line.

    Args:
        signatures: Facts; those of the toolkit by default.
        engine: `sglang`, `vllm`, ...; recognised from the log if empty.
        version: Version of the engine; recognised if empty, and all signatures are tried while it is unknown.
        device: `gpu`, or `cpu` for a dry boot, where signatures of missing GPUs say nothing.
        since: Start of the boot. Lines with an older time stamp belong to another boot.
        arguments: Serve arguments, as far as known.
        one_boot: The lines are known to be of one boot (the caller read from its container's start); without it
            and without `since`, an engine start after other boots' lines drops those.
    """

    def __init__(
        self,
        signatures: Iterable[Signature] | None = None,
        *,
        engine: str = "",
        version: str = "",
        device: str = "gpu",
        since: datetime | None = None,
        arguments: tuple[str, ...] = (),
        one_boot: bool = False,
    ) -> None:
        known = load_signatures() if signatures is None else tuple(signatures)
        known = tuple(signature for signature in known if device == "gpu" or not signature.gpu)
        self._by_id = {signature.id: signature for signature in known}
        self._by_detector = {signature.detector: signature for signature in known if signature.detector}
        # What is known to be harmless is looked at first and ends the search.
        order = {Role.NOISE: 0, Role.HINT: 0}
        self._patterns = sorted((s for s in known if s.pattern), key=lambda s: order.get(s.role, 1))
        self._engine, self._version = engine, version
        self._since, self._arguments, self._one_boot = since, arguments, one_boot
        self._number_readers = {signature.id for signature in self._patterns if signature.reads_numbers}
        self._cache: dict[str, tuple[Signature, ...]] = {}
        self._repeated: dict[str, tuple[Match, ...]] = {}
        self._number = 0
        self._other_boots = self._restarts = 0
        self._stamped = False
        self._stamp: datetime | None = None
        self._life = self._new_life()

    def _new_life(self) -> _Life:
        return _Life(detectors=detectors(self._arguments))

    def feed(self, text: str) -> tuple[Finding, ...]:
        """Read one line; returns the findings that it is the first line of."""
        self._number += 1
        line = parse_line(self._number, text)
        if not self._is_of_this_boot(line):
            self._other_boots += 1
            return ()
        self._recognise_engine(line)
        matches = self._matches(line)
        if any(signature.id == _START for signature, _ in matches):
            self._engine_starts(line)
        life = self._life
        life.lines += 1
        life.last_line = line.number
        new = [finding for match in matches if (finding := self._note(line, *match))]
        explained = any(signature.role in (Role.CAUSE, Role.SYMPTOM) for signature, _ in matches)
        for detector in life.detectors:
            for detected in detector.feed(line):
                if detected.detector == "unrecognised-exception" and explained:
                    continue
                signature = self._by_detector[detected.detector]
                if finding := self._note(detected.line, signature, detected.values):
                    new.append(finding)
        return tuple(new)

    def report(self, *, died: str = "") -> TriageReport:
        """What the lines so far say; may be asked at any time.

        Args:
            died: How the process ended, e.g. `exit code 17`; empty while it lives or when nobody knows.
        """
        life = self._life
        pending = {key: tally.copy() for key, tally in life.findings.items()}
        for detector in life.detectors:
            for detected in detector.end():
                self._note_pending(pending, detected)
        notes = []
        if self._since and not self._stamped:
            notes.append("no line carries a time stamp, so `since` could not be applied to this log")
        if self._other_boots:
            notes.append(f"{self._other_boots} lines of earlier boots were left out")
        seen = Seen(
            findings=tuple(
                sorted((tally.total() for tally in pending.values()), key=lambda finding: finding.first_line)
            ),
            lines=life.lines,
            last_line=life.last_line,
            ready_at=life.ready_at,
            died=died,
        )
        verdict = diagnose(seen, self._by_id)
        return TriageReport(
            outcome=verdict.outcome,
            diagnosis=verdict.diagnosis,
            advice=verdict.advice,
            root=verdict.root,
            findings=verdict.findings,
            lines_read=life.lines,
            lines_of_other_boots=self._other_boots,
            restarts=self._restarts,
            ready_line=life.ready_at > 0,
            engine=self._engine,
            version=self._version,
            notes=tuple(notes),
        )

    def _is_of_this_boot(self, line: Line) -> bool:
        """Lines without a time stamp (tracebacks) belong to the stamped line before them."""
        if self._since is None:
            return True
        if line.stamp is not None:
            self._stamped = True
            self._stamp = line.stamp
            bound = self._since if line.stamp.microsecond else self._since.replace(microsecond=0)
            if line.stamp < bound and self._life.lines:
                # What came before without a stamp was older still.
                self._other_boots += self._life.lines
                self._life = self._new_life()
        if self._stamp is None:
            return True
        bound = self._since if self._stamp.microsecond else self._since.replace(microsecond=0)
        return self._stamp >= bound

    def _engine_starts(self, line: Line) -> None:
        if not self._life.moved:
            return
        if self._one_boot or self._since is not None:
            self._restarts += 1
            self._life.moved = False
            self._note(line, self._by_detector["engine-restarted"], {})
            return
        self._other_boots += self._life.lines
        self._life = self._new_life()

    def _recognise_engine(self, line: Line) -> None:
        if (self._engine and self._version) or line.number > _INTRODUCTION_LINES:
            return
        for engine, pattern in _VERSIONS:
            match = pattern.search(line.text)
            if not match or (self._engine and self._engine != engine):
                continue
            version = next((group for group in match.groups() if group), "")
            if self._engine != engine or (version and not self._version):
                self._engine = self._engine or engine
                self._version = self._version or version
                self._cache.clear()
                self._repeated.clear()
            return

    def _matches(self, line: Line) -> tuple[Match, ...]:
        message = line.message[:MATCH_CHARS]
        repeated = self._repeated.get(message)
        if repeated is not None:
            return repeated
        found: list[Match] = []
        for signature in self._candidates(message):
            match = signature.regex.search(message)
            if not match:
                continue
            found.append((signature, {name: value or "" for name, value in match.groupdict().items()}))
            if signature.role in (Role.NOISE, Role.HINT):
                break
        if len(self._repeated) >= _CACHED_MESSAGES:
            self._repeated.clear()
        self._repeated[message] = tuple(found)
        return self._repeated[message]

    def _candidates(self, message: str) -> tuple[Signature, ...]:
        """Signatures that a line of this shape can match; most lines of a log differ in their numbers only."""
        shape = _DIGITS.sub("0", message)
        cached = self._cache.get(shape)
        if cached is not None:
            return cached
        if len(self._cache) >= _CACHED_SHAPES:
            self._cache.clear()
        self._cache[shape] = tuple(
            signature
            for signature in self._patterns
            if signature.fits(self._engine, self._version)
            and (signature.id in self._number_readers or signature.regex.search(shape))
        )
        return self._cache[shape]

    def _note(self, line: Line, signature: Signature, values: dict[str, str]) -> Finding | None:
        life = self._life
        if signature.id == _READY and not life.ready_at:
            life.ready_at = line.number
        if signature.id in _LOADED or signature.role is Role.SYMPTOM:
            life.moved = True
        return _note_into(life.findings, line, signature, values)

    def _note_pending(self, findings: dict[str, _Tally], detected: Detected) -> None:
        _note_into(findings, detected.line, self._by_detector[detected.detector], detected.values)


def _note_into(
    findings: dict[str, _Tally], line: Line, signature: Signature, values: dict[str, str]
) -> Finding | None:
    """Count a line; returns the finding if it is new."""
    key = signature.id
    if signature.id == "unrecognised-exception":
        own = f"{signature.id}: {values.get('exception', '')[:200]}"
        if own in findings or sum(name.startswith(signature.id) for name in findings) < _MOST_EXCEPTIONS:
            key = own
    old = findings.get(key)
    if old is not None:
        old.count += 1
        old.last_line = max(line.number, old.last_line)
        if line.rank:
            old.ranks[line.rank] = None
        return None
    finding = Finding(
        signature=signature.id,
        outcome=signature.outcome if signature.role is not Role.PROGRESS else Outcome.OK,
        role=signature.role,
        count=1,
        first_line=line.number,
        last_line=line.number,
        text=line.text[:SHOWN_CHARS],
        meaning=fill(signature.meaning, values),
        advice=fill(signature.advice, values),
        feature=signature.feature,
        effect=signature.effect,
        ranks=(line.rank,) if line.rank else (),
        hopeless=signature.hopeless,
    )
    findings[key] = _Tally(finding, last_line=line.number, ranks={line.rank: None} if line.rank else {})
    return finding


def triage(
    lines: Iterable[str],
    *,
    engine: str = "",
    version: str = "",
    device: str = "gpu",
    since: datetime | None = None,
    arguments: tuple[str, ...] = (),
    one_boot: bool = False,
    died: str = "",
) -> TriageReport:
    """Read a whole log; the arguments are those of `LogTriage` and of its report."""
    reader = LogTriage(
        engine=engine, version=version, device=device, since=since, arguments=arguments, one_boot=one_boot
    )
    for line in lines:
        reader.feed(line)
    return reader.report(died=died)

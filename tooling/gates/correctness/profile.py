"""What a model must be able to do: questions, expected answers and thresholds as data, one file a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, JsonValue, ValidationError, model_validator

from tooling.errors import InputError
from tooling.records import Record

#: Where the profiles live in a checkout of this repository.
PROFILES = Path("stacks") / "models"
#: The checks of the longer tiers: a profile configures each one or says why its model cannot be held to it.
OPTIONAL_CHECKS = (
    "ladder",
    "needle",
    "long_answer",
    "load",
    "prefill_decode",
    "json_schema",
    "tool_call",
    "acceptance",
    "datasets",
    "soak",
)


class Tier(StrEnum):
    """How long the gate may take: T0 a minute, T1 ten, T2 an hour; each includes the one before."""

    T0 = "T0"
    T1 = "T1"
    T2 = "T2"

    def includes(self, other: Tier) -> bool:
        """Whether a run of this tier does what belongs to the other."""
        return self.value >= other.value


class Chat(Record):
    """How every request is put.

    Attributes:
        max_tokens: Token budget of an answer whose question names none.
        system_prompt: A system prompt like production's; half of the questions are asked with it.
        exemplars: Question and answer pairs put before each question, so that a near-tie does not decide.
        extra_body: Fields that every request carries, e.g. `chat_template_kwargs: {enable_thinking: false}`.
        reasoning: Whether the model thinks aloud before it answers.
        timeout_s: Seconds without an answer after which a request counts as unanswered.
        stall_s: Largest pause in seconds within one stream, or before a short answer.
    """

    max_tokens: int = Field(default=64, ge=1)
    system_prompt: str = ""
    exemplars: tuple[tuple[str, str], ...] = ()
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)
    reasoning: Literal["none", "off", "on"] = "none"
    timeout_s: float = Field(default=60.0, gt=0)
    stall_s: float = Field(default=10.0, gt=0)


class Question(Record):
    """One question with one right answer.

    Attributes:
        id: Stable identifier; answers of two runs are paired by it.
        group: Questions that are counted together.
        ask: The user's text.
        answer: The right answer.
        match: `exact` text, `word` (the answer stands in it as a word), `number` (the last one), `json`.
        max_tokens: Token budget where it is not the profile's.
    """

    id: str
    group: str
    ask: str
    answer: str
    match: Literal["exact", "word", "number", "json"] = "exact"
    max_tokens: int | None = None


class Required(Record):
    """How many of a group's questions must be right.

    Attributes:
        tier: The first tier that asks the group.
        min_right: Share of right answers, 0 to 1; none means that only a baseline can judge.
    """

    tier: Tier = Tier.T0
    min_right: float | None = Field(default=None, ge=0, le=1)


class Nonce(Record):
    """A request for a number that no earlier run can have answered; `{nonce}` stands for it."""

    ask: str = "Repeat this number and nothing else: {nonce}"
    digits: int = Field(default=4, ge=3, le=12)

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if "{nonce}" not in self.ask:
            raise ValueError("ask must contain {nonce}")
        return self


class Ladder(Record):
    """The same questions behind more and more filler, exact to the token of the prompt.

    Attributes:
        tokens: Prompt lengths in tokens, as the server counts them, chat template included.
        questions: Identifiers of the questions asked on each rung.
        all_up_to: Longer rungs are asked the first question alone, which spares slow hosts.
        min_right: Share that must be right on every single rung.
    """

    tokens: tuple[int, ...] = (60, 64, 65, 96, 97, 128, 129, 512, 2048, 8192)
    questions: tuple[str, ...] = Field(min_length=1)
    all_up_to: int = 8192
    min_right: float = Field(default=1.0, gt=0, le=1)


class Needle(Record):
    """A number planted in filler at some depths, and asked for at the end."""

    plant: str
    ask: str
    digits: int = Field(default=4, ge=3, le=12)
    tokens: tuple[int, ...] = Field(min_length=1)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    min_right: float = Field(default=1.0, gt=0, le=1)


class LongAnswer(Record):
    """An answer of hundreds of tokens: an error of decoding at some position shows nowhere else.

    Attributes:
        question: Identifier of a question whose whole answer is known; empty for free text.
        ask: The request where no answer is known.
        min_tokens: Tokens that the answer must have for the check to count.
        max_tokens: Token budget.
    """

    question: str = ""
    ask: str = ""
    min_tokens: int = Field(default=200, ge=64)
    max_tokens: int = 480


class Load(Record):
    """The same questions one at a time and many at once, greedy both times.

    Attributes:
        concurrency: Requests in flight.
        requests: Requests in all; questions are repeated until there are as many.
        min_agreement: Share of requests whose answer equals the one given alone.
    """

    concurrency: int = Field(default=64, ge=2)
    requests: int = Field(default=64, ge=2)
    min_agreement: float = Field(default=0.98, gt=0, le=1)


class PrefillDecode(Record):
    """Log-probabilities of one greedy text, decoded and then prefilled.

    Attributes:
        question: Identifier of the question whose answer is compared.
        positions: Indexes of generated tokens that are computed again by prefill.
        max_median: Largest median of the absolute difference.
        max_step: Largest difference at a single position.
    """

    question: str
    positions: tuple[int, ...] = (0, 1, 7, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 199)
    max_median: float = 0.02
    max_step: float = 0.5


class JsonSchema(Record):
    """Answers that the server must force into a schema, and their right values."""

    json_schema: dict[str, JsonValue]
    questions: tuple[str, ...] = Field(min_length=1)
    repeats: int = Field(default=1, ge=1)
    min_right: float = Field(default=1.0, gt=0, le=1)


class ToolCall(Record):
    """Requests that must end in a call of the right function with the right arguments."""

    tools: tuple[dict[str, JsonValue], ...] = Field(min_length=1)
    ask: str
    name: str
    arguments: dict[str, JsonValue]
    repeats: int = Field(default=10, ge=1)
    tool_choice: Literal["auto", "required"] = "auto"


class Acceptance(Record):
    """Acceptance length of speculative decoding, from the server's own counters.

    Attributes:
        reference: Mean tokens per verification step where it is known to be healthy; one below 1.2 cannot catch
            anything and is refused.
        min_share: Smallest share of the reference.
        concurrencies: A second sequence must not ruin it, so there are at least two.
    """

    reference: float = Field(ge=1.2)
    min_share: float = Field(default=0.95, gt=0, le=1)
    concurrencies: tuple[int, ...] = Field(default=(1, 8), min_length=2)


class Reference(Record):
    """A score measured elsewhere: the share of right answers, of how many, with what settings and hardware."""

    score: float = Field(ge=0, le=1)
    questions: int = Field(ge=1)
    source: str


class Dataset(Record):
    """A question file that is mounted, not shipped: JSON lines with `question` and `answer`.

    Attributes:
        name: e.g. `gsm8k`.
        file: Name under the data folder.
        tier: First tier that runs it.
        limit: First so many questions in T1; T2 runs all.
        shots: Solved examples from the file's end put before each question.
        match: As in `Question`.
        max_tokens: Token budget of an answer.
        instruction: Text before the question.
        reference: A score measured elsewhere, where there is no baseline of the same host.
    """

    name: str
    file: str
    tier: Tier = Tier.T1
    limit: int = Field(default=200, ge=1)
    shots: int = Field(default=5, ge=0)
    match: Literal["exact", "word", "number"] = "number"
    max_tokens: int = 512
    instruction: str = ""
    reference: Reference | None = None


class Soak(Record):
    """An hour of load during which the first questions are asked again every minute."""

    seconds: float = Field(default=3600.0, gt=0)
    every_s: float = Field(default=60.0, gt=0)
    concurrency: int = Field(default=32, ge=1)


class Profile(Record):
    """Everything that the correctness gate knows of a model.

    Attributes:
        name: Name of the profile's folder.
        description: One line for people.
        context_tokens: Longest prompt plus answer that the gate may use.
        required: Groups of questions and how many must be right.
        filler: Sentences that prompts are lengthened with; they must not concern the questions.
        unsupported: Check -> the reason why this model cannot be held to it; it becomes a limitation.
        unsuitable_probes: Probe of the engine's own kits -> why this model cannot be held to it.
    """

    name: str
    description: str
    context_tokens: int = Field(ge=64)
    chat: Chat = Chat()
    questions: tuple[Question, ...] = Field(min_length=8)
    required: dict[str, Required] = Field(min_length=1)
    filler: tuple[str, ...] = Field(min_length=4)
    echo: Nonce = Nonce()
    ladder: Ladder | None = None
    needle: Needle | None = None
    long_answer: LongAnswer | None = None
    load: Load | None = None
    prefill_decode: PrefillDecode | None = None
    json_schema: JsonSchema | None = None
    tool_call: ToolCall | None = None
    acceptance: Acceptance | None = None
    datasets: tuple[Dataset, ...] = ()
    soak: Soak | None = None
    unsupported: dict[str, str] = Field(default_factory=dict)
    unsuitable_probes: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nothing_is_left_open(self) -> Self:
        ids = [question.id for question in self.questions]
        if len(set(ids)) != len(ids):
            raise ValueError("two questions share an id")
        groups = {question.group for question in self.questions}
        if groups != set(self.required):
            odd = sorted(groups ^ set(self.required))
            raise ValueError(f"`required` and the groups of the questions differ in {', '.join(odd)}")
        if not any(required.tier is Tier.T0 for required in self.required.values()):
            raise ValueError("no group of questions belongs to T0")
        named = {*self._named_questions()}
        if unknown := sorted(named - set(ids)):
            raise ValueError(f"unknown questions: {', '.join(unknown)}")
        for check in OPTIONAL_CHECKS:
            if bool(getattr(self, check)) == (check in self.unsupported):
                raise ValueError(
                    f"{check} must be either configured or named under `unsupported` with a reason"
                )
        if unknown := sorted(set(self.unsupported) - set(OPTIONAL_CHECKS)):
            raise ValueError(f"unknown checks under `unsupported`: {', '.join(unknown)}")
        return self

    def _named_questions(self) -> list[str]:
        named: list[str] = []
        for user in (self.ladder, self.json_schema):
            named += user.questions if user else ()
        for single in (self.long_answer, self.prefill_decode):
            named += [single.question] if single and single.question else []
        return named

    def question(self, identifier: str) -> Question:
        """The question of an identifier (validated to exist)."""
        return next(question for question in self.questions if question.id == identifier)

    def asked_in(self, tier: Tier) -> list[Question]:
        """The questions of all groups that a tier asks, in the file's order."""
        return [q for q in self.questions if tier.includes(self.required[q.group].tier)]


def parse_profile(data: Any, where: str) -> Profile:
    """Validate a profile that was read.

    Raises:
        InputError: Every fault of it, with its place.
    """
    if not isinstance(data, dict):
        raise InputError(
            "a model profile must be a mapping", where=where, fix="see stacks/models/tiny/profile.yaml"
        )
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise InputError(
            "the model profile is not valid",
            where=where,
            details=[f"{'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']}" for e in error.errors()],
            fix="correct the named fields",
        ) from error


def load_profile(name_or_path: str, root: Path = PROFILES) -> Profile:
    """Read a profile by its name under `stacks/models/` or by the path of its file.

    Raises:
        InputError: No such profile, or it is not valid.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        path = root / name_or_path / "profile.yaml"
    if not path.is_file():
        known = sorted(file.parent.name for file in root.glob("*/profile.yaml"))
        raise InputError(
            f"no model profile {name_or_path!r}",
            where=str(path),
            fix=f"name one of: {', '.join(known)}"
            if known
            else "run from the repository's root, or give the file",
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("the model profile cannot be read as YAML", where=str(path), fix=str(error)) from error
    return parse_profile(data, str(path))

"""What a throughput run is told and what it measured: the gate's records."""

from __future__ import annotations

import math
import statistics
from enum import StrEnum

from pydantic import Field, model_validator

from tooling.gates.power import GpuLoad
from tooling.records import Record

#: Environment variable that may hold an API key; the key itself is in no record and no argument list.
DEFAULT_KEY_VARIABLE = "BLACKWELL_STACKS_API_KEY"


class Route(StrEnum):
    """Which API is loaded. Completions by default: a chat template is a prefix that all prompts share."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class ClientKind(StrEnum):
    """Which load client runs; AUTO takes the compiled one wherever it can run."""

    AUTO = "auto"
    COMPILED = "compiled"
    FALLBACK = "fallback"


class UsageStyle(StrEnum):
    """How a server tells the number of tokens in a stream: with each chunk, at its end, or not at all."""

    EACH = "each"
    FINAL = "final"
    NONE = "none"


class Endpoint(Record):
    """A running server.

    Attributes:
        url: Base URL without `/v1`.
        model: Name in requests; empty asks `/v1/models`.
        route: API to load.
        key_variable: Environment variable with the API key, if the server wants one.
    """

    url: str = Field(pattern=r"^https?://")
    model: str = ""
    route: Route = Route.COMPLETIONS
    key_variable: str = DEFAULT_KEY_VARIABLE


class ThroughputPlan(Record):
    """The load, equal for baseline and candidate.

    Attributes:
        input_words: English words of each prompt, about as many tokens.
        output_tokens: Tokens that every answer must have.
        concurrencies: Closed-loop levels, ascending.
        requests_per_stream: Requests of one window, as a multiple of its concurrency.
        windows: Windows at each level in one boot, interleaved with the other levels.
        warmup_per_stream: Requests before the first window, at the highest level, as a multiple of it.
        open_loop_share: Request rate of the open-loop run, as a share of capacity; 0 leaves it out.
        open_loop_requests: Requests of the open-loop run.
        stall_s: Without any progress for that long a run is stopped, seconds.
        window_limit_s: A window may last so long, seconds.
        freeze_ms: A gap between two tokens of a stream that counts as a freeze, milliseconds; None takes the
            limit that ships. A CPU engine on a shared host may need more.
        calibrate: Hold the client against the mock at the measured pace.
        calibration_s: How long each calibration lasts at least, seconds.
        require_counter: Whether a server without a token counter makes the run INCONCLUSIVE.
        client: Which load client.
    """

    input_words: int = Field(default=256, ge=1)
    output_tokens: int = Field(default=128, ge=4)
    concurrencies: tuple[int, ...] = Field(default=(1, 8, 32), min_length=1)
    requests_per_stream: int = Field(default=4, ge=1)
    windows: int = Field(default=3, ge=1)
    warmup_per_stream: int = Field(default=1, ge=0)
    open_loop_share: float = Field(default=0.7, ge=0, lt=1)
    open_loop_requests: int = Field(default=64, ge=1)
    stall_s: float = Field(default=120.0, gt=0)
    window_limit_s: float = Field(default=1800.0, gt=0)
    freeze_ms: float | None = Field(default=None, gt=0)
    calibrate: bool = True
    calibration_s: float = Field(default=5.0, gt=0)
    require_counter: bool = True
    client: ClientKind = ClientKind.AUTO

    @model_validator(mode="after")
    def _levels_ascend(self) -> ThroughputPlan:
        if any(level < 1 for level in self.concurrencies):
            raise ValueError("a concurrency is at least 1")
        if list(self.concurrencies) != sorted(set(self.concurrencies)):
            raise ValueError("concurrencies must ascend without repetition")
        return self


class ClientBuild(Record):
    """Which client measured: its name, version and the hash of what ran."""

    name: str
    version: str
    sha256: str


class Distribution(Record):
    """A handful of numbers in milliseconds; nan-free, 0 when there were none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    largest: float = 0.0


def distribution(values: list[float]) -> Distribution:
    """Mean, nearest-rank percentiles and maximum."""
    if not values:
        return Distribution()
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        p50=statistics.median(ordered),
        p90=rank(0.90),
        p99=rank(0.99),
        largest=ordered[-1],
    )


class Window(Record):
    """One run of the client.

    Attributes:
        concurrency: Requests in flight; for an open loop the largest number that were.
        request_rate: Requests a second offered in an open loop; None for a closed one.
        requested: Requests that were to be made.
        completed: Requests that were answered.
        duration_s: First request sent to last answer complete.
        output_tokens: Tokens of all answers, from the server's usage.
        input_tokens: Prompt tokens by the server's counter, else words.
        ttft_ms: Time to the first non-empty token.
        tpot_ms: Per request (last token - first token) / (tokens - 1).
        gap_ms: Time between two chunks of a stream that brought text.
        freeze_ms: The largest gap that is far out of its stream's usual rhythm.
        tokens_per_chunk: Mean; above 1 the server coalesces tokens.
        wrong_length: Answers that do not have the requested number of tokens.
        empty: Answers that count tokens and have no text.
        errors: Messages of failed requests with their number, most frequent first.
        client_cpu_s: Processor time of the client process, start to end.
        counted_tokens: Tokens generated meanwhile by the server's own counter; None without one.
        cached_tokens: Prompt tokens that came from the prefix cache; None without a counter.
        gpus: The GPUs during the window; empty when not sampled.
        energy_j: Energy of the sampled GPUs; None when not sampled.
    """

    concurrency: int
    request_rate: float | None = None
    requested: int
    completed: int
    duration_s: float
    output_tokens: int
    input_tokens: int = 0
    ttft_ms: Distribution = Distribution()
    tpot_ms: Distribution = Distribution()
    gap_ms: Distribution = Distribution()
    freeze_ms: float = 0.0
    tokens_per_chunk: float = 1.0
    wrong_length: int = 0
    empty: int = 0
    errors: tuple[str, ...] = ()
    client_cpu_s: float = 0.0
    counted_tokens: float | None = None
    cached_tokens: float | None = None
    gpus: tuple[GpuLoad, ...] = ()
    energy_j: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second over the whole window."""
        return self.output_tokens / self.duration_s if self.duration_s > 0 else 0.0


class Calibration(Record):
    """The client against the mock at one concurrency.

    Attributes:
        concurrency: As in the run.
        ideal_tokens_per_s: What a perfect client gets from a perfect mock at this pace.
        client_tokens_per_s: What the client reported.
        mock_speed: How fast the mock really wrote its streams, as a share of its nominal pace; below 1 the host
            was too busy for the mock itself.
        ttft_error_ms: Client's median time to first token minus what the mock wrote.
        tpot_error: Client's median TPOT over what the mock wrote, minus 1.
    """

    concurrency: int
    ideal_tokens_per_s: float
    client_tokens_per_s: float
    mock_speed: float
    ttft_error_ms: float
    tpot_error: float

    @property
    def share(self) -> float:
        """What the client reached, as a share of the ideal."""
        return self.client_tokens_per_s / self.ideal_tokens_per_s


class Throughput(Record):
    """Everything that one boot's run measured.

    Attributes:
        model: Model name.
        engine: Whose metric names the server speaks; empty when none were found.
        client: What measured.
        plan: What was asked for.
        windows: Closed-loop windows in the order in which they ran.
        open_loop: The open-loop run, if there was one.
        calibrations: One a concurrency.
        usage: How the server tells the number of tokens.
        tokens_assumed: The client could not read usage and took the requested length for the measured one.
        idle: The GPUs before the run.
    """

    model: str
    engine: str
    client: ClientBuild
    plan: ThroughputPlan
    windows: tuple[Window, ...] = ()
    open_loop: Window | None = None
    calibrations: tuple[Calibration, ...] = ()
    usage: UsageStyle = UsageStyle.NONE
    tokens_assumed: bool = False
    idle: tuple[GpuLoad, ...] = ()

    def at(self, concurrency: int) -> tuple[Window, ...]:
        """The windows of one level."""
        return tuple(window for window in self.windows if window.concurrency == concurrency)

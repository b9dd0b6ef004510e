"""The `run` part of a stack: how its image is run on a host, apart from what belongs to one host or model."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tooling.records import Record

#: Directory inside a container, or name of a file there.
ContainerPath = Annotated[str, Field(pattern=r"^/[^\s:,]*[^\s:,/]$")]
_SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)(_|$)", re.IGNORECASE
)
#: A file that names a secret is none, and neither is a number of tokens.
_NO_SECRET = re.compile(r"_(FILE|PATH)$|^TOKENIZERS?_|_TOKENS?_(LIMIT|COUNT|SIZE)$", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret, which records and argv must not hold."""
    return _SECRET.search(name) is not None and _NO_SECRET.search(name) is None


def without_secrets(value: dict[str, str]) -> dict[str, str]:
    """The variables as they are.

    Raises:
        ValueError: One of them is a secret by its name.
    """
    for name in value:
        if looks_secret(name):
            raise ValueError(f"{name} looks like a secret: put it into an environment file on the host")
    return value


class Question(Record):
    """A question with a text that a right answer contains, in any case of letters."""

    prompt: str = Field(min_length=1)
    expect: str = Field(min_length=1)


class Health(Record):
    """The questions by which a started engine is judged: real answers, never a route that always says 200.

    Attributes:
        questions: Asked at temperature 0; each must be answered right.
        system_prompt: Sent before each, if any.
        max_tokens: Of each answer; a model that thinks first needs more.
        logprobs: Ask for log-probabilities and refuse those that are missing or not finite.
        ready_timeout_seconds: How long a start may take, loading the model included.
        answer_timeout_seconds: For one answer.
        interval_seconds: Pause between two looks.
    """

    questions: tuple[Question, ...] = Field(min_length=1)
    system_prompt: str = ""
    max_tokens: int = Field(default=64, ge=1)
    logprobs: bool = True
    ready_timeout_seconds: float = Field(default=1800, ge=1)
    answer_timeout_seconds: float = Field(default=120, ge=1)
    interval_seconds: float = Field(default=0.25, gt=0)


#: Two sums that any instruction model knows and a damaged one gets wrong.
SUMS = Health(
    questions=(
        Question(prompt="What is 7 times 8? Answer with the number only.", expect="56"),
        Question(prompt="What is 25 + 17? Answer with the number only.", expect="42"),
    )
)


class Run(Record):
    """How an image is run.

    Attributes:
        gpus: How many GPUs one engine needs at least; 0 for a stack without CUDA.
        ipc: `host` shares the host's /dev/shm; `private` has one of `shm_gb`.
        shm_gb: Size of the own /dev/shm, GiB; ranks of one engine share through it.
        memlock_unlimited: NCCL and RDMA pin host memory.
        models: Directory in the container where model files are mounted, read-only.
        model_argument: Serve argument that takes the model's path.
        name_argument: Serve argument that takes the name under which the model is served.
        cache: Directory in the container for what is compiled at run time. On the host it is kept by image
            digest and GPU, so that no release runs code that another one compiled. Absent: nothing is kept.
        environment: Variables on top of the image's.
        metrics_path: Prometheus metrics; the container is labelled for discovery. Empty: there are none.
        log_max_mb: Size of one log file of the container, MB.
        log_files: How many of them are kept.
        stop_grace_seconds: How long requests in flight may take to end when the engine is stopped.
        health: The questions that make it ready and right.
    """

    gpus: int = Field(default=0, ge=0)
    ipc: Literal["private", "host"] = "private"
    shm_gb: float | None = Field(default=None, gt=0)
    memlock_unlimited: bool = False
    models: ContainerPath = "/models"
    model_argument: str = "model-path"
    name_argument: str = "served-model-name"
    cache: ContainerPath | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    metrics_path: str = "/metrics"
    log_max_mb: int = Field(default=100, ge=1)
    log_files: int = Field(default=5, ge=1)
    stop_grace_seconds: int = Field(default=60, ge=1)
    health: Health = SUMS

    _no_secrets = field_validator("environment")(without_secrets)

"""One run of a load client: its configuration, its child process, and the watch over it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.errors import CommandError
from tooling.gates.throughput import compiled_worker, fallback_worker
from tooling.gates.throughput.extension import NoCompiledClientError, compiled_client
from tooling.gates.throughput.plan import ClientBuild, ClientKind, Route
from tooling.gates.throughput.prompts import write_dataset
from tooling.gates.throughput.raw import RawResult, parse_result
from tooling.records import Record, sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: How often the watch looks at the child, seconds.
POLL_S = 0.2
#: Usage at the end, for the chat route and the fallback client, and with every chunk: on the completions route
#: the compiled client reads usage only from events that bring text.
USAGE_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
#: The compiled client's names of the two routes.
_BACKENDS = {Route.COMPLETIONS: "sglang-oai", Route.CHAT: "sglang-oai-chat"}


class Load(Record):
    """One run.

    Attributes:
        url: Base URL of the server.
        model: Model name in requests.
        route: API to load.
        prompts: One a request.
        output_tokens: Tokens of each answer.
        concurrency: Closed loop with so many in flight; None for an open loop.
        request_rate: Open loop with so many a second; None for a closed one.
        seed: Of the arrival times.
    """

    url: str
    model: str
    route: Route
    prompts: tuple[str, ...]
    output_tokens: int
    concurrency: int | None = None
    request_rate: float | None = None
    seed: int = 1


class StalledError(CommandError):
    """The watch ended a run that got nowhere."""


class LoadClient:
    """A load client that is ready to run.

    Attributes:
        build: What it is.
        limitation: Why it is not the compiled one; empty when it is.
    """

    def __init__(self, build: ClientBuild, extension: Path | None, limitation: str = "") -> None:
        self.build = build
        self.limitation = limitation
        self._extension = extension

    @property
    def is_compiled(self) -> bool:
        """Whether it is the compiled client."""
        return self._extension is not None

    def run(
        self,
        load: Load,
        headers: Mapping[str, str],
        *,
        limit_s: float,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> RawResult:
        """Run once, to the end.

        Args:
            load: What to do.
            headers: Sent with every request; they reach the child through a private file.
            limit_s: Wall-clock limit, seconds.
            keep_going: Asked a few times a second; False ends the run.

        Raises:
            StalledError: It ran past its limit or was told not to go on.
            CommandError: The client failed as a whole, e.g. it never reached the server.
        """
        with tempfile.TemporaryDirectory(prefix="load-client-") as name:
            folder = Path(name)
            config, result = folder / "config.json", folder / "result.json"
            if self._extension:
                content = compiled_config(load, headers, folder)
                argv = [compiled_worker.__file__, str(self._extension), str(config), str(result)]
            else:
                content = fallback_config(load, headers)
                argv = [fallback_worker.__file__, str(config), str(result)]
            config.write_text(json.dumps(content), encoding="utf-8")
            with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
                code = _watch([sys.executable, "-I", *argv], log.fileno(), limit_s, keep_going)
                log.seek(0)
                tail = log.read().strip().splitlines()[-5:]
            if code or not result.is_file():
                raise CommandError(
                    f"the load client failed with exit code {code}", where=load.url, details=tail
                )
            return parse_result(json.loads(result.read_text(encoding="utf-8")))


def _watch(argv: list[str], log: int, limit_s: float, keep_going: Callable[[], bool]) -> int:
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                return child.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise StalledError(f"the load did not end within {limit_s:g} s") from None
                if not keep_going():
                    raise StalledError("the server stopped making progress under load") from None
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)  # it holds nothing but sockets
            child.wait()


def compiled_config(load: Load, headers: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The compiled client's configuration; writes the prompts into `folder`."""
    dataset, tokenizer = write_dataset(folder, load.prompts)
    config: dict[str, Any] = {
        "backend": _BACKENDS[load.route],
        "base_url": load.url,
        "model": load.model,
        "tokenizer": str(tokenizer),
        "dataset_name": "sharegpt",
        "dataset_path": str(dataset),
        "sharegpt_output_len": load.output_tokens,
        "num_prompts": len(load.prompts),
        "request_rate": "inf" if load.request_rate is None else str(load.request_rate),
        "warmup_requests": 0,  # we warm up ourselves, with prompts of our own
        "ready_check_timeout_sec": 30,
        "seed": load.seed,
        "output_file": str(folder / "details.jsonl"),
        "output_details": True,
        "disable_retokenize": True,
        "disable_tqdm": True,
        # Not asked for by the client itself; without it, it reports the requested length as the measured one.
        "extra_request_body": json.dumps({"stream_options": USAGE_OPTIONS}),
        "headers": [f"{name}: {value}" for name, value in headers.items()],
    }
    if load.concurrency is not None:
        config["max_concurrency"] = load.concurrency
    return config


def fallback_config(load: Load, headers: Mapping[str, str]) -> dict[str, Any]:
    """The fallback client's configuration."""
    return {
        "base_url": load.url,
        "model": load.model,
        "route": load.route.value,
        "prompts": load.prompts,
        "output_tokens": load.output_tokens,
        "max_concurrency": load.concurrency,
        "request_rate": load.request_rate,
        "seed": load.seed,
        "headers": {name: value for name, value in headers.items() if name != "Connection"},
    }


def fallback_client(limitation: str = "") -> LoadClient:
    """The fallback client, which runs wherever this package does."""
    source = Path(fallback_worker.__file__)
    build = ClientBuild(name="fallback", version="1", sha256=sha256_of_file(source))
    return LoadClient(build, None, limitation)


def load_client(kind: ClientKind) -> LoadClient:
    """The load client to use.

    Raises:
        NoCompiledClientError: The compiled one was asked for and cannot run here.
        CheckError: What is in the cache is not the pinned build.
    """
    if kind is ClientKind.FALLBACK:
        return fallback_client("measured with the fallback client, as asked")
    try:
        extension, build = compiled_client()
    except NoCompiledClientError as error:
        if kind is ClientKind.COMPILED:
            raise
        return fallback_client(f"measured with the fallback client: {error.what}")
    return LoadClient(build, extension)

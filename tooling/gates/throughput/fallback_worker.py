"""The fallback load client, one run in a child process; its result has the compiled client's keys.

For machines and servers where the compiled one cannot run. A packaged tool was weighed: the smallest that
reports per-request times installs 140 packages, needs a tokenizer and keeps a core busy when idle. This is one
coroutine a stream over aiohttp; what it cannot keep up with, the calibration against the mock finds.

Run as `python -I fallback_worker.py CONFIG RESULT`.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

_EVENT = b"data:"
_END = b"[DONE]"


def _text_of(event: dict[str, Any]) -> str:
    """The text that one event brings, in whichever field the engine puts it."""
    fields: list[Any] = []
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        fields += (choice.get("text"), delta.get("content"), delta.get("reasoning_content"))
    return "".join(field for field in fields if isinstance(field, str))


class _Answer:
    """What one request came to."""

    def __init__(self) -> None:
        self.ttft = 0.0
        self.itls: list[float] = []
        self.tokens = 0
        self.parts: list[str] = []
        self.error = ""
        self._last = 0.0

    def feed(self, line: bytes, started: float) -> None:
        """Take one line of the event stream."""
        if not line.startswith(_EVENT):
            return
        payload = line[len(_EVENT) :].strip()
        if payload == _END:
            return
        event = json.loads(payload)
        if "error" in event:
            self.error = str(event["error"])
        text = _text_of(event)
        now = time.perf_counter()
        if text:
            if self.parts:
                self.itls.append(now - self._last)
            else:
                self.ttft = now - started
            self._last = now
            self.parts.append(text)
        usage = event.get("usage") or {}
        self.tokens = int(usage.get("completion_tokens") or self.tokens)

    def close(self) -> None:
        """Decide whether this was an answer."""
        if not self.error and not self.parts:
            self.error = "the response contained no generated tokens"
        # Without usage a chunk is taken for a token, as the compiled client does.
        self.tokens = 0 if self.error else self.tokens or len(self.parts)


async def _ask(session: aiohttp.ClientSession, config: dict[str, Any], prompt: str) -> _Answer:
    answer = _Answer()
    chat = config["route"] == "chat"
    body = {
        "model": config["model"],
        "max_tokens": config["output_tokens"],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
    }
    url = f"{config['base_url']}/v1/{'chat/completions' if chat else 'completions'}"
    started = time.perf_counter()
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:  # noqa: PLR2004  # HTTP's OK
                answer.error = f"{response.status} {response.reason}: {(await response.text())[:200]}"
            else:
                async for line in response.content:
                    answer.feed(line, started)
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.close()
    return answer


async def _run(config: dict[str, Any]) -> dict[str, Any]:
    prompts: list[str] = config["prompts"]
    answers: list[_Answer | None] = [None] * len(prompts)
    rate, limit = config["request_rate"], config["max_concurrency"]
    queue = iter(range(len(prompts)))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=config["headers"]
    ) as session:

        async def one(index: int) -> None:
            answers[index] = await _ask(session, config, prompts[index])

        async def stream() -> None:
            for index in queue:
                await one(index)

        started = time.perf_counter()
        if rate:
            # Arrivals of a Poisson process, at times fixed beforehand: a slow server does not slow the load.
            chance, due, tasks = random.Random(config["seed"]), started, []  # noqa: S311  # no secret
            for index in queue:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(one(index)))
                due += chance.expovariate(rate)
            await asyncio.gather(*tasks)
        else:
            await asyncio.gather(*(stream() for _ in range(limit)))
        duration = time.perf_counter() - started
    done = [answer for answer in answers if answer is not None]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "duration": duration,
        "completed": sum(1 for answer in done if not answer.error),
        "total_output_tokens": sum(answer.tokens for answer in done),
        "output_lens": [answer.tokens for answer in done],
        "ttfts": [answer.ttft for answer in done],
        "itls": [answer.itls for answer in done],
        "generated_texts": ["".join(answer.parts) for answer in done],
        "errors": [answer.error for answer in done],
        "max_concurrent_requests": limit or 0,
        "client_cpu_s": usage.ru_utime + usage.ru_stime,
    }


def main() -> int:
    """Run one configuration and write its result document."""
    config_file, result_file = sys.argv[1:3]
    config = json.loads(Path(config_file).read_text(encoding="utf-8"))
    result = asyncio.run(_run(config))
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

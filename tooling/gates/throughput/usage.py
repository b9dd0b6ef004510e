"""How a server tells the number of tokens, and which client can read it that way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import requests

from tooling.errors import InputError
from tooling.gates.throughput.load import USAGE_OPTIONS
from tooling.gates.throughput.plan import Route, UsageStyle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.gates.throughput.plan import Endpoint

LIMIT_S = 300.0
_TOKENS = 4


def usage_style(lines: Iterable[str]) -> UsageStyle:
    """Read the style off the lines of one event stream."""
    final = False
    for line in lines:
        payload = line.removeprefix("data:").strip()
        if not line.startswith("data:") or payload == "[DONE]":
            continue
        event: dict[str, Any] = json.loads(payload)
        if not (event.get("usage") or {}).get("completion_tokens"):
            continue
        choice = (event.get("choices") or [{}])[0]
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            return UsageStyle.EACH
        final = True
    return UsageStyle.FINAL if final else UsageStyle.NONE


def compiled_client_reads(style: UsageStyle, route: Route) -> bool:
    """Whether the compiled client sees usage of that style; where not, it reports what was requested."""
    return style is UsageStyle.EACH or (style is UsageStyle.FINAL and route is Route.CHAT)


def ask_usage_style(endpoint: Endpoint, headers: Mapping[str, str]) -> UsageStyle:
    """Stream one short answer and look how its tokens are told.

    A server that refuses even this is not judged here; the load itself will show it.

    Raises:
        InputError: The server went away.
    """
    chat = endpoint.route is Route.CHAT
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": USAGE_OPTIONS,
        "ignore_eos": True,
        **({"messages": [{"role": "user", "content": "Count."}]} if chat else {"prompt": "Count."}),
    }
    url = f"{endpoint.url}/v1/{'chat/completions' if chat else 'completions'}"
    try:
        with requests.post(url, json=body, headers=dict(headers), stream=True, timeout=LIMIT_S) as answer:
            if not answer.ok:
                return UsageStyle.NONE
            return usage_style(answer.iter_lines(decode_unicode=True))
    except (requests.ConnectionError, requests.Timeout) as error:
        raise InputError(
            f"the server does not answer a single request: {error}", where=url, fix="look at its log"
        ) from error
    except ValueError:
        return UsageStyle.NONE

"""SGLang plugin: puts this package's kernels behind the engine's own functions, and proves that it did.

Entry point `sglang.srt.plugins`. SGLang loads plugins in every one of its processes and swallows what they
raise, so this one reports each outcome in the log and in a counter file, and in strict mode ends the process.
"""

from __future__ import annotations

import os

from blackwell_kernels.sglang_plugin import messages
from blackwell_kernels.sglang_plugin.activation import activate
from blackwell_kernels.sglang_plugin.settings import DISABLE, STRICT, Settings, SettingsError, read_settings


def register() -> None:
    """Called by SGLang's loader, once a process.

    Without a request, or with the kill switch thrown, it changes nothing. Never raises: outside strict mode
    a feature that cannot be had is DISABLED and the engine serves as it would without the plugin.
    """
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        if os.environ.get(STRICT, "").strip().lower() not in {"", "0", "false", "no", "off"}:
            messages.end_process(str(error))
        messages.say(f"plugin refused: {error}")
        return
    if settings.disabled:
        messages.say(f"plugin switched off by {DISABLE}")
        return
    if not settings.requested:
        messages.say("plugin installed, nothing requested")
        return
    _activate(settings)


def _activate(settings: Settings) -> None:
    """Nothing may pass to SGLang's loader, which would hide it."""
    try:
        activate(settings)
    except Exception as error:  # noqa: BLE001  # said, and fatal in strict mode
        if settings.strict:
            messages.end_process(f"{type(error).__name__}: {error}")
        messages.say(f"plugin refused: {type(error).__name__}: {error}")

"""Lines for the log. Log triage knows their beginnings, so they stay as they are.

They go to standard error by a handler of their own: plugins are loaded before SGLang sets up its logging.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from blackwell_kernels.sglang_plugin.settings import Feature

#: sysexits.h EX_CONFIG: the configuration cannot be had.
EXIT_CODE = 78
_NAME = "blackwell-kernels"
_LOGGER = logging.getLogger("blackwell_kernels.sglang_plugin")


def _logger() -> logging.Logger:
    if not _LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)
        _LOGGER.propagate = False
    return _LOGGER


def say(text: str) -> None:
    """A line that concerns no single feature."""
    _logger().info("%s: %s", _NAME, text)


def prepared(feature: Feature, detail: str) -> None:
    """The hooks of a feature are in place or its buffers stand; nothing has run yet."""
    _logger().info("%s: %s prepared: %s", _NAME, feature, detail)


def active(feature: Feature, detail: str) -> None:
    """A kernel of the feature was launched for the first time in this process."""
    _logger().info("%s: %s ACTIVE: %s", _NAME, feature, detail)


def disabled(feature: Feature, reason: str) -> None:
    """The feature was asked for and will not run."""
    _logger().warning("%s: %s DISABLED: %s", _NAME, feature, reason)


def fell_back(feature: Feature, reason: str, detail: str) -> None:
    """One call went the engine's own way; said once a reason, counted every time."""
    _logger().warning("%s: %s fell back to the engine's own path: %s (%s)", _NAME, feature, reason, detail)


def end_process(reason: str) -> NoReturn:
    """Strict mode: SGLang swallows exceptions of plugins, so the process ends here and now."""
    _logger().error("%s: strict mode ends this process: %s", _NAME, reason)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(EXIT_CODE)

"""From what is asked for to hooks in place: seams first, then the device, then the hooks, then the proof."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from typing import TYPE_CHECKING, Any

from blackwell_kernels.sglang_plugin import messages
from blackwell_kernels.sglang_plugin.counters import Counters
from blackwell_kernels.sglang_plugin.seams import (
    check_feature,
    engine_root,
    engine_version,
    seams_of,
)
from blackwell_kernels.sglang_plugin.settings import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from blackwell_kernels.sglang_plugin.settings import Settings

#: The module that has the hooks of a feature: `hooks(features, counters, settings)` gives them by target.
_HOOKS = {
    Feature.ALLREDUCE_RMSNORM: "blackwell_kernels.sglang_plugin.allreduce",
    Feature.ALLREDUCE: "blackwell_kernels.sglang_plugin.allreduce",
    Feature.TOPK: "blackwell_kernels.sglang_plugin.topk",
    Feature.INDEXER: "blackwell_kernels.sglang_plugin.indexer",
}
NO_DEVICE = "no CUDA device"


def activate(settings: Settings) -> Counters:
    """Check and hook every requested feature; what cannot be had is DISABLED, or ends the process if strict.

    Args:
        settings: The switches; at least one feature is requested.

    Raises:
        OSError: The folder of the counter files cannot be used.
    """
    version = engine_version()
    counters = Counters(
        {
            "package": importlib.metadata.version("blackwell-kernels"),
            "engine": f"sglang {version}",
            "strict": settings.strict,
            "rank": None,
        }
    )
    for feature in sorted(settings.requested):
        counters.request(feature)
    accepted = _accepted(settings, counters, version)
    missing = _missing_device() if accepted else ""
    for feature in accepted if missing else ():
        refuse(settings, counters, feature, f"not active: {missing}")
    if accepted and not missing:
        _hook(settings, counters, accepted)
    if settings.counters is not None:
        counters.export_to(settings.counters)
    return counters


def refuse(settings: Settings, counters: Counters, feature: Feature, reason: str) -> None:
    """A feature cannot be had: it is DISABLED, and in strict mode the process ends."""
    counters.disable(feature, reason)
    if settings.strict:
        messages.end_process(f"{feature}: {reason}")


def _accepted(settings: Settings, counters: Counters, version: str | None) -> list[Feature]:
    """Features whose seams are the functions that were read."""
    root = engine_root()
    accepted = []
    for feature in sorted(settings.requested):
        problems = check_feature(feature, root, version)
        if problems:
            refuse(settings, counters, feature, f"refused: {'; '.join(problems)}")
            continue
        count = len(seams_of(version, [feature]))
        messages.say(f"{feature}: {count} seams of SGLang {version} are as read")
        accepted.append(feature)
    return accepted


def _missing_device() -> str:
    """Why no kernel could run here, or an empty string; makes no CUDA context."""
    torch = importlib.import_module("torch")
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    return "" if torch.cuda.is_available() else NO_DEVICE


def _hook(settings: Settings, counters: Counters, features: Iterable[Feature]) -> None:
    """Hand the hooks to SGLang's registry and look, once it has applied them, whether they are there."""
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    owners: dict[str, set[Feature]] = {}
    for name, group in _by_module(features).items():
        hooks = _hooks_of(name, group, settings, counters)
        for target, hook in hooks.items():
            registry.HookRegistry.register(target, hook, registry.HookType.AROUND)
            owners[target] = {
                feature
                for seam in seams_of(engine_version(), group)
                if seam.target == target
                for feature in seam.features & group
            }
    if owners:
        _verify_when_applied(registry.HookRegistry, owners, settings, counters)


def _by_module(features: Iterable[Feature]) -> dict[str, set[Feature]]:
    """Features by the module that has their hooks: two that share a seam share the hook on it."""
    modules: dict[str, set[Feature]] = {}
    for feature in features:
        modules.setdefault(_HOOKS[feature], set()).add(feature)
    return modules


def _hooks_of(
    name: str, features: set[Feature], settings: Settings, counters: Counters
) -> Mapping[str, Callable[..., Any]]:
    """Hooks of a module, exactly on the listed seams; none when its kernels cannot be loaded."""
    listed = {seam.target for seam in seams_of(engine_version(), features) if seam.hooked}
    try:
        hooks: Mapping[str, Callable[..., Any]] = importlib.import_module(name).hooks(
            features, counters, settings
        )
    except (ImportError, OSError) as error:
        problem = f"its kernels cannot be loaded: {error}"
    else:
        if set(hooks) == listed:
            return hooks
        problem = f"hooks on {sorted(hooks)} are not those on the listed seams {sorted(listed)}"
    for feature in sorted(features):
        refuse(settings, counters, feature, problem)
    return {}


def _verify_when_applied(
    registry: Any, owners: Mapping[str, set[Feature]], settings: Settings, counters: Counters
) -> None:
    """Look after the loader's next `apply_hooks`, which logs and swallows what goes wrong.

    The loader calls it once, after the last plugin; applying ours earlier would make it skip hooks that other
    plugins put on the same functions.
    """
    original = registry.apply_hooks

    def apply_and_verify() -> None:
        registry.apply_hooks = original
        before = {target: _resolve(target) for target in owners}
        original()
        lost = {target for target in owners if _resolve(target) is before[target]}
        for feature in sorted(set().union(*owners.values())):
            mine = {target for target, features in owners.items() if feature in features}
            if mine & lost:
                names = ", ".join(sorted(mine & lost))
                refuse(settings, counters, feature, f"SGLang did not apply the hook on {names}")
            else:
                counters.set_state(feature, "prepared", f"{len(mine)} hooks in place")
                messages.prepared(feature, f"{len(mine)} hooks in place")
        counters.write()

    registry.apply_hooks = apply_and_verify


def _resolve(target: str) -> object:
    """The function that a dotted name means now; None where there is none."""
    parent, _, name = target.rpartition(".")
    try:
        return getattr(pkgutil.resolve_name(parent), name, None)
    except (ImportError, AttributeError):
        return None

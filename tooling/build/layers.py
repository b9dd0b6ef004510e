"""Which wheel goes into which image layer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tooling.errors import InputError

if TYPE_CHECKING:
    from tooling.lock.lockfile import Lock, LockedWheel
    from tooling.stack.model import Stack


def assign_layers(stack: Stack, lock: Lock) -> dict[str, list[LockedWheel]]:
    """Wheels by layer, in the stack's order; the last layer takes what no other one names.

    Raises:
        InputError: A layer's pattern matches no wheel (it is stale), or a layer stays empty.
    """
    layers: dict[str, list[LockedWheel]] = {layer.name: [] for layer in stack.layers}
    unused = {(layer.name, pattern) for layer in stack.layers for pattern in layer.packages}
    for wheel in lock.wheels:
        chosen = stack.layers[-1].name
        for layer in stack.layers[:-1]:
            pattern = next((one for one in layer.packages if fnmatchcase(wheel.name, one)), None)
            if pattern is not None:
                unused.discard((layer.name, pattern))
                chosen = layer.name
                break
        layers[chosen].append(wheel)
    if unused:
        name, pattern = min(unused)
        raise InputError(
            f"{pattern!r} of layer {name!r} matches no package of the lock",
            where=f"stack {stack.name}, layers",
            fix="remove it, or correct the name",
        )
    empty = [name for name, wheels in layers.items() if not wheels]
    if empty:
        raise InputError(
            f"layer {empty[0]!r} would be empty", where=f"stack {stack.name}, layers", fix="remove it"
        )
    return layers

"""The keep rule: images and containers of the last generations stay and are pinned, older ones make room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.errors import EngineError
from tooling.host import plan
from tooling.host.containers import find_image
from tooling.host.contract import LABEL_GENERATION, container_name, pin_name
from tooling.host.pin import ensure_pin

if TYPE_CHECKING:
    from tooling.host.host import Host
    from tooling.host.state import Current, Generation


def apply_keep_rule(host: Host, current: Current, keep: int) -> None:
    """Pin what is kept, remove what is not.

    Args:
        host: Where.
        current: The committed generation.
        keep: Earlier generations that stay.

    Raises:
        EngineError: The engine refuses.
    """
    numbers = host.group.numbers()
    kept = plan.kept(current, numbers, keep)
    generations = {number: host.group.generation(number) for number in numbers}
    for number in kept:
        if number in current.served:
            _pin(host, generations[number])
    there = {
        int(one["Config"]["Labels"][LABEL_GENERATION])
        for role in ("stack", "pin")
        for one in host.docker.containers(host.group.name, role)
    }
    needed = {generations[number].image for number in kept}
    for number in sorted(there):
        if number not in kept or number not in current.served:
            host.docker.remove(pin_name(host.group.name, number))
        if number not in kept:
            host.docker.remove(container_name(host.group.name, number))
            if number in generations and generations[number].image not in needed:
                _remove_image(host, generations[number])


def _pin(host: Host, generation: Generation) -> None:
    """Pin a kept generation; one whose image an earlier keep rule gave up would be pulled for a rollback."""
    image = find_image(host.docker, generation)
    if image:
        ensure_pin(host.docker, host.group.name, generation.number, image)
    else:
        host.events.progress(
            "keep", f"the image of generation {generation.number} is not on this host any more"
        )


def _remove_image(host: Host, generation: Generation) -> None:
    """Take our name off an image; the engine removes it when nobody else has one for it.

    An image that was brought here by somebody is theirs.
    """
    request = generation.request
    if request.pull != "registry" or host.docker.inspect(request.reference, "image") is None:
        return
    try:
        host.docker.call("image", "rm", request.reference)
    except EngineError as error:
        # A container that is not ours uses it: theirs to keep.
        host.events.progress("keep", f"the image of generation {generation.number} stays: {error.what}")
    else:
        host.events.progress("keep", f"the image of generation {generation.number} was removed")

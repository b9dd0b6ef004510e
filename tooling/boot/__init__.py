"""Boot an image as a container, know at once when it fails, and believe it ready only when it answers."""

from tooling.boot.attach import attach
from tooling.boot.contract import Mount, RunContract, serve_arguments, stack_contract
from tooling.boot.dry_boot import dry_boot_contract
from tooling.boot.endpoint import BootFacts, Endpoint
from tooling.boot.failure import BootError, Reason
from tooling.boot.readiness import Answer, Patience
from tooling.boot.start import boot

__all__ = [
    "Answer",
    "BootError",
    "BootFacts",
    "Endpoint",
    "Mount",
    "Patience",
    "Reason",
    "RunContract",
    "attach",
    "boot",
    "dry_boot_contract",
    "serve_arguments",
    "stack_contract",
]

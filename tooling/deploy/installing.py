"""The host program gets onto a host: by hash, whole or not at all; older ones stay, they may be running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.host.bundle import bundle, bundle_name
from tooling.records import Record, sha256_of

if TYPE_CHECKING:
    from tooling.deploy.inventory import Host

#: Reads the program from stdin. $1 its path, $2 its SHA-256, $3 the name that always points to the newest.
_SCRIPT = (
    'set -eu; umask 022; part="$1.$$"; trap \'rm -f "$part"\' EXIT; mkdir -p "${1%/*}"; cat > "$part"; '
    'echo "$2  $part" | sha256sum --check --status || '
    '{ echo "the host program was damaged on its way here" >&2; exit 1; }; '
    'sync "$part"; mv -f "$part" "$1"; ln -s "${1##*/}" "$part"; mv -fT "$part" "$3"'
)


class HostProgram(Record):
    """The host program as it is sent.

    Attributes:
        content: The zip application.
    """

    content: bytes

    @property
    def sha256(self) -> str:
        """Its hash, by which it is installed and checked."""
        return sha256_of(self.content)

    def path(self, host: Host) -> str:
        """Where this very program lies; a running deploy keeps its own while a newer one comes."""
        return f"{host.root}/bin/{bundle_name(self.content)}"


def current_program() -> HostProgram:
    """The host program of this toolkit."""
    return HostProgram(content=bundle())


def newest_program(host: Host) -> str:
    """The name that always points to the newest program: for people and for the unit at boot."""
    return f"{host.root}/bin/blackwell-host.pyz"


def install_command(host: Host, program: HostProgram) -> list[str]:
    """The command that installs the program from its stdin."""
    return ["sh", "-c", _SCRIPT, "sh", program.path(host), program.sha256, newest_program(host)]

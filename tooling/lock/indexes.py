"""Where package indexes are: read from the machine's own settings, never from a file of the project."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tooling.errors import InputError
from tooling.lock.lockfile import DEFAULT_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tooling.stack.model import Index

_PREFIX = "BLACKWELL_STACKS_INDEX_"


def variable_of(index: str) -> str:
    """Name of the environment variable that holds the address of a named index."""
    return _PREFIX + index.upper().replace("-", "_").replace(".", "_")


def default_index(environment: Mapping[str, str], pip_files: Iterable[Path]) -> str | None:
    """Address of the default index as uv or pip are told on this machine; None means uv's own default.

    The order is uv's variables, pip's variable, pip's files (a later file wins, as in pip).
    """
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if environment.get(variable):
            return environment[variable]
    found = None
    for path in pip_files:
        parser = configparser.RawConfigParser()
        parser.read(path, encoding="utf-8")
        for section in ("global", "install"):
            found = parser.get(section, "index-url", fallback=found)
    return found


def pip_configuration_files(environment: Mapping[str, str]) -> list[Path]:
    """Configuration files of pip on Linux, in the order in which pip reads them."""
    home = Path(environment.get("HOME", "/root"))
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if "PIP_CONFIG_FILE" in environment:
        files.append(Path(environment["PIP_CONFIG_FILE"]))
    return files


def unknown_indexes(indexes: Iterable[Index], environment: Mapping[str, str] | None = None) -> list[str]:
    """For each index whose address this machine does not know, what to export and what it must serve."""
    environment = os.environ if environment is None else environment
    return [
        f"{variable_of(index.name)}=<address of a simple index with {index.holds}>"
        for index in indexes
        if not environment.get(variable_of(index.name))
    ]


def index_addresses(indexes: Iterable[Index], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Addresses of the named indexes, and of the default one where the machine sets it.

    Raises:
        InputError: A named index has no address on this machine; all such indexes are named.
    """
    environment = os.environ if environment is None else environment
    indexes = tuple(indexes)
    if unknown := unknown_indexes(indexes, environment):
        raise InputError(
            f"{len(unknown)} of the package indexes that the stack needs are not known to this machine",
            details=unknown,
            fix="export these variables, then run the command again",
        )
    addresses = {}
    if default := default_index(environment, pip_configuration_files(environment)):
        addresses[DEFAULT_INDEX] = default
    for index in indexes:
        addresses[index.name] = environment[variable_of(index.name)]
    return addresses


def uv_index_variables(addresses: Mapping[str, str]) -> dict[str, str]:
    """The addresses as uv reads them from its environment. They may hold credentials: secrets only."""
    variables = {}
    if DEFAULT_INDEX in addresses:
        variables["UV_DEFAULT_INDEX"] = addresses[DEFAULT_INDEX]
    further = [f"{name}={address}" for name, address in addresses.items() if name != DEFAULT_INDEX]
    if further:
        variables["UV_INDEX"] = " ".join(further)
        # A pin may live in any of the named indexes; the hash in the lock decides what is taken.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def on_loopback(addresses: Mapping[str, str]) -> bool:
    """Whether an index is only reachable from this host itself, e.g. a local mirror."""
    hosts = {urlsplit(address).hostname or "" for address in addresses.values()}
    return any(host in {"localhost", "::1"} or host.startswith("127.") for host in hosts)

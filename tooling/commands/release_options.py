"""Options that the commands around releases share, and what they mean."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml
from pydantic import TypeAdapter, ValidationError

from tooling import console
from tooling.errors import InputError
from tooling.registry import local
from tooling.registry.layout import Layout
from tooling.registry.reference import Reference, parse_reference
from tooling.registry.repository import Repository
from tooling.registry.transport import Settings
from tooling.sign.errors import KeyFileError
from tooling.sign.keys import Trust
from tooling.sign.local import keys_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.release.evidence import Source

#: How the registry of this machine is named: `local:cpu:TAG` instead of `127.0.0.1:<port>/cpu:TAG`.
LOCAL = "local:"

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
TrustPath = Annotated[
    Path | None,
    typer.Option(
        "--trust",
        envvar="BLACKWELL_STACKS_TRUST",
        help="Public key that is believed, or a directory of them (*.pub); default: this user's own.",
    ),
]
KeyFile = Annotated[Path, typer.Option("--key", help="Private key file, made by keygen.")]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File whose first line is the key's passphrase.")
]
CaFile = Annotated[Path | None, typer.Option("--ca-file", help="Certificate authority of the registry (PEM).")]
PlainHttp = Annotated[bool, typer.Option("--plain-http", help="Speak HTTP to a registry on another machine.")]
Evidence = Annotated[
    Path | None, typer.Option("--evidence", help="File or directory of signed evidence, from any machine.")
]
Waivers = Annotated[Path | None, typer.Option("--waiver", "--waivers", help="YAML file: a list of waivers.")]
Image = Annotated[
    str,
    typer.Argument(
        help="host[:port]/repository[:tag][@digest], local:repository[:tag] (this machine's own registry), "
        "or oci:DIRECTORY:TAG."
    ),
]

_Model = TypeVar("_Model")


@dataclass(frozen=True)
class Place:
    """A registry's repository or a layout directory, and the tag or digest in it."""

    source: Source
    name: str


def settings(ca_file: Path | None, *, plain_http: bool) -> Settings:
    """How to speak to a registry, from the options."""
    return Settings(ca_file=ca_file, plain_http=plain_http, notify=console.say)


def trusted(path: Path | None) -> Trust:
    """Whom to believe: what was given, else this user's own keys.

    Raises:
        KeyFileError: Nobody.
    """
    if path is None and not any(keys_folder().glob("*.pub")):
        raise KeyFileError(
            "it is not known whose signatures to believe",
            where=f"no *.pub in {keys_folder()}",
            fix="give --trust with a public key or a directory of them",
        )
    return Trust.load(path or keys_folder())


def reference_of(image: str) -> Reference:
    """Read an image name; `local:` is this machine's own registry, which is started when it does not run."""
    if image.startswith(LOCAL):
        return parse_reference(f"{local.start(console.say).host}/{image.removeprefix(LOCAL)}")
    return parse_reference(image)


@contextmanager
def opened(image: str, ca_file: Path | None, *, plain_http: bool) -> Iterator[Place]:
    """What an image name points to, for reading."""
    if image.startswith("oci:"):
        directory, _, tag = image.removeprefix("oci:").partition(":")
        layout = Layout.open(Path(directory))
        yield Place(layout, tag or next(iter(layout.tags()), ""))
        return
    reference = reference_of(image)
    with Repository(reference, settings(ca_file, plain_http=plain_http)) as repository:
        yield Place(repository, reference.digest or reference.tag)


def read_yaml(path: Path, kind: type[_Model]) -> _Model:
    """Read a YAML file as a record.

    Raises:
        InputError: It cannot be read, or is none.
    """
    try:
        value: Any = yaml.safe_load(path.read_text())
        return TypeAdapter(kind).validate_python(value)
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    except yaml.YAMLError as error:
        raise InputError(f"the file is no YAML: {error}", where=str(path)) from error
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        raise InputError("the file does not hold what it should", where=str(path), details=lines) from error

"""Keys, releases, channels, exports: `keygen`, `release`, `releases`, `show`, `verify`, `promote` and more."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from rich.text import Text

from tooling import console
from tooling.errors import CheckError, InputError
from tooling.registry.access import probe_access
from tooling.registry.layout import Layout, export_layout, import_layout
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.registry.transport import Settings
from tooling.release.channels import promote
from tooling.release.locate import open_source, release_or_digest
from tooling.release.names import parse_release_name
from tooling.release.publish import ReleaseRequest, release
from tooling.release.records import ReleaseFacts, ReleasePolicy, Waiver
from tooling.release.show import checklist, list_table, summary
from tooling.release.verify import list_releases, verify
from tooling.sign.keys import SigningKey, Trust, write_key_pair
from tooling.sign.passphrase import read_passphrase

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tooling.release.evidence import Source

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
TrustPath = Annotated[
    Path,
    typer.Option(
        "--trust",
        envvar="BLACKWELL_STACKS_TRUST",
        help="Public key that is believed, or a directory of them (*.pub).",
    ),
]
KeyFile = Annotated[Path, typer.Option("--key", help="Private key file, made by keygen.")]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File whose first line is the key's passphrase.")
]
CaFile = Annotated[Path | None, typer.Option("--ca-file", help="Certificate authority of the registry (PEM).")]
PlainHttp = Annotated[bool, typer.Option("--plain-http", help="Speak HTTP to a registry on another machine.")]
Image = Annotated[str, typer.Argument(help="host[:port]/repository[:tag][@digest], or oci:DIRECTORY:TAG.")]

_Model = TypeVar("_Model")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (
        keygen_command,
        release_command,
        releases_command,
        show_command,
        verify_command,
        promote_command,
        export_layout_command,
        import_layout_command,
        registry_access_command,
    ):
        app.command(name=command.__name__.removesuffix("_command").replace("_", "-"))(command)


def keygen_command(
    prefix: Annotated[Path, typer.Argument(help="Writes PREFIX.key (private, 0600) and PREFIX.pub.")],
    *,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a signing key (ECDSA P-256) under a passphrase, which is never given on the command line."""
    key = SigningKey.generate()
    private, public = write_key_pair(prefix, key, read_passphrase(passphrase_file, confirm=True))
    if as_json:
        console.print_json({"key_id": key.id, "private": str(private), "public": str(public)})
        return
    console.out.print(Text(f"key {key.id[:12]}: {private} (keep it secret), {public} (give it to every host)"))


def release_command(
    image: Image,
    *,
    policy: Annotated[Path, typer.Option("--policy", help="YAML file: what the release needs.")],
    key_file: KeyFile,
    trust: TrustPath,
    stack: Annotated[str, typer.Option("--stack", help="Name of the stack.")],
    engine_version: Annotated[str, typer.Option("--engine-version", help="Version of its engine.")],
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="Directory of signed evidence, from any machine.")
    ] = None,
    facts: Annotated[Path | None, typer.Option("--facts", help="YAML file: what inspection found.")] = None,
    waivers: Annotated[Path | None, typer.Option("--waivers", help="YAML file: a list of waivers.")] = None,
    passphrase_file: PassphraseFile = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Release an image of a registry: check its evidence, sign a record, write the immutable tag last."""
    request = ReleaseRequest(
        stack=stack,
        engine_version=engine_version,
        policy=read_yaml(policy, ReleasePolicy),
        tool_version=version("blackwell-stacks"),
        evidence=evidence,
        facts=read_yaml(facts, ReleaseFacts) if facts else ReleaseFacts(),
        waivers=read_yaml(waivers, tuple[Waiver, ...]) if waivers else (),
    )
    trusted = Trust.load(trust)
    key = SigningKey.load(key_file, read_passphrase(passphrase_file))
    reference = parse_reference(image)
    name = reference.digest or reference.tag
    if not name:
        raise InputError("the image needs a digest or a tag", where=image, fix="add @sha256:...")
    with Repository(reference, read_settings(ca_file, plain_http=plain_http)) as repository:
        done = release(request, repository, name, key=key, trust=trusted, now=datetime.now(UTC))
    for line in done.rejected:
        console.say(f"does not count: {line}")
    if as_json:
        console.print_json(done)
        return
    console.out.print(summary(done.verification))
    console.out.print(Text(f"released {done.name}\n  {done.image}"))


def releases_command(
    repository: Annotated[str, typer.Argument(help="host[:port]/repository, or oci:DIRECTORY.")],
    *,
    trust: TrustPath,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """List the releases of a repository with their status; exit code 1 when one does not hold."""
    trusted = Trust.load(trust)
    with _open(repository, ca_file, plain_http=plain_http) as (source, _):
        listed = list_releases(source, trusted, now=datetime.now(UTC))
    if not listed:
        raise CheckError("there is no release", where=repository, fix="check the name, or release something")
    bad = [f"{item.name}: {item.problem}" for item in listed if item.problem]
    if as_json:
        console.print_json([item.model_dump(mode="json") for item in listed])
        raise typer.Exit(1 if bad else 0)
    console.out.print(list_table(listed))
    if bad:
        raise CheckError("not every release holds", where=repository, details=bad, fix="see `verify`")


def show_command(
    image: Image,
    *,
    trust: TrustPath,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Show a release: status, hardware, checklist, waivers (expired ones too), limitations."""
    trusted = Trust.load(trust)
    with _open(image, ca_file, plain_http=plain_http) as (source, name):
        found = verify(
            source,
            release_or_digest(source, name, trusted),
            trusted,
            now=datetime.now(UTC),
            allow_expired_waivers=True,
        )
    if as_json:
        console.print_json(found)
        return
    console.out.print(summary(found))
    console.out.print(checklist(found.release.assessment))


def verify_command(
    image: Image,
    *,
    trust: TrustPath,
    policy: Annotated[Path | None, typer.Option("--policy", help="A policy of your own as well.")] = None,
    allow_expired_waivers: Annotated[
        bool, typer.Option("--allow-expired-waivers", help="Only report waivers that have run out.")
    ] = False,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Check a release or channel: signatures, digests, named evidence, policy; print status and hardware."""
    trusted = Trust.load(trust)
    own = read_yaml(policy, ReleasePolicy) if policy else None
    with _open(image, ca_file, plain_http=plain_http) as (source, name):
        found = verify(
            source,
            release_or_digest(source, name, trusted),
            trusted,
            now=datetime.now(UTC),
            policy=own,
            allow_expired_waivers=allow_expired_waivers,
        )
    if as_json:
        console.print_json(found)
    else:
        console.out.print(summary(found))


def promote_command(
    release_image: Annotated[str, typer.Argument(help="host[:port]/repository:RELEASE.")],
    channel: Annotated[str, typer.Argument(help="candidate or stable.")],
    *,
    key_file: KeyFile,
    trust: TrustPath,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    passphrase_file: PassphraseFile = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Move a channel to a release, forwards or back, with an entry in its signed log."""
    trusted = Trust.load(trust)
    key = SigningKey.load(key_file, read_passphrase(passphrase_file))
    reference = parse_reference(release_image)
    with Repository(reference, read_settings(ca_file, plain_http=plain_http)) as repository:
        entry = promote(
            repository, channel, reference.tag, key=key, trust=trusted, now=datetime.now(UTC), reason=reason
        )
    if as_json:
        console.print_json(entry)
        return
    console.out.print(
        Text(f"{channel} -> {entry.entry.release} (entry {entry.entry.sequence})\n  {entry.digest}")
    )


def export_layout_command(
    image: Annotated[str, typer.Argument(help="host[:port]/repository:RELEASE.")],
    directory: Annotated[Path, typer.Argument(help="New directory.")],
    *,
    trust: TrustPath,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Write a verified release with all its records into an OCI layout directory, for an air gap."""
    reference = parse_reference(image)
    trusted = Trust.load(trust)
    with Repository(reference, read_settings(ca_file, plain_http=plain_http)) as repository:
        name = release_or_digest(repository, reference.tag or reference.digest, trusted)
        found = verify(repository, name, trusted, now=datetime.now(UTC), allow_expired_waivers=True)
        layout = export_layout(repository, repository.manifest(found.digest), found.release.name, directory)
    _tell_copied(found.release.name, found.digest, layout.name, as_json=as_json)


def import_layout_command(
    directory: Annotated[Path, typer.Argument(help="OCI layout directory, as export-layout wrote it.")],
    repository_name: Annotated[str, typer.Argument(help="host[:port]/repository.")],
    *,
    trust: TrustPath,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Verify a release in a directory and write it into a registry; its tag comes last."""
    trusted = Trust.load(trust)
    layout = Layout.open(directory)
    names = [tag for tag in layout.tags() if parse_release_name(tag)]
    if len(names) != 1:
        raise InputError("the directory does not hold exactly one release", where=str(directory), details=names)
    found = verify(layout, names[0], trusted, now=datetime.now(UTC), allow_expired_waivers=True)
    with Repository(
        parse_reference(repository_name), read_settings(ca_file, plain_http=plain_http)
    ) as repository:
        import_layout(layout, repository, names[0])
        verify(repository, names[0], trusted, now=datetime.now(UTC), allow_expired_waivers=True)
    _tell_copied(names[0], found.digest, repository.name, as_json=as_json)


def registry_access_command(
    image: Annotated[str, typer.Argument(help="host[:port]/repository:tag or @digest.")],
    *,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Say whether this machine's engine may pull an image, and with which login; exit code 1 when not."""
    report = probe_access(parse_reference(image), read_settings(ca_file, plain_http=plain_http))
    if as_json:
        console.print_json(report)
        raise typer.Exit(0 if report.engine_can_pull else 1)
    console.out.print(Text(f"{report.image}: {report.diagnosis}"))
    if not report.engine_can_pull:
        raise CheckError(report.diagnosis, where=report.image, fix=report.advice)


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


def read_settings(ca_file: Path | None, *, plain_http: bool) -> Settings:
    """How to speak to registries, as the options say; what a person should know goes to stderr."""
    return Settings(ca_file=ca_file, plain_http=plain_http, notify=console.say)


def _open(image: str, ca_file: Path | None, *, plain_http: bool) -> AbstractContextManager[tuple[Source, str]]:
    return open_source(image, read_settings(ca_file, plain_http=plain_http))


def _tell_copied(name: str, digest: str, where: str, *, as_json: bool) -> None:
    if as_json:
        console.print_json({"name": name, "digest": digest, "where": where})
        return
    console.out.print(Text(f"{name} is in {where}\n  {digest}"))

"""Keys, releases, channels, exports: `keygen`, `releases`, `show`, `verify`, `promote` and more."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path  # noqa: TC003  # typer reads it at run time
from typing import Annotated

import typer
from rich.text import Text

from tooling import console
from tooling.commands.release_options import (
    AsJson,
    CaFile,
    Evidence,
    Image,
    KeyFile,
    PassphraseFile,
    PlainHttp,
    TrustPath,
    Waivers,
    opened,
    read_yaml,
    reference_of,
    settings,
    trusted,
)
from tooling.errors import CheckError, InputError
from tooling.registry.access import probe_access
from tooling.registry.layout import Layout, export_layout, import_layout
from tooling.registry.repository import Repository
from tooling.release.channels import promote
from tooling.release.locate import release_or_digest
from tooling.release.names import parse_release_name
from tooling.release.publish import ReleaseRequest, release
from tooling.release.records import ReleaseFacts, ReleasePolicy, Waiver
from tooling.release.show import checklist, list_table, summary
from tooling.release.verify import list_releases, verify
from tooling.sign.keys import SigningKey, write_key_pair
from tooling.sign.passphrase import read_passphrase


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (
        keygen_command,
        release_image_command,
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


def release_image_command(
    image: Image,
    *,
    policy: Annotated[Path, typer.Option("--policy", help="YAML file: what the release needs.")],
    key_file: KeyFile,
    trust: TrustPath = None,
    stack: Annotated[str, typer.Option("--stack", help="Name of the stack.")],
    engine_version: Annotated[str, typer.Option("--engine-version", help="Version of its engine.")],
    evidence: Evidence = None,
    facts: Annotated[Path | None, typer.Option("--facts", help="YAML file: what inspection found.")] = None,
    waivers: Waivers = None,
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
    believed = trusted(trust)
    key = SigningKey.load(key_file, read_passphrase(passphrase_file))
    reference = reference_of(image)
    name = reference.digest or reference.tag
    if not name:
        raise InputError("the image needs a digest or a tag", where=image, fix="add @sha256:...")
    with Repository(reference, settings(ca_file, plain_http=plain_http)) as repository:
        done = release(request, repository, name, key=key, trust=believed, now=datetime.now(UTC))
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
    trust: TrustPath = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """List the releases of a repository with their status; exit code 1 when one does not hold."""
    believed = trusted(trust)
    with opened(repository, ca_file, plain_http=plain_http) as place:
        listed = list_releases(place.source, believed, now=datetime.now(UTC))
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
    trust: TrustPath = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Show a release: status, hardware, checklist, waivers (expired ones too), limitations."""
    believed = trusted(trust)
    with opened(image, ca_file, plain_http=plain_http) as place:
        found = verify(
            place.source,
            release_or_digest(place.source, place.name, believed),
            believed,
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
    trust: TrustPath = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="A policy of your own as well.")] = None,
    allow_expired_waivers: Annotated[
        bool, typer.Option("--allow-expired-waivers", help="Only report waivers that have run out.")
    ] = False,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Check a release or channel: signatures, digests, named evidence, policy; print status and hardware."""
    believed = trusted(trust)
    own = read_yaml(policy, ReleasePolicy) if policy else None
    with opened(image, ca_file, plain_http=plain_http) as place:
        found = verify(
            place.source,
            release_or_digest(place.source, place.name, believed),
            believed,
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
    trust: TrustPath = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    passphrase_file: PassphraseFile = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Move a channel to a release, forwards or back, with an entry in its signed log."""
    believed = trusted(trust)
    key = SigningKey.load(key_file, read_passphrase(passphrase_file))
    reference = reference_of(release_image)
    with Repository(reference, settings(ca_file, plain_http=plain_http)) as repository:
        entry = promote(
            repository, channel, reference.tag, key=key, trust=believed, now=datetime.now(UTC), reason=reason
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
    trust: TrustPath = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Write a verified release with all its records into an OCI layout directory, for an air gap."""
    reference = reference_of(image)
    believed = trusted(trust)
    with Repository(reference, settings(ca_file, plain_http=plain_http)) as repository:
        name = release_or_digest(repository, reference.tag or reference.digest, believed)
        found = verify(repository, name, believed, now=datetime.now(UTC), allow_expired_waivers=True)
        layout = export_layout(repository, repository.manifest(found.digest), found.release.name, directory)
    _tell_copied(found.release.name, found.digest, layout.name, as_json=as_json)


def import_layout_command(
    directory: Annotated[Path, typer.Argument(help="OCI layout directory, as export-layout wrote it.")],
    repository_name: Annotated[str, typer.Argument(help="host[:port]/repository.")],
    *,
    trust: TrustPath = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Verify a release in a directory and write it into a registry; its tag comes last."""
    believed = trusted(trust)
    layout = Layout.open(directory)
    names = [tag for tag in layout.tags() if parse_release_name(tag)]
    if len(names) != 1:
        raise InputError("the directory does not hold exactly one release", where=str(directory), details=names)
    found = verify(layout, names[0], believed, now=datetime.now(UTC), allow_expired_waivers=True)
    with Repository(reference_of(repository_name), settings(ca_file, plain_http=plain_http)) as repository:
        import_layout(layout, repository, names[0])
        verify(repository, names[0], believed, now=datetime.now(UTC), allow_expired_waivers=True)
    _tell_copied(names[0], found.digest, repository.name, as_json=as_json)


def registry_access_command(
    image: Annotated[str, typer.Argument(help="host[:port]/repository:tag or @digest.")],
    *,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Say whether this machine's engine may pull an image, and with which login; exit code 1 when not."""
    report = probe_access(reference_of(image), settings(ca_file, plain_http=plain_http))
    if as_json:
        console.print_json(report)
        raise typer.Exit(0 if report.engine_can_pull else 1)
    console.out.print(Text(f"{report.image}: {report.diagnosis}"))
    if not report.engine_can_pull:
        raise CheckError(report.diagnosis, where=report.image, fix=report.advice)


def _tell_copied(name: str, digest: str, where: str, *, as_json: bool) -> None:
    if as_json:
        console.print_json({"name": name, "digest": digest, "where": where})
        return
    console.out.print(Text(f"{name} is in {where}\n  {digest}"))

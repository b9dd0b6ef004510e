"""`release`, `attest` and `local-registry`: a stack on its whole way, and what it needs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tooling import console
from tooling.commands.release_options import (
    AsJson,
    CaFile,
    Evidence,
    PassphraseFile,
    PlainHttp,
    TrustPath,
    Waivers,
    read_yaml,
    settings,
    trusted,
)
from tooling.errors import CheckError, InputError
from tooling.paths import checkout
from tooling.registry import local
from tooling.release.chain import attest_stack, refuse_early, release_stack
from tooling.release.records import Waiver
from tooling.release.run import Brought, ChainRequest, ChainResult, GateOptions, examine
from tooling.release.show import checklist, summary
from tooling.sign.keys import SigningKey, Trust
from tooling.sign.local import keys_folder, local_key
from tooling.sign.passphrase import read_passphrase

if TYPE_CHECKING:
    from tooling.registry.local import LocalRegistry

StackName = Annotated[str, typer.Argument(help="Name of the stack.")]
OptionalKey = Annotated[
    Path | None,
    typer.Option(
        "--key", help="Private key file, made by keygen; default: this user's local key, made on first use."
    ),
]
ModelPath = Annotated[
    Path | None,
    typer.Option("--model", help="Folder or file of the model for the gates; default: the tiny one."),
]
Profile = Annotated[str, typer.Option("--profile", help="Model profile: questions, answers, thresholds.")]
Argument = Annotated[
    list[str] | None, typer.Option("--argument", help="A further serve argument for the gates, e.g. --x=1.")
]
Boots = Annotated[int, typer.Option("--boots", min=1, help="Boots; a comparison with a baseline needs three.")]
Against = Annotated[
    str, typer.Option("--against", help="Image that is the baseline, booted as often and by turns.")
]
Baselines = Annotated[Path | None, typer.Option("--baselines", help="Folder of throughput baselines.")]
Output = Annotated[
    Path | None, typer.Option("--output", help="Folder for records and evidence; by default below build/.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("release")(release_command)
    app.command("attest")(attest_command)
    app.command("local-registry")(local_registry_command)


def release_command(  # one option each
    stack: StackName,
    *,
    registry: Annotated[
        str,
        typer.Option(
            help="host[:port][/prefix] of a registry; default: one of this machine's own, on loopback."
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option("--image", help="Release this image, HOST/NAME@sha256:..., and build nothing."),
    ] = "",
    key_file: OptionalKey = None,
    trust: TrustPath = None,
    evidence: Evidence = None,
    waivers: Waivers = None,
    candidate: Annotated[
        bool,
        typer.Option("--candidate", help="Build, push and inspect only, for gates on another machine; no tag."),
    ] = False,
    model: ModelPath = None,
    profile: Profile = "tiny",
    argument: Argument = None,
    boots: Boots = 1,
    against: Against = "",
    baselines: Baselines = None,
    output: Output = None,
    passphrase_file: PassphraseFile = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Build a stack, push it, run its gates, sign the evidence, and release it under an immutable tag."""
    root = checkout()
    allowed = read_yaml(waivers, tuple[Waiver, ...]) if waivers else ()
    how = settings(ca_file, plain_http=plain_http)
    # Before a key is made or a passphrase is asked for.
    examined = examine(stack, root)
    if not candidate:
        brought = Brought(registry=registry, settings=how, image=image, evidence=evidence, waivers=allowed)
        refuse_early(examined, brought, trusted(trust) if evidence or image else None)
    key = _key(key_file, passphrase_file)
    request = ChainRequest(
        stack=stack,
        root=root,
        registry=registry,
        key=key,
        trust=_trust(trust, key),
        settings=how,
        image=image,
        evidence=evidence,
        waivers=allowed,
        gates=GateOptions(model, profile, tuple(argument or ()), boots, against, baselines),
        candidate=candidate,
        output=output,
    )
    _tell(release_stack(request, examined), local_registry=not registry and not image, as_json=as_json)


def attest_command(  # one option each
    stack: StackName,
    image: Annotated[
        str, typer.Argument(help="host[:port]/repository@sha256:..., as release --candidate printed it.")
    ],
    *,
    key_file: OptionalKey = None,
    trust: TrustPath = None,
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", help="Write the evidence here; by default it is attached in the registry."),
    ] = None,
    model: ModelPath = None,
    profile: Profile = "tiny",
    argument: Argument = None,
    boots: Boots = 1,
    against: Against = "",
    baselines: Baselines = None,
    output: Output = None,
    passphrase_file: PassphraseFile = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Run a stack's gates on this machine, on an image that was pushed elsewhere, and sign the evidence."""
    key = _key(key_file, passphrase_file)
    request = ChainRequest(
        stack=stack,
        root=checkout(),
        registry="",
        key=key,
        trust=_trust(trust, key),
        settings=settings(ca_file, plain_http=plain_http),
        evidence=evidence,
        gates=GateOptions(model, profile, tuple(argument or ()), boots, against, baselines),
        output=output,
    )
    _tell(attest_stack(request, image), local_registry=False, as_json=as_json)


def local_registry_command(
    action: Annotated[str, typer.Argument(help="start, stop or status.")] = "status",
    as_json: AsJson = False,
) -> None:
    """The registry of this machine's own: start it, stop it, or say where it is; its content always stays."""
    if action not in {"start", "stop", "status"}:
        raise InputError(f"there is no action {action!r}", fix="write start, stop or status")
    if action == "start":
        local.start(console.say)
    elif action == "stop":
        local.stop()
    found = local.status()
    if found is None:
        raise CheckError(
            "this machine has no local registry", where=str(local.data_folder()), fix="local-registry start"
        )
    if as_json:
        console.print_json({"host": found.host, "folder": str(found.folder), "pid": found.pid})
    else:
        console.out.print(Text(_describe(found)))


def _describe(found: LocalRegistry) -> str:
    state = f"runs at {found.host}, process {found.pid}" if found.pid else "does not run"
    return f"local registry: {state}, content in {found.folder}"


def _key(file: Path | None, passphrase_file: Path | None) -> SigningKey:
    if file is None:
        return local_key(console.say, passphrase_file)
    return SigningKey.load(file, read_passphrase(passphrase_file))


def _trust(given: Path | None, key: SigningKey) -> Trust:
    """Whom to believe: what was given; else this user's keys and the one that signs."""
    if given is not None:
        return Trust.load(given)
    known = Trust.load(keys_folder()).keys if any(keys_folder().glob("*.pub")) else ()
    return Trust((key.public, *(one for one in known if one.id != key.id)))


def _tell(result: ChainResult, *, local_registry: bool, as_json: bool) -> None:
    if as_json:
        console.print_json(result)
        return
    table = Table(
        "step", "seconds", "what came of it", title=f"{result.stack}: {result.image}", title_justify="left"
    )
    table.columns[1].justify = "right"
    for step in result.steps:
        table.add_row(step.name, f"{step.seconds:.1f}", Text(step.seen, overflow="fold"))
    console.out.print(table)
    if result.released is None:
        console.out.print(Text(f"not released; evidence: {result.evidence}\n  {result.image}"))
        return
    console.out.print(checklist(result.released.verification.release.assessment))
    console.out.print(summary(result.released.verification))
    for line in result.released.rejected:
        console.say(f"does not count: {line}")
    where = f"local:{result.stack}" if local_registry else result.image.partition("@")[0]
    console.say(f"see it again: nox -s show -- {where}:{result.released.name}")

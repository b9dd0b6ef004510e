"""`deploy` and `export`: a release onto GPU hosts, or as files for other means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003  # typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tooling import console
from tooling.commands.host_options import (
    Accept,
    Argument,
    Bind,
    EnvironmentFile,
    Gpus,
    Groups,
    Hosts,
    InventoryFile,
    Model,
    ModelCache,
    ModelPath,
    Port,
    Reason,
    Release,
    Root,
    SshConfig,
    Sudo,
    print_commands,
    printer,
)
from tooling.commands.release_options import AsJson, CaFile, PlainHttp, TrustPath, opened, trusted
from tooling.deploy.channel import Channel
from tooling.deploy.choose import Overrides, choose, release_image
from tooling.deploy.export import export
from tooling.deploy.installing import current_program, install_command
from tooling.deploy.preflight import assumed
from tooling.deploy.request import build_request
from tooling.deploy.resolving import resolve_release
from tooling.deploy.rollout import Listener, Rollout, Target, prepare, roll_out
from tooling.deploy.session import HostSession
from tooling.deploy.transport import check_can_forward, host_program, remote_command
from tooling.deploy.view import rollout_table, show
from tooling.errors import InputError
from tooling.host.contract import create_argv
from tooling.paths import checkout
from tooling.registry.reference import is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence


class Via(StrEnum):
    """Who brings the image to the hosts."""

    REGISTRY = "registry"
    SSH = "ssh"


class Form(StrEnum):
    """Forms of an export."""

    ALL = "all"
    DOCKER_RUN = "docker_run"
    COMPOSE = "compose"
    SYSTEMD = "systemd"
    QUADLET = "quadlet"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("deploy")(deploy)
    app.command("export")(export_command)


def deploy(
    release: Release,
    *,
    host: Hosts = None,
    inventory: InventoryFile = None,
    group: Groups = None,
    trust: TrustPath = None,
    model: Model = "",
    model_path: ModelPath = "",
    model_cache: ModelCache = "",
    gpus: Gpus = "",
    port: Port = None,
    bind: Bind = "",
    argument: Argument = None,
    env_file: EnvironmentFile = None,
    accept: Accept = None,
    reason: Reason = "",
    via: Annotated[
        Via, typer.Option(help="registry: hosts pull; ssh: this machine sends what they lack.")
    ] = Via.REGISTRY,
    keep: Annotated[int, typer.Option(help="Earlier generations whose images stay.", min=1)] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look, and print the exact commands.")] = False,
    root: Root = "",
    sudo: Sudo = False,
    ssh_config: SshConfig = None,
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Bring a release onto GPU hosts: everything that can fail is tried before the old one stops.

    Hosts and their GPU groups are rolled one after another; the first failure is the last thing that is begun,
    and there the old release serves again. Exit code 0: every group serves the release; 1: one does not, or was
    refused; 2: what was asked makes no sense; 3: another operation runs there; 4: nothing serves there; 130:
    you left, the host goes on.
    """
    given = Overrides(
        model=model, model_path=model_path, model_cache=model_cache, gpus=gpus, port=port, bind=bind,
        arguments=tuple(argument or ()), environment_files=tuple(env_file or ()), root=root, sudo=sudo,
    )  # fmt: skip
    chosen = choose(inventory, host or (), group or (), given)
    program = current_program()
    image, believed = release_image(release, chosen.repository), trusted(trust)
    with opened(image, ca_file, plain_http=plain_http) as place:
        wanted = resolve_release(
            place.source,
            place.name,
            trust=believed,
            root=checkout(),
            bring=via is Via.SSH,
            accepted=accept,
            reason=reason,
            keep=keep,
        )
        found = wanted.release
        console.say(f"{found.release.name} is {found.status.value}, {found.digest}")
        if wanted.accepted:
            console.say(f"below qualified: {wanted.accepted}")
        if via is Via.SSH:
            for each in chosen.hosts:
                check_can_forward(each)
        elif is_loopback(wanted.reference.partition("/")[0]) and any(one.destination for one in chosen.hosts):
            console.say("the registry is on this machine's loopback: hosts will look on theirs; see --via ssh")
        targets: list[Target] = []
        for each in chosen.hosts:
            session = HostSession(Channel(each, ssh_config), program)
            groups = chosen.groups_of(each)
            targets += prepare(wanted, session, groups, chosen.workloads[each.name], HostSession.facts)
            console.say(f"{each.name}: looked at, nothing stands against it")
        if dry_run:
            if via is Via.SSH:
                console.say("the image is sent through a port that is chosen at run time, before the deploy")
            _print_plan(targets, ssh_config, as_json=as_json)
            return
        done = roll_out(
            wanted, targets, Listener(console.say, printer), source=place.source if via is Via.SSH else None
        )
    _finish(done, as_json=as_json)


def export_command(
    release: Release,
    *,
    host: Hosts = None,
    inventory: InventoryFile = None,
    trust: TrustPath = None,
    form: Annotated[Form, typer.Option(help="Which form.")] = Form.ALL,
    model: Model = "",
    model_path: ModelPath = "",
    model_cache: ModelCache = "",
    gpus: Gpus = "",
    port: Port = None,
    bind: Bind = "",
    argument: Argument = None,
    env_file: EnvironmentFile = None,
    ssh_config: SshConfig = None,
    accept: Accept = None,
    reason: Reason = "",
    ca_file: CaFile = None,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Print docker run, compose file, systemd unit and quadlet that start what deploy starts on a host."""
    given = Overrides(
        model=model, model_path=model_path, model_cache=model_cache, gpus=gpus, port=port, bind=bind,
        arguments=tuple(argument or ()), environment_files=tuple(env_file or ()),
    )  # fmt: skip
    chosen = choose(inventory, host or ([] if inventory else ["local"]), (), given)
    if len(chosen.hosts) != 1:
        raise InputError("an export is for one host", fix="choose it with --host")
    only = chosen.hosts[0]
    image, believed = release_image(release, chosen.repository), trusted(trust)
    with opened(image, ca_file, plain_http=plain_http) as place:
        wanted = resolve_release(
            place.source, place.name, trust=believed, root=checkout(), accepted=accept, reason=reason
        )
        workload = chosen.workloads[only.name]
        if host or inventory:
            session = HostSession(Channel(only, ssh_config), current_program())
            targets = prepare(wanted, session, only.groups, workload, HostSession.facts)
            requests = [target.request for target in targets]
        else:
            console.say("no host was looked at: driver, GPUs, disk and model are for you to check (see --host)")
            unseen = assumed(only, wanted.stack, workload.model)
            requests = [build_request(wanted, only, each, workload, unseen) for each in only.groups]
    made = {request.group: export(request) for request in requests}
    if as_json:
        console.print_json({name: one.model_dump(mode="json") for name, one in made.items()})
        return
    for one in made.values():
        for line in one.before:
            console.say(f"once, before: {line}")
        forms = one.model_dump(exclude={"before"})
        if form is not Form.ALL:
            typer.echo(forms[form.value], nl=False)
            continue
        for name, text in forms.items():
            typer.echo(f"# --- {name} ---\n{text}")


def _print_plan(targets: Sequence[Target], config: Path | None, *, as_json: bool) -> None:
    """The exact commands of a deploy: what is run here, and the container that the host program makes there."""
    commands: list[list[str]] = []
    for target in targets:
        host, program = target.host, target.session.program
        if target.seen.program_sha256 != program.sha256:
            commands.append(remote_command(host, install_command(host, program), config=config))
        operate = host_program(host, program.path(host), target.group.name, "deploy")
        commands.append(remote_command(host, operate, config=config))
        commands.append(create_argv(target.request, 0, target.request.image_id))
    print_commands(commands, as_json=as_json)


def _finish(done: Rollout, *, as_json: bool) -> None:
    """Print what came of a deploy; the exit code is that of the first group that failed."""
    if as_json:
        console.print_json(done)
    else:
        show(rollout_table(done))
    failed = next((step for step in done.steps if step.state == "failed"), None)
    if failed is not None:
        console.err.print(Text("error: ", style="bold red"), Text(failed.message), sep="")
        raise typer.Exit(failed.exit_code)

"""A host of its own for each test: real sshd, real registry, a Docker Engine apart from this machine's."""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.container.deploy.releases import STACK, STACK_FILE, Shelf
from tests.container.host.private_engine import PrivateEngine, private_engine
from tests.container.release.registry_server import Server, install_registry, serve
from tests.programs import free_port
from tests.sshd import ALIAS, Sshd, serve_ssh
from tests.unit.release_examples import KEY
from tooling.cli import app
from tooling.errors import ToolkitError
from tooling.registry.credentials import DockerConfig
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.registry.transport import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.release.publish import Released

_NUMBERS = itertools.count(1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    install_registry()
    with serve(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def host_engine() -> Iterator[PrivateEngine]:
    with private_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory, host_engine: PrivateEngine) -> Iterator[Sshd]:
    """The way to the host: every session there sees the private engine."""
    with serve_ssh(tmp_path_factory.mktemp("sshd"), environment={"DOCKER_HOST": host_engine.address}) as server:
        yield server


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with one revision of one model: links to blobs, as the hub's client writes it."""
    cache = tmp_path_factory.mktemp("huggingface")
    home = cache / "hub" / "models--org--stand-in"
    (home / "blobs").mkdir(parents=True)
    (home / "blobs" / "abc").write_text("{}")
    (home / "snapshots" / COMMIT).mkdir(parents=True)
    (home / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/abc")
    return cache


@dataclass
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str
    error: ToolkitError | None

    @property
    def json(self) -> Any:
        assert self.out, f"{self.error}\n{self.err}"
        return json.loads(self.out)


@dataclass
class Box:
    """One group of the host with a state directory of its own, and the operator's files for it."""

    folder: Path
    repository: Repository
    shelf: Shelf
    engine: PrivateEngine
    ssh: Sshd
    group: str
    port: int
    host: dict[str, Any]
    more: list[dict[str, Any]]

    @property
    def trust(self) -> Path:
        return self.folder / "trust"

    def write(self) -> Path:
        """The inventory as it is now."""
        path = self.folder / "hosts.yaml"
        document = {"repository": self.repository.name, "hosts": [self.host, *self.more]}
        path.write_text(yaml.safe_dump(document))
        return path

    def release(self, version: str, **behaviour: Any) -> Released:
        return self.shelf.release(self.repository, f"{self.group}-{version}", **behaviour)

    def run(self, *words: str, config: Path | None = None) -> Ended:
        """Run a command of the toolkit against this host."""
        options = ["--inventory", str(self.write()), "--ssh-config", str(config or self.ssh.config)]
        if words[0] in {"deploy", "export"}:
            options += ["--trust", str(self.trust)]
        done = CliRunner().invoke(app, [words[0], *options, *words[1:]])
        error = done.exception if isinstance(done.exception, ToolkitError) else None
        if done.exception is not None and error is None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(error.exit_code if error else done.exit_code, done.stdout, done.stderr, error)

    def deploy(self, release: str, *words: str) -> Ended:
        return self.run("deploy", release, "--json", *words)

    def status(self) -> dict[str, Any]:
        """Status of the one group."""
        (row,) = self.run("status", "--json").json
        (group,) = row["answer"]["groups"]
        return dict(group)

    def inspect(self) -> dict[str, Any]:
        """The one container that serves."""
        label = f"label=blackwell-stacks.group={self.group}"
        filters = ["--filter", label, "--filter", "label=blackwell-stacks.role=stack"]
        (found,) = self.engine.docker("ps", "-q", *filters).split()
        return dict(json.loads(self.engine.docker("inspect", found))[0])

    def served_version(self) -> str:
        """What the engine itself says, over HTTP."""
        done = subprocess.run(
            ["curl", "-sf", f"http://127.0.0.1:{self.port}/v1/models"], capture_output=True, check=False
        )
        return str(json.loads(done.stdout)["version"]).removeprefix(f"{self.group}-") if done.stdout else ""


@dataclass(frozen=True)
class Site:
    """What all tests share."""

    shelf: Shelf
    registry: Server
    engine: PrivateEngine
    sshd: Sshd


@pytest.fixture(scope="session")
def site(shelf: Shelf, registry: Server, host_engine: PrivateEngine, sshd: Sshd) -> Site:
    return Site(shelf, registry, host_engine, sshd)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site) -> Iterator[Box]:
    number = next(_NUMBERS)
    checkout = tmp_path / "checkout"
    (checkout / "stacks").mkdir(parents=True)
    (checkout / "images").mkdir()
    (checkout / "stacks" / f"{STACK}.yaml").write_text(STACK_FILE)
    (tmp_path / "trust").mkdir()
    (tmp_path / "trust" / "release.pub").write_bytes(KEY.public.pem())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setenv("BLACKWELL_STACKS_ROOT", str(checkout))
    monkeypatch.setenv("DOCKER_CONFIG", "/nonexistent")
    group, port = f"g{number}", free_port()
    host = {
        "name": ALIAS,
        "root": str(tmp_path / "state"),
        "jit_cache": str(tmp_path / "kernels"),
        "groups": [{"name": group, "port": port}],
        "workload": {"model": {"id": "stand-in", "revision": "0123456", "path": str(tmp_path / "model")}},
    }
    settings = Settings(login=DockerConfig(path=tmp_path))
    with Repository(parse_reference(f"{site.registry.host}/test/box{number}"), settings) as repository:
        yield Box(tmp_path, repository, site.shelf, site.engine, site.sshd, group, port, host, [])
    left = site.engine.docker("ps", "-aq", "--filter", f"label=blackwell-stacks.group={group}").split()
    if left:
        site.engine.docker("rm", "-f", *left)

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.container.release.bench import Bench, make_bench
from tests.container.release.proxy import Plan, proxy
from tests.container.release.registry_server import (
    PASSWORD,
    USER,
    Authority,
    Server,
    htpasswd_auth,
    install_registry,
    make_authority,
    serve,
)
from tooling.registry.credentials import DockerConfig
from tooling.registry.reference import parse_reference
from tooling.registry.repository import Repository
from tooling.registry.transport import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NUMBERS = itertools.count()


def quick(**changes: object) -> Settings:
    """Settings for tests: no login of this machine, and pauses that take no time."""
    return Settings(**{"login": DockerConfig(path=None), "sleep": lambda _: None, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A registry without TLS and login."""
    install_registry()
    with serve(tmp_path_factory.mktemp("open")) as server:
        yield server


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    """A registry with TLS by an own authority, and a login."""
    install_registry()
    directory = tmp_path_factory.mktemp("tls")
    with serve(directory, tls=authority, auth=htpasswd_auth(directory)) as server:
        yield server


@pytest.fixture(scope="session")
def proxied(open_server: Server) -> Iterator[tuple[str, Plan]]:
    with proxy(open_server.host) as running:
        yield running


@pytest.fixture
def plan(proxied: tuple[str, Plan]) -> Iterator[Plan]:
    """The proxy's plan, harmless at the start and at the end of each test."""
    proxied[1].reset()
    yield proxied[1]
    proxied[1].reset()
    proxied[1].referrers_api = False


@pytest.fixture
def fresh(open_server: Server) -> Callable[[], Repository]:
    """Makes repositories that nobody has used."""
    return lambda: Repository(parse_reference(f"{open_server.host}/test/fresh{next(_NUMBERS)}"), quick())


@pytest.fixture
def repository(fresh: Callable[[], Repository]) -> Iterator[Repository]:
    with fresh() as one:
        yield one


@pytest.fixture
def collected(tmp_path: Path) -> Iterator[tuple[Server, Repository]]:
    """A registry for one test: garbage collection goes over everything, untagged repositories break it."""
    install_registry()
    with (
        serve(tmp_path / "registry") as server,
        Repository(parse_reference(f"{server.host}/test/collected"), quick()) as repository,
    ):
        yield server, repository


@pytest.fixture
def bench(repository: Repository, tmp_path: Path) -> Bench:
    return make_bench(repository, tmp_path / "evidence")


@pytest.fixture
def proxied_repository(proxied: tuple[str, Plan], plan: Plan) -> Iterator[Repository]:
    del plan
    with Repository(parse_reference(f"{proxied[0]}/test/proxied{next(_NUMBERS)}"), quick()) as one:
        yield one


@pytest.fixture
def login() -> DockerConfig:
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return DockerConfig(path=None, auths={"127.0.0.1": {"auth": secret}})  # type: ignore[arg-type]

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.container.host.deck import RUNTIME, Deck, Image, Line
from tests.container.host.private_engine import private_engine
from tests.container.release.registry_server import install_registry, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """One host for all tests; each has its own group of GPUs on it."""
    install_registry()
    folder = tmp_path_factory.mktemp("host")
    with serve(folder / "registry") as registry, private_engine(*RUNTIME) as engine:
        yield Deck(engine, registry, folder)


@pytest.fixture(scope="session")
def v1(deck: Deck) -> Image:
    return deck.image("v1")


@pytest.fixture(scope="session")
def v2(deck: Deck) -> Image:
    return deck.image("v2")


@pytest.fixture(scope="session")
def new_line(deck: Deck) -> Callable[[], Line]:
    """Makes groups that nobody has used."""

    def make() -> Line:
        number = next(_NUMBERS)
        return Line(deck, f"g{number}", number)

    return make


@pytest.fixture
def line(new_line: Callable[[], Line]) -> Iterator[Line]:
    """A group of its own; nothing of it runs on afterwards."""
    made = new_line()
    yield made
    made.clear()


@pytest.fixture
def served(line: Line, v1: Image) -> Line:
    """A group on which v1 serves."""
    run = line.deploy(v1)
    assert run.code == 0, run.said
    return line

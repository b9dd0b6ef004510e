"""A checkout of its own for each test, with a small stack that builds in seconds on a real engine."""

from __future__ import annotations

import shutil
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.wheelhouse import Index, make_wheel
from tooling import console
from tooling.base.bootstrap import bases_made, bootstrap_base, describe_base, write_base_lock
from tooling.build import build
from tooling.build.context import LABEL
from tooling.dockerhost import ensure_engine
from tooling.lock.coherence import KNOWN_FAULTS
from tooling.lock.resolve import resolve, write_lock
from tooling.stack import load_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from tooling.build import BuildRecord
    from tooling.stack.model import StackFile

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000
STACK = """\
name: {name}
description: a small stack for the tests of the builder
platform: {{glibc: "2.36", python: "3.11"}}
engine: {{name: none, package: hello, version: 1.0.0}}
base: {{bootstrap: {{suite: bookworm, packages: [python3.11, tini]}}}}
lock: {{requirements: [world==1.0.0]}}
layers:
  - {{name: first, packages: [world]}}
  - name: rest
serve: {{command: [python, -m, hello], port: 8000, arguments: {{greeting: hi}}}}
budget: {{build_disk_gb: 1}}
"""


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker Engine of this machine, set up where there is none."""
    with closing(ensure_engine(console.say)) as client:
        yield client


@dataclass
class Checkout:
    """A copy of what a build reads, with one small stack and an index for its wheels."""

    root: Path
    name: str
    index: Index
    client: docker.DockerClient
    images: set[str] = field(default_factory=set)

    @property
    def stack_path(self) -> Path:
        return self.root / "stacks" / f"{self.name}.yaml"

    def edit(self, before: str, after: str) -> None:
        """Change the stack's text."""
        text = self.stack_path.read_text()
        assert before in text
        self.stack_path.write_text(text.replace(before, after))

    def file(self) -> StackFile:
        return load_stack(self.name, self.root)

    def lock(self) -> None:
        """Resolve the stack's wheels again."""
        file = self.file()
        write_lock(file, resolve(file.stack, self.root / KNOWN_FAULTS))

    def build(self) -> BuildRecord:
        record = build(self.name, self.root)
        self.images.add(record.image_id)
        return record

    def tags(self) -> list[str]:
        """Names that the engine has for images of this stack."""
        found = self.client.images.list(filters={"label": f"{LABEL}.stack={self.name}"})
        return sorted(tag for image in found for tag in image.tags)


@pytest.fixture(scope="session")
def base_lock_text(engine, tmp_path_factory) -> str:
    """Lock of the base that all small stacks share; it is bootstrapped once."""
    root = tmp_path_factory.mktemp("base")
    (root / "stacks").mkdir()
    (root / "stacks" / "small.yaml").write_text(STACK.format(name="small"))
    file = load_stack("small", root)
    made = bases_made(engine, file.stack.base_request_sha256)
    reference = made[0] if made else bootstrap_base(file.stack, EPOCH, engine, console.say)
    write_base_lock(file, describe_base(engine, reference, EPOCH))
    return file.base_lock_path.read_text()


@pytest.fixture
def checkout(request, tmp_path, monkeypatch, engine, base_lock_text) -> Iterator[Checkout]:
    name = "t" + "".join(filter(str.isalnum, request.node.name.removeprefix("test_")))[:30].lower()
    root = tmp_path / "checkout"
    (root / "stacks" / "facts").mkdir(parents=True)
    shutil.copytree(ROOT / "images", root / "images")
    shutil.copy2(ROOT / KNOWN_FAULTS, root / KNOWN_FAULTS)
    index = Index(tmp_path / "wheels")
    # No layer may come from the engine's cache: not of another test, nor of an earlier run,
    # whose folders have the same names where a checkout is always made in the same place.
    mark = uuid.uuid4().hex
    make_wheel(index.folder, "hello", "1.0.0", {"hello.py": f"print('hello')  # {mark}\n"})
    make_wheel(index.folder, "world", "1.0.0", {"world.py": f"import hello  # {mark}\n"})
    server = index.start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Checkout(root, name, index, engine)
    made.stack_path.write_text(STACK.format(name=name))
    made.file().base_lock_path.write_text(base_lock_text.replace("small", name))
    made.lock()
    yield made
    server.shutdown()
    server.server_close()
    for image in engine.images.list(filters={"label": f"{LABEL}.stack={name}"}):
        engine.images.remove(image.id, force=True)

"""A GPU host for tests: its own engine, a registry, images of a stand-in, files as GPUs, the host program."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from tests.container.tiny_image import PYTHON, python_layer
from tests.programs import free_port
from tooling.host.bundle import bundle
from tooling.host.faults import VARIABLE as FAULT
from tooling.host.gpus import VARIABLE as NVIDIA_SMI
from tooling.host.request import SCHEMA

if TYPE_CHECKING:
    from tests.container.host.private_engine import PrivateEngine
    from tests.container.release.registry_server import Server

HERE = Path(__file__).parent
BASE = "stand-in-base:1"
LIMIT_S = 300
#: Options of the daemon: the vendor's runtime, which here hands out nothing and says nothing.
RUNTIME = ("--add-runtime=nvidia=/usr/sbin/runc",)


@dataclass(frozen=True)
class Image:
    """An image in the registry."""

    version: str
    reference: str
    digest: str
    image_id: str


@dataclass(frozen=True)
class Run:
    """One run of the host program."""

    code: int
    events: list[dict[str, Any]]
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        """Data of the result."""
        assert self.events, self.stderr
        last = self.events[-1]
        assert last["step"] == "result", last
        data: dict[str, Any] = last["data"]
        return data

    @property
    def said(self) -> str:
        """All that it said, for searching."""
        return json.dumps(self.events, ensure_ascii=False) + self.stderr


@dataclass
class Deck:
    """What the tests of the host program share.

    Attributes:
        engine: The host's engine.
        registry: Where images come from.
        folder: For state, GPUs and program.
        base: Have what images are made of.
        program: The host program's file.
        gpus: A file for each GPU, and the driver's version.
        smi: The stand-in for nvidia-smi.
    """

    engine: PrivateEngine
    registry: Server
    folder: Path
    base: bool = True
    program: Path = field(init=False)
    gpus: Path = field(init=False)
    smi: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.program = self.folder / "blackwell-host.pyz"
        self.program.write_bytes(bundle())
        self.gpus = self.folder / "gpus"
        self.gpus.mkdir()
        (self.gpus / "driver").write_text("580.95.05\n")
        self.smi = self.folder / "nvidia-smi"
        self.smi.write_text(
            f'#!/bin/sh\nFAKE_GPUS={self.gpus} exec {sys.executable} -S -E {HERE}/fake_nvidia_smi.py "$@"\n'
        )
        self.smi.chmod(0o755)
        if self.base:
            self._make_base()

    def _make_base(self) -> None:
        """Anew when a loss of power ended the container that keeps the base, and a prune came after it."""
        if self.engine.docker("image", "ls", "--quiet", BASE):
            return
        self.engine.docker("import", "-", "bare:1", stdin=python_layer())
        # Compiled once: the containers of a test start at once then.
        once = self.engine.docker(
            "create", "--network=none", "bare:1", PYTHON, "-c", "import fcntl, json, http.server, threading"
        )
        self.engine.docker("start", "--attach", once)
        self.engine.docker("commit", once, BASE)
        self.engine.docker("rm", once)
        # It keeps the base from a prune.
        self.engine.docker(
            "run", "--detach", "--network=none", BASE, PYTHON, "-c", "import time; time.sleep(1e6)"
        )

    def image(
        self,
        version: str,
        *,
        registry: str = "",
        tag: str = "",
        ballast: int = 0,
        on: Image | None = None,
        **behaviour: Any,
    ) -> Image:
        """Make a version of the stand-in, push it, and take it off the host again.

        Args:
            version: That it answers with.
            registry: Where to push it to, if not to the deck's own.
            tag: Its tag, if not the version.
            ballast: Bytes that cannot be compressed.
            on: The image that it is a layer on.
            behaviour: For `/stand-in.json`.
        """
        name = f"{registry or self.registry.host}/stand-in:{tag or version}"
        self._make_base()
        below = BASE
        if on is not None:
            self.engine.docker("pull", "--quiet", on.reference)
            below = on.reference
        made = self.engine.docker("create", below, PYTHON)
        content = json.dumps({"version": version, **behaviour}).encode()
        files = {"stand-in.json": content, "stand_in.py": (HERE / "stand_in.py").read_bytes()}
        if ballast:
            files["ballast"] = os.urandom(ballast)
        self.engine.docker("cp", "-", f"{made}:/", stdin=_tar(files))
        entry = f'ENTRYPOINT ["{PYTHON}", "/stand_in.py"]'
        self.engine.docker("commit", "--change", entry, made, name)
        self.engine.docker("rm", made)
        self.engine.docker("push", "--quiet", name)
        facts = json.loads(self.engine.docker("image", "inspect", name))[0]
        reference = facts["RepoDigests"][0]
        self.engine.docker("image", "rm", name, *([on.reference] if on else []))
        return Image(version, reference, reference.partition("@")[2], facts["Id"])


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Line:
    """One group of GPUs with its state, as an operator sees it.

    Args:
        deck: The host.
        group: Its name.
        gpu: Its only GPU.
        root: Its state; the deck's own root if None.
    """

    def __init__(self, deck: Deck, group: str, gpu: int, root: Path | None = None) -> None:
        self.deck = deck
        self.group = group
        self.gpu = gpu
        self.port = free_port()
        self.root = root or deck.folder / "root"
        self.state = self.root / "groups" / group
        self.before: set[str] = set()
        (deck.gpus / f"gpu{gpu}").touch()

    def request(self, image: Image, **changes: Any) -> dict[str, Any]:
        """A request; `health__x` and `contract__x` change inner fields."""
        health = {
            "port": 8000,
            "model": "stand-in",
            "prompt": "What is 17*23?",
            "expect": "391",
            "ready_timeout_seconds": 120,
            "interval_seconds": 0.05,
        }
        contract = {
            "gpus": [str(self.gpu)],
            "gpu_mode": "runtime",
            "mounts": [{"source": str(self.deck.gpus), "target": "/gpus", "read_only": False}],
            "ports": [{"address": "127.0.0.1", "host": self.port, "container": 8000}],
            "stop_grace_seconds": 20,
            "gpu_release_seconds": 10,
            "health": health,
        }
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "release": f"stand-in-{image.version}",
            "reference": image.reference,
            "digest": image.digest,
            "image_id": image.image_id,
            "sizes": {"compressed": 1000, "unpacked": 1000},
            "stack": "stand-in",
            "group": self.group,
            "contract": contract,
            "requirements": {"driver_minimum": "580.65.06", "target": "sm_120", "gpu_count": 1},
            "keep": 3,
        }
        for name, value in changes.items():
            place, _, last = name.rpartition("__")
            {"": document, "contract": contract, "health": health}[place][last] = value
        return document

    def argv(self, *arguments: str) -> list[str]:
        """The host program's command line."""
        options = ["--root", str(self.root), "--group", self.group, "--json"]
        return [sys.executable, str(self.deck.program), *options, *arguments]

    def environment(self, fault: str = "") -> dict[str, str]:
        """Its environment."""
        return {
            **self.deck.engine.environment,
            NVIDIA_SMI: str(self.deck.smi),
            **({FAULT: fault} if fault else {}),
        }

    def run(self, *arguments: str, stdin: str = "", fault: str = "") -> Run:
        """Run a command that has events."""
        done = subprocess.run(
            self.argv(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment(fault),
            timeout=LIMIT_S,
            check=False,
        )
        lines = done.stdout.splitlines()
        events = [json.loads(line) for line in lines] if lines and lines[0].startswith('{"') else []
        return Run(done.returncode, events, done.stderr)

    def read(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command that prints one document."""
        done = subprocess.run(
            self.argv(*arguments),
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)

    def read_code(self, *arguments: str) -> int:
        """Run a command that prints nothing."""
        done = subprocess.run(self.argv(*arguments), env=self.environment(), timeout=LIMIT_S, check=False)
        return done.returncode

    def newest(self) -> int:
        """The newest generation, failed or not."""
        return max(int(path.stem) for path in self.state.glob("generations/*.json"))

    def deploy(self, image: Image, fault: str = "", **changes: Any) -> Run:
        """Deploy, and follow it."""
        return self.run("deploy", stdin=json.dumps(self.request(image, **changes)), fault=fault)

    def deploy_in_background(self, image: Image, **changes: Any) -> subprocess.Popen[str]:
        """Deploy, and do not wait."""
        self.before = {path.name for path in self.state.glob("operations/*")}
        child = subprocess.Popen(
            self.argv("deploy"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(self.request(image, **changes)))
        child.stdin.close()
        return child

    def version(self, address: str = "") -> str:
        """The version that answers, on the published port or elsewhere; empty if nothing does."""
        try:
            with urlopen(f"http://{address or f'127.0.0.1:{self.port}'}/v1/models", timeout=5) as response:
                return str(json.load(response)["version"])
        except OSError:
            return ""

    def running(self) -> list[str]:
        """Versions of the running containers of this group, pins left out."""
        filters = ["--filter", f"label=blackwell-stacks.group={self.group}"]
        filters += ["--filter", "label=blackwell-stacks.role=stack"]
        names = self.deck.engine.docker("ps", "--format", '{{.Label "blackwell-stacks.release"}}', *filters)
        return sorted(name.removeprefix("stand-in-") for name in names.split())

    def current(self) -> int:
        """The committed generation; 0 before the first."""
        path = self.state / "current"
        return int(json.loads(path.read_text())["body"]["generation"]) if path.exists() else 0

    def assert_right(self, version: str) -> None:
        """Exactly this version runs, answers, and will come again with the engine."""
        assert self.running() == [version]
        assert self.version() == version
        assert not (self.state / "pending").exists()
        policy = self.inspect()["HostConfig"]["RestartPolicy"]["Name"]
        assert policy == "unless-stopped"
        code, document = self.read("status")
        assert document["groups"][0]["faults"] == []
        assert code == 0

    def inspect(self) -> dict[str, Any]:
        """The container of the current generation."""
        name = f"blackwell-{self.group}-g{self.current():04d}"
        found: dict[str, Any] = json.loads(self.deck.engine.docker("inspect", name))[0]
        return found

    def actions(self) -> list[str]:
        """Actions of the history."""
        return [line["action"] for line in self.read("history")[1]["history"]]

    def clear(self) -> None:
        """Remove every container of this group."""
        ids = self.deck.engine.docker("ps", "-aq", "--filter", f"label=blackwell-stacks.group={self.group}")
        if ids:
            self.deck.engine.docker("rm", "--force", "--volumes", *ids.split())

    def await_step(self, step: str, state: str = "start") -> dict[str, Any]:
        """Wait until the newest operation (of those in the background) reaches a step."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            new = (path for path in self.state.glob("operations/*") if path.name not in self.before)
            folders = sorted(new, key=os.path.getmtime)
            path = folders[-1] / "events.jsonl" if folders else None
            for line in path.read_text().splitlines() if path is not None and path.exists() else ():
                event: dict[str, Any] = json.loads(line)
                if (event["step"], event["state"]) == (step, state):
                    return event
            time.sleep(0.02)
        raise AssertionError(f"no event {step} {state}")

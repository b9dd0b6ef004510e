"""Find a Docker client that can build with BuildKit against this engine.

Three kinds are in the field: a client with the buildx plugin, a client up to 22 that has BuildKit built in
(Debian 12's own), and a newer client without the plugin, which cannot build and is often first on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tooling import runner
from tooling.errors import CommandError, EngineError
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LAST_WITH_BUILT_IN = 22
_FIRST_WITH_BUILT_IN = (18, 9)


class BuildClient(Record):
    """A client that can build.

    Attributes:
        path: The program.
        version: Version of the client.
        kind: `buildx` for the plugin, `built-in` for a client with BuildKit inside.
    """

    path: str
    version: str
    kind: Literal["buildx", "built-in"]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the build command needs."""
        # The plugin's default builder is the engine itself: it sees the engine's own images as bases.
        return {"DOCKER_BUILDKIT": "1"} if self.kind == "built-in" else {"BUILDX_BUILDER": "default"}

    @property
    def build_argv(self) -> list[str]:
        """The start of the build command; options and the context follow."""
        if self.kind == "buildx":
            # Without attestations the result is a plain image, the same kind from both clients.
            return [self.path, "buildx", "build", "--load", "--provenance=false"]
        return [self.path, "build"]


def candidates(environment: Mapping[str, str]) -> list[str]:
    """Every `docker` on PATH in its order, then the places where distributions put it."""
    directories = [*environment.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    found: dict[str, str] = {}
    for directory in directories:
        path = shutil.which("docker", path=directory)
        if path:
            found.setdefault(str(Path(path).resolve()), path)
    return list(found.values())


def judge(path: str, version_json: str, buildx: bool) -> BuildClient | str:
    """Decide from what a client says of itself whether it can build; else the reason why not.

    Args:
        path: The client.
        version_json: Output of `docker version --format '{{json .}}'`.
        buildx: Whether `docker buildx version` succeeded.
    """
    version = json.loads(version_json)["Client"]["Version"]
    if buildx:
        return BuildClient(path=path, version=version, kind="buildx")
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    if (major, minor) >= _FIRST_WITH_BUILT_IN and major <= _LAST_WITH_BUILT_IN:
        return BuildClient(path=path, version=version, kind="built-in")
    return f"{path} {version} has no buildx plugin, which clients from 23 on need to build"


def find_build_client(paths: Iterable[str] | None = None) -> BuildClient:
    """The first client that can build against the engine that answers.

    Raises:
        EngineError: There is none; the message says what each one lacks and which package brings it.
    """
    reasons = []
    for path in candidates(os.environ) if paths is None else paths:
        try:
            version = runner.run([path, "version", "--format", "{{json .}}"], timeout_s=30).stdout
        except CommandError as error:
            # A client whose API the engine no longer takes fails here, with both versions in its words.
            reasons.append(f"{path}: {' '.join(error.details) or error.what}")
            continue
        try:
            runner.run([path, "buildx", "version"], timeout_s=30)
        except CommandError:
            judged = judge(path, version, buildx=False)
        else:
            judged = judge(path, version, buildx=True)
        if isinstance(judged, BuildClient):
            return judged
        reasons.append(judged)
    raise EngineError(
        "no Docker client here can build images with BuildKit",
        details=reasons or ["no docker program on PATH"],
        fix="install the plugin: apt-get install docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin "
        "(Docker's packages); on Debian 12 the package docker.io brings a client that can",
    )

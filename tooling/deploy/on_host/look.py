"""Says as JSON whether Docker, disk, model files and host program are as a deploy needs them; changes nothing.

Its argument is a JSON object: `program` (path), `model` (id, revision, path) or null, `model_cache`, `files`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 60
NOT_FOUND = 127
SLICE = 100


def docker(*words: str) -> tuple[int, str, str]:
    """Run the Docker client; its exit code and what it printed."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        return NOT_FOUND, "", "docker: command not found"
    except subprocess.TimeoutExpired:
        return 1, "", f"docker {words[0]} did not answer within {LIMIT_S} s"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def engine() -> dict[str, Any]:
    """Versions of client and engine, where it keeps images, and the layers of every image that it has."""
    code, out, err = docker("version", "--format", "{{json .}}")
    if code != 0 or not out.strip():
        return {"error": (err or out).strip()[-2000:]}
    version = json.loads(out)
    server = version.get("Server") or {}
    code, out, err = docker("info", "--format", "{{json .}}")
    if code != 0:
        return {"error": (err or out).strip()[-2000:]}
    info = json.loads(out)
    return {
        "error": "",
        "client": (version.get("Client") or {}).get("Version", ""),
        "version": server.get("Version", ""),
        "api": server.get("ApiVersion", ""),
        "api_minimum": server.get("MinAPIVersion", ""),
        "root": info.get("DockerRootDir", ""),
        "cdi": [path for path in info.get("CDISpecDirs") or [] if has_nvidia(Path(path))],
        "live_restore": bool(info.get("LiveRestoreEnabled")),
        "images": images(),
    }


def images() -> list[list[str]]:
    """Diff ids of each image, from the base up."""
    ids = sorted(set(docker("image", "ls", "--quiet", "--no-trunc")[1].split()))
    found: list[list[str]] = []
    for start in range(0, len(ids), SLICE):
        some = ids[start : start + SLICE]
        out = docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", *some)[1]
        found += [json.loads(line) or [] for line in out.splitlines() if line.strip()]
    return found


def has_nvidia(directory: Path) -> bool:
    """Whether a CDI specification of the vendor lies there."""
    try:
        return any("nvidia" in path.name for path in directory.iterdir())
    except OSError:
        return False


def free_bytes(path: Path) -> int | None:
    """Free bytes where a path is, or will be."""
    there = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def model(asked: dict[str, str] | None, cache: str) -> dict[str, Any] | None:
    """Where the pinned revision lies, and what is wrong with it; empty when nothing is."""
    if asked is None:
        return None
    if asked.get("path"):
        path = Path(asked["path"])
        return {"path": str(path), "repository": "", "revisions": [], "problem": problem_of(path)}
    folder = "models--" + asked["id"].replace("/", "--")
    roots = [Path(cache) / "hub", Path(cache)] if cache else []
    home = next((root / folder for root in roots if (root / folder).is_dir()), None)
    if home is None:
        return {"path": "", "repository": "", "revisions": [], "problem": "the cache does not have this model"}
    snapshots = home / "snapshots"
    revisions = sorted(path.name for path in snapshots.iterdir()) if snapshots.is_dir() else []
    path = snapshots / asked["revision"]
    known = asked["revision"] in revisions
    problem = problem_of(path) if known else "the cache does not have this revision"
    return {"path": str(path), "repository": str(home), "revisions": revisions, "problem": problem}


def problem_of(path: Path) -> str:
    """What is wrong with a folder or file of weights."""
    if not path.exists():
        return "it does not exist"
    if not os.access(path, os.R_OK):
        return "it cannot be read"
    if path.is_file():
        return "" if path.stat().st_size else "it is empty"
    return problem_of_folder(path)


def problem_of_folder(path: Path) -> str:
    """A folder of weights: links that lead nowhere and shards that are not there mean a broken download."""
    files = sorted(path.iterdir())
    # Files of the hub's cache are links to blobs; an interrupted download leaves links without one.
    lacking = [file.name for file in files if not file.exists()]
    for index in (file for file in files if file.name.endswith(".index.json") and file.exists()):
        shards = set((json.loads(index.read_text(encoding="utf-8")).get("weight_map") or {}).values())
        lacking += sorted(shard for shard in shards if not (path / shard).exists())
    if lacking:
        return f"its download is not complete: {len(lacking)} files are missing, e.g. {lacking[0]}"
    if not any(file.name == "config.json" or file.suffix == ".gguf" for file in files):
        return "it has neither a config.json nor a .gguf file"
    return ""


def sha256(path: Path) -> str:
    """Hash of a file; empty when there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def memory_available() -> int | None:
    """Bytes that new work can take, as the kernel reckons; also true where GPU and host share their memory."""
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def main() -> None:
    """Look, and print."""
    asked = json.loads(sys.argv[1])
    found = engine()
    seen = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "user": os.getuid(),
        "memory_available": memory_available(),
        "program_sha256": sha256(Path(asked["program"])),
        "engine": found,
        "free": free_bytes(Path(found.get("root") or "/var/lib/docker")),
        "model": model(asked["model"], asked["model_cache"]),
        "unreadable": [path for path in asked["files"] if not os.access(path, os.R_OK)],
    }
    sys.stdout.write(json.dumps(seen) + "\n")


main()

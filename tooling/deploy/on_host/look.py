"""Sent to a host: says as JSON whether Python, Docker, disk, model files and the host program are as a deploy needs.

Its argument is a JSON object: `program` (path), `model` (id, revision, path), `model_cache`, `files` (environment
files), `root`. It changes nothing.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys

LIMIT_S = 60


def docker(*words):
    try:
        done = subprocess.run(
            ["docker", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return 127, "", "docker: command not found"
    except subprocess.TimeoutExpired:
        return 124, "", "docker %s did not answer within %d s" % (words[0], LIMIT_S)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def engine():
    """Version of client and engine, where it keeps images, and the layers of every image that it has."""
    code, out, err = docker("version", "--format", "{{json .}}")
    if code != 0 or not out.strip():
        return {"error": (err or out).strip()[-2000:]}
    version = json.loads(out)
    server = version.get("Server") or {}
    found = {
        "client": version.get("Client", {}).get("Version", ""),
        "version": server.get("Version", ""),
        "api": server.get("ApiVersion", ""),
        "api_minimum": server.get("MinAPIVersion", ""),
        "machine": server.get("Arch", ""),
        "error": "",
    }
    code, out, err = docker("info", "--format", "{{json .}}")
    if code != 0:
        return {"error": (err or out).strip()[-2000:]}
    info = json.loads(out)
    found["root"] = info.get("DockerRootDir", "")
    found["cdi"] = [path for path in info.get("CDISpecDirs") or [] if has_nvidia(path)]
    found["runtimes"] = sorted(info.get("Runtimes") or {})
    found["live_restore"] = bool(info.get("LiveRestoreEnabled"))
    code, out, err = docker("image", "ls", "--quiet", "--no-trunc")
    ids = sorted(set(out.split()))
    found["images"] = []
    for start in range(0, len(ids), 100):
        code, out, err = docker(
            "image", "inspect", "--format", "{{json .RootFS.Layers}}", *ids[start : start + 100]
        )
        found["images"] += [json.loads(line) or [] for line in out.splitlines() if line.strip()]
    return found


def has_nvidia(directory):
    try:
        return any("nvidia" in name for name in os.listdir(directory))
    except OSError:
        return False


def free(path):
    """Free bytes where a path is, or will be."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path or "/").free
    except OSError:
        return None


def model(asked, cache):
    """Where the pinned revision lies, or what is there in its place."""
    if asked is None:
        return None
    if asked.get("path"):
        path = asked["path"]
        return {"path": path, "repository": "", "problem": files_problem(path), "revisions": []}
    folder = "models--" + asked["id"].replace("/", "--")
    roots = [os.path.join(cache, "hub"), cache] if cache else []
    homes = [root for root in roots if os.path.isdir(os.path.join(root, folder))]
    if not homes:
        return {"path": "", "repository": "", "revisions": [], "problem": "the cache does not have this model"}
    home = os.path.join(homes[0], folder)
    snapshots = os.path.join(home, "snapshots")
    revisions = sorted(os.listdir(snapshots)) if os.path.isdir(snapshots) else []
    path = os.path.join(snapshots, asked["revision"])
    problem = files_problem(path) if asked["revision"] in revisions else "the cache does not have this revision"
    return {"path": path, "repository": home, "revisions": revisions, "problem": problem}


def files_problem(path):
    """What is wrong with a folder or file of weights; empty when nothing is."""
    if not os.path.exists(path):
        return "it does not exist"
    if not os.access(path, os.R_OK):
        return "it cannot be read"
    if os.path.isfile(path):
        return "" if os.path.getsize(path) else "it is empty"
    names = [name for name in os.listdir(path)]
    gone = sorted(name for name in names if not os.path.exists(os.path.join(path, name)))
    if gone:
        return "its download is not complete: " + ", ".join(gone[:3])
    if "config.json" not in names and not any(name.endswith(".gguf") for name in names):
        return "it has neither a config.json nor a .gguf file"
    for name in names:
        if name.endswith(".index.json"):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                shards = set((json.load(file).get("weight_map") or {}).values())
            lacking = sorted(shard for shard in shards if not os.path.exists(os.path.join(path, shard)))
            if lacking:
                return "its download is not complete: %d of %d shards are missing, e.g. %s" % (
                    len(lacking), len(shards), lacking[0],
                )  # fmt: skip
    return ""


def sha256(path):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def memory():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def main():
    asked = json.loads(sys.argv[1])
    found = engine()
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "machine": platform.machine(),
                "uid": os.getuid(),
                "memory_available": memory(),
                "program_sha256": sha256(asked["program"]),
                "engine": found,
                "free": free(found.get("root") or "/var/lib/docker"),
                "model": model(asked.get("model"), asked.get("model_cache") or ""),
                "unreadable": [path for path in asked["files"] if not os.access(path, os.R_OK)],
            }
        )
    )


main()

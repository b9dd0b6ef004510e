"""`docker run IMAGE probe [--json]`: what this container can really do with its GPUs.

Facts, then two ladders. Each ladder runs in child processes under a hard time limit per rung, so that a driver
that hangs or crashes becomes a result. It judges little: the toolkit turns the JSON into checks and advice.

Exit code 0: all rungs that ran are good; 1: one is not; 2: wrong arguments; 3: there is no GPU here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import probe_collector
from probe_nvml import Nvml, idle_state
from probe_runner import Runner, ranks_of, rounds_of

FORMAT = 1
CODES = Path(__file__).with_name("probe_codes.json")
STACK = Path("/opt/stack/share/stack.json")
NO_GPU = 3
#: Percent and seconds: after the ladders a GPU must come back under this load within this time.
IDLE_UTILISATION, IDLE_LIMIT_S = 5, 8.0
HARMLESS = {"ok", "unusable", "unavailable"}
#: NOT_PERMITTED and NOT_SUPPORTED: what a host without an NVLink fabric rightly answers to fabric handles.
NO_FABRIC = {800, 801}


def is_bad(rung: dict[str, Any]) -> bool:
    """Whether a rung's answer makes the probe fail."""
    no_fabric = rung.get("handle") == "fabric" and rung.get("code") in NO_FABRIC
    return rung["outcome"] not in HARMLESS and not no_fabric


def arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="probe", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the whole document on stdout")
    parser.add_argument("--facts-only", action="store_true", help="no ladder")
    parser.add_argument("--no-memory", action="store_true", help="no memory ladder")
    parser.add_argument("--no-collective", action="store_true", help="no NCCL and no symmetric memory")
    parser.add_argument("--workspace-mib", type=int, default=512, help="size of the engine's workspace, MiB")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one rung may take")
    parser.add_argument(
        "--multicast-create",
        action="store_true",
        help="really create a multicast object; it can put the GPUs of a shared host out of service",
    )
    options = parser.parse_args(words)
    if options.workspace_mib < 1 or options.limit <= 0:
        parser.error("--workspace-mib and --limit must be positive")
    return options


def say(message: str) -> None:
    """Progress, on stderr."""
    print(message, file=sys.stderr, flush=True)


def memory(runner: Runner, count: int, workspace: int) -> None:
    """The memory ladder of every device: devices side by side, the combinations of one device in turn."""
    for handle in ("none", "posix_fd", "fabric"):
        say(f"memory: {handle} handles")
        orders = [{"device": index, "handle": handle, "workspace": workspace} for index in range(count)]
        runner.side_by_side("memory", orders)
    say("memory: CUDA IPC")
    runner.side_by_side("legacy-ipc", [{"device": index} for index in range(count)])


def pairs(runner: Runner, count: int, options: argparse.Namespace) -> None:
    """The pair ladder of all pairs, the speed of those that work, all GPUs at once, then collectives."""
    for rivals in rounds_of(count):
        say("pair: GPUs " + ", ".join(f"{first} and {second}" for first, second in rivals))
        runner.side_by_side("pair", [{"first": first, "second": second} for first, second in rivals])
    if working := working_pairs(runner.rungs):
        say(f"pair: speed of {len(working)} pairs")
        runner.side_by_side("speed", [{"pairs": working}])
    say("pair: all GPUs at once")
    runner.side_by_side("all-at-once", [{"devices": list(range(count))}])
    if options.no_collective:
        return
    for arm, environment in (("default", {}), ("no-p2p", {"NCCL_P2P_DISABLE": "1"})):
        say(f"collective: {count} ranks, {arm}")
        runner.collective(ranks_of(count, "nccl"), environment, arm=arm)
    say(f"collective: symmetric memory, {count} ranks")
    runner.collective(ranks_of(count, "symmetric"), {}, arm="symmetric")


def working_pairs(rungs: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Pairs of GPUs that have pushed to each other and of which no rung failed."""
    of_pair: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for rung in rungs:
        if rung.get("ladder") == "pair" and "peer" in rung:
            of_pair.setdefault(tuple(sorted((rung["device"], rung["peer"]))), []).append(rung)
    return sorted(
        pair
        for pair, members in of_pair.items()
        if {rung["device"] for rung in members if rung["rung"] == "push"} == set(pair)
        and all(rung["outcome"] == "ok" for rung in members)
    )


def come_to_rest(nvml: Nvml) -> list[dict[str, Any]]:
    """Wait until the GPUs are idle again, at most `IDLE_LIMIT_S`: a hung kernel stays."""
    clock = time.monotonic()
    state = idle_state(nvml)
    while any((gpu["utilisation"] or 0) > IDLE_UTILISATION for gpu in state):
        if time.monotonic() - clock > IDLE_LIMIT_S:
            break
        time.sleep(0.5)
        state = idle_state(nvml)
    return state


def probe(options: argparse.Namespace) -> dict[str, Any]:
    """Ask everything; returns the document."""
    clock = time.monotonic()
    say("host and container")
    document: dict[str, Any] = {"format": FORMAT, "source": "image", "host": probe_collector.collect()[0]}
    if STACK.is_file():
        stack = json.loads(STACK.read_text(encoding="utf-8"))
        document["image"] = {key: stack.get(key) for key in ("stack", "cuda", "targets")}
    nvml = Nvml()
    document["nvml"] = nvml.facts()
    say("driver")
    runner = Runner(options.limit, allow_multicast=options.multicast_create)
    document["devices"] = runner.devices(multicast=options.multicast_create)
    document["simulated"] = runner.simulated or nvml.simulated
    if document["devices"] and not options.facts_only:
        document["idle_before"] = idle_state(nvml)
        if not options.no_memory:
            memory(runner, len(document["devices"]), options.workspace_mib << 20)
        if len(document["devices"]) > 1:
            pairs(runner, len(document["devices"]), options)
        document["idle_after"] = come_to_rest(nvml)
    document["rungs"] = runner.rungs
    document["seconds"] = round(time.monotonic() - clock, 1)
    return document


def show(document: dict[str, Any]) -> None:
    """A table for people."""
    meanings = json.loads(CODES.read_text(encoding="utf-8"))["results"]
    if document["simulated"]:
        print("SIMULATION: a stand-in plays the driver; nothing below is evidence of anything")
    for device in document["devices"]:
        attributes = device["attributes"]
        print(
            f"GPU {device['index']}: {device['name']}, compute capability "
            f"{attributes['capability_major']}.{attributes['capability_minor']}, "
            f"{device['memory_bytes'] / 2**30:.1f} GiB, {device['pci']}"
        )
    for rung in document["rungs"]:
        where = " ".join(
            f"{key}={rung[key]}"
            for key in ("device", "peer", "arm", "handle", "rdma", "size_name", "size", "route")
            if rung.get(key) is not None and not (key == "size" and "size_name" in rung)
        )
        line = f"{rung['outcome'].upper():<12} {rung.get('ladder', 'driver')}/{rung['rung']} {where}"
        if rung.get("values"):
            line += " " + " ".join(f"{key}={value}" for key, value in rung["values"].items())
        print(line)
        if rung.get("code"):
            print(f"{'':<12} {rung['call']}: {rung['name']} ({rung['code']}) {rung.get('log', '')}")
            print(f"{'':<12} {meanings.get(str(rung['code']), {}).get('meaning', 'no known meaning here')}")


def main(words: list[str]) -> int:
    """Probe and print."""
    options = arguments(words)
    document = probe(options)
    bad = [rung for rung in document["rungs"] if is_bad(rung)]
    if options.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        show(document)
    if not document["devices"]:
        reason = next(
            (rung.get("log") or f"{rung.get('call')}: {rung.get('name')}" for rung in document["rungs"]), ""
        )
        say(f"no GPU can be used here: {reason or 'the driver lists no device'}")
        say(
            "  to do: start the container with --gpus all (or CDI), and ask `blackwell-stacks doctor` "
            "on the host"
        )
        seen = document["nvml"].get("gpus") or document["host"]["pci"]
        return 1 if seen else NO_GPU
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

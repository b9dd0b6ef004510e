"""Runs the probe's children: reads their lines, enforces a limit on every rung, keeps what was reached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHILD = Path(__file__).with_name("probe_child.py")
RANK = Path(__file__).with_name("probe_collective.py")
#: What is slow and no fault: starting Python, the bindings and CUDA on a busy machine; a torch import and the
#: first communicator on a cold disk.
SLOW_RUNGS = {"start": 60.0, "import-torch": 90.0, "communicator": 60.0}
#: Multicast objects can put the GPUs of a shared host out of service; every child lives without them.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
Lines = list[dict[str, Any]]


class Child:
    """One child process and the rung that it is on."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], labels: dict[str, Any]) -> None:
        self.labels = labels
        self.begun: dict[str, Any] = {"rung": "start"}
        self.lines: Lines = []
        self.since = time.monotonic()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.queue: Queue[bytes | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as lines:
                for line in lines:
                    self.queue.put(line)
        self.queue.put(None)

    def follow(self, limit_s: float) -> None:
        """Read to the end, or to a rung that takes longer than its limit; then the child is killed."""
        while True:
            allowed = max(SLOW_RUNGS.get(self.begun["rung"], 0.0), limit_s)
            try:
                line = self.queue.get(timeout=max(0.01, self.since + allowed - time.monotonic()))
            except Empty:
                self.stop()
                self.stderr.close()
                self._fail("hang", log=f"no answer within {allowed:g} s")
                return
            if line is None:
                self._ended()
                return
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return  # a library's own chatter
        if not isinstance(told, dict) or "kind" not in told:
            return
        self.since = time.monotonic()
        told = {**self.labels, **told}
        if told["kind"] == "begin":
            self.begun = told
        else:
            self.lines.append(told)
            if told["kind"] == "rung":
                self.begun = {**told, "rung": f"after {told['rung']}"}

    def _ended(self) -> None:
        code = self.process.wait()
        self.stderr.seek(0)
        with self.stderr:
            said = self.stderr.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        if code < 0:
            self._fail("crash", log=f"signal {signal.Signals(-code).name}: {' '.join(said[-2:])[:300]}")
        elif code and not any(line.get("outcome") == "error" for line in self.lines):
            self._fail("crash", log=f"exit code {code}: {' '.join(said[-2:])[:300]}")

    def _fail(self, outcome: str, *, log: str) -> None:
        labels = {key: value for key, value in self.begun.items() if key not in {"kind", "outcome"}}
        self.lines.append({**self.labels, **labels, "kind": "rung", "outcome": outcome, "log": log})

    def stop(self) -> None:
        """Kill the child's whole group; one that the kernel cannot end is left behind, not waited for."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(3)


class Runner:
    """All rungs of one probe.

    Attributes:
        rungs: What came back, in order; `outcome` is ok, error, wrong-data, hang, crash, unusable (not
            granted by the driver) or unavailable (a library is missing).
        simulated: Whether a stand-in plays the driver.
    """

    def __init__(self, limit_s: float, *, allow_multicast: bool) -> None:
        self.limit_s = limit_s
        self.environment = {} if allow_multicast else dict(NO_MULTICAST)
        self.rungs: Lines = []
        self.simulated = False

    def _child(self, work: str, order: dict[str, Any]) -> Child:
        argv = [sys.executable, str(CHILD), work, json.dumps(order)]
        ladder = "memory" if work in {"memory", "legacy-ipc"} else "pair"
        names = {"first": "device", "second": "peer"}
        labels = {"ladder": "driver" if work == "devices" else ladder}
        labels.update(
            {
                names.get(key, key): value
                for key, value in order.items()
                if key not in {"workspace", "multicast", "pairs"}
            }
        )
        return Child(argv, self.environment, labels)

    def _keep(self, lines: Lines, **labels: Any) -> None:
        for line in lines:
            if line["kind"] == "rung":
                self.rungs.append({**{key: value for key, value in line.items() if key != "kind"}, **labels})
            elif line["kind"] == "note" and self.rungs:
                facts = {
                    key: value for key, value in line.items() if key != "kind" and key not in self.rungs[-1]
                }
                self.rungs[-1].update(facts)

    def devices(self, *, multicast: bool) -> Lines:
        """What the driver lists; the rung `cuInit` holds its answer when it lists nothing."""
        child = self._child("devices", {"multicast": multicast})
        child.follow(max(60.0, self.limit_s))  # the first cuInit after a boot may load modules
        self._keep(child.lines)
        self.simulated = any(line["kind"] == "simulation" for line in child.lines)
        keep = ("index", "name", "pci", "memory_bytes", "attributes", "multicast")
        return [{key: line[key] for key in keep} for line in child.lines if line["kind"] == "device"]

    def side_by_side(self, work: str, orders: list[dict[str, Any]]) -> None:
        """Start a child for each order and follow them all; they use different devices."""
        children = [self._child(work, order) for order in orders]
        self._follow(children)
        for child in children:
            self._keep(child.lines)

    def _follow(self, children: list[Child]) -> None:
        threads = [threading.Thread(target=child.follow, args=(self.limit_s,)) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def collective(self, ranks: list[list[str]], environment: Mapping[str, str], *, arm: str) -> None:
        """Start all ranks together; the worst answer of all ranks for a size is the rung's result."""
        with tempfile.TemporaryDirectory() as directory:
            children = [
                Child(
                    [sys.executable, str(RANK), *rank[:2], f"{directory}/store", rank[2]],
                    {**self.environment, **environment},
                    {"ladder": "collective", "arm": arm, "rank": int(rank[0])},
                )
                for rank in ranks
            ]
            try:
                self._follow(children)
            finally:
                for child in children:
                    child.stop()
        notes = [line for child in children for line in child.lines if line["kind"] == "note"][:1]
        facts: dict[str, Any] = {key: note[key] for note in notes for key in ("torch", "nccl") if key in note}
        self.rungs.extend({**line, **facts} for line in worst_of_ranks([child.lines for child in children]))


def worst_of_ranks(lines: list[Lines]) -> Lines:
    """One result for each rung and size over all ranks: the first that is not ok, else the first."""
    merged: dict[tuple[str, int], dict[str, Any]] = {}
    for rank in lines:
        for line in rank:
            if line["kind"] != "rung":
                continue
            key = (line["rung"], line.get("size") or 0)
            if key not in merged or (merged[key]["outcome"] == "ok" and line["outcome"] != "ok"):
                merged[key] = {name: value for name, value in line.items() if name != "kind"}
    return list(merged.values())


def rounds_of(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of `count` GPUs in rounds: a GPU is in one pair of a round, so that a round can run at once.

    The circle method of round-robin tournaments: one stays, the others move on by one seat a round.
    """
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(sorted((min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def ranks_of(count: int, mode: str) -> list[list[str]]:
    """Rank, world size and mode of every rank."""
    return [[str(rank), str(count), mode] for rank in range(count)]

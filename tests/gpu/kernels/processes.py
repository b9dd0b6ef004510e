"""Real processes over real CUDA IPC, on one GPU or one each: groups are made, used, stalled and taken down."""

from __future__ import annotations

import importlib
import multiprocessing
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_PATIENCE = 3.0


def _hub(pipes: list[Connection]) -> None:
    """All-gather for the children; when one is gone, all of them learn it by the end of their pipe."""
    try:
        while True:
            data = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(data)
    except (EOFError, OSError):
        for pipe in pipes:
            pipe.close()


def _child(  # noqa: PLR0917
    rank: int, world: int, device: int, pipe: Connection, results: Any, scenario: str
) -> None:
    def exchange(data: bytes) -> list[bytes]:
        pipe.send(data)
        answers: list[bytes] = pipe.recv()
        return answers

    module, _, name = scenario.rpartition(".")
    try:
        function = getattr(importlib.import_module(module or __name__), name)
        results.put((rank, "ok", function(rank, world, device, exchange)))
    except BaseException as error:  # noqa: BLE001  # the parent judges it
        results.put((rank, f"{type(error).__name__}: {error}", traceback.format_exc()))


def run(world: int, scenario: str, *, one_gpu: bool, timeout: float = 100.0) -> list[tuple[str, Any]]:
    """Run a scenario in `world` processes.

    Args:
        world: Number of ranks.
        scenario: Name of a function of this module, or of another as `module.name`.
        one_gpu: All on device 0, or each on its own.
        timeout: Seconds; what runs then is ended.

    Returns:
        By rank: "ok" or an error, and what the scenario returned.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    pairs = [context.Pipe() for _ in range(world)]
    children = [
        context.Process(
            target=_child, args=(rank, world, 0 if one_gpu else rank, pairs[rank][1], results, scenario)
        )
        for rank in range(world)
    ]
    for child in children:
        child.start()
    for _, theirs in pairs:
        theirs.close()
    threading.Thread(target=_hub, args=([ours for ours, _ in pairs],), daemon=True).start()
    found: dict[int, tuple[str, Any]] = {}
    until = time.monotonic() + timeout
    while len(found) < world and time.monotonic() < until:
        while not results.empty():
            rank, how, what = results.get()
            found[rank] = (how, what)
        if all(child.exitcode is not None for child in children) and results.empty():
            break
        time.sleep(0.05)
    for child in children:
        child.join(max(0.1, min(5.0, until - time.monotonic())))
        if child.is_alive():
            child.kill()
    return [found.get(rank, (f"ended with {children[rank].exitcode}", None)) for rank in range(world)]


def _group(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]], **more: Any) -> Any:
    import torch  # noqa: PLC0415  # children of one GPU start faster one by one
    from blackwell_kernels import AllReduceGroup  # noqa: PLC0415

    torch.cuda.set_device(device)
    options = {"patience": 60.0, "measure": False, **more}
    return AllReduceGroup(world, rank, exchange, 64 * 4096 * 2, (4096,), device, **options)


def _check(group: Any, rows: int, kind: int, seed: int, special: float) -> None:
    """One round with fresh inputs, which every rank makes for all."""
    import reference  # noqa: PLC0415

    xs, residual, weight = reference.inputs(group.group_size, rows, 4096, seed, special)
    x, before = xs[group.rank], residual.clone()
    if kind == 0:
        out = residual_out = group.all_reduce(x)
    elif kind == 1:
        out = residual_out = group.all_reduce_add(x, residual)
    else:
        norm_of = ("unrounded", "rounded")[kind - 2]
        out, residual_out = group.all_reduce_residual_rmsnorm(x, residual, weight, reference.EPS, norm_of)
    where = f"rank {group.rank} seed {seed} rows {rows} kind {kind} path {group.forced}"
    reference.check(kind, xs, residual, weight, out, residual_out, where)
    reference.same_bits([before, residual], f"{where}: the residual was written")


def correct(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]) -> dict[str, Any]:
    """Random rounds, a rank that comes late, graph replays, operators, and a clean end."""
    import torch  # noqa: PLC0415

    group = _group(rank, world, device, exchange, first_round=0xFFFFFFFA)
    for seed in range(48):
        group.forced = seed % 4
        _check(group, (1, 64, 5, 33, 2)[seed % 5], seed // 4 % 4, seed, 0.02 if seed % 3 == 0 else 0.0)
    group.forced = None
    if rank == world - 1:
        time.sleep(2.0)
    _check(group, 16, 2, 1000, 0.0)
    x = torch.ones(4, 4096, dtype=torch.bfloat16, device=device)
    torch.library.opcheck(
        torch.ops.blackwell_kernels.all_reduce, (x, group.number), test_utils=("test_schema", "test_faketensor")
    )
    exchange(b"opcheck")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = group.all_reduce(x)
    for number in range(10):
        x.fill_(number + rank)
        graph.replay()
        torch.cuda.synchronize()
        if not bool((out == world * number + world * (world - 1) / 2).all()):
            raise AssertionError(f"replay {number}: {out[0, :4].tolist()}")
    counters = group.counters()
    refused = [group.supports(65, 4096, torch.bfloat16), group.supports(1, 4096, torch.float16)]
    if any(refused):
        raise AssertionError(f"supports() said {refused}")
    group.close()
    group.close()
    return dict(counters)


def measured(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]) -> dict[str, Any]:
    """The start-up measurement, and a second start that finds its plan."""
    import torch  # noqa: PLC0415
    from blackwell_kernels import AllReduceGroup, plans  # noqa: PLC0415

    torch.cuda.set_device(device)
    found, seconds = [], []
    for _ in range(2):
        begin = time.monotonic()
        group = AllReduceGroup(world, rank, exchange, 2 * 4096 * 2, (4096,), device, patience=60.0)
        seconds.append(round(time.monotonic() - begin, 2))
        found.append(group.plans[4096].limits)
        _check(group, 2, 2, 5, 0.0)
        group.close()
    kept = [path.read_text() for path in plans.plan_folder().glob("*.json")]
    if found[0] != found[1] or not kept:
        raise AssertionError(f"plans {found}, kept {len(kept)}")
    return {"plan": found[0], "seconds": seconds, "record": kept[0]}


def refused(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]) -> str:
    """One rank cannot make its slab: every rank must learn it, with the reason, and hold nothing."""
    from blackwell_kernels import GroupError, slab  # noqa: PLC0415
    from blackwell_kernels import group as group_module  # noqa: PLC0415

    if rank == 1:

        def broken(*_: Any) -> slab.Slab:
            raise RuntimeError("no memory for you")

        group_module.Slab = broken  # type: ignore[attr-defined,assignment]
    try:
        _group(rank, world, device, exchange)
    except GroupError as error:
        return str(error)
    raise AssertionError("the group was made although a rank failed")


def dead(rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]) -> dict[str, Any]:
    """The last rank ends without a word; the others must end within the bound, with a diagnosis."""
    import os  # noqa: PLC0415

    import torch  # noqa: PLC0415

    group = _group(rank, world, device, exchange, patience=_PATIENCE)
    _check(group, 4, 2, 1, 0.0)
    torch.cuda.synchronize()
    if rank == world - 1:
        os._exit(9)
    x = torch.ones(4, 4096, dtype=torch.bfloat16, device=device)
    begin, error = time.monotonic(), ""
    try:
        group.all_reduce(x)
        torch.cuda.synchronize()
    except RuntimeError as caught:
        error = str(caught).splitlines()[0]
    seconds = time.monotonic() - begin
    if not error or f"waiting for rank {world - 1}" not in group.diagnosis():
        raise AssertionError(f"after {seconds:.1f} s: error {error!r}, diagnosis {group.diagnosis()!r}")
    try:
        group.close()
    except RuntimeError as caught:
        return {"seconds": round(seconds, 2), "error": error, "close": str(caught)}
    raise AssertionError("close() said nothing of the stall")


def all_ok(results: list[tuple[str, Any]], scenario: str) -> list[Any]:
    """What every rank returned.

    Raises:
        AssertionError: A rank failed.
    """
    failed = [f"rank {rank}: {how}\n{what}" for rank, (how, what) in enumerate(results) if how != "ok"]
    if failed:
        raise AssertionError(f"{scenario}: " + "\n".join(failed))
    return [what for _, what in results]


def check_all(*, one_gpu: bool, worlds: tuple[int, ...]) -> dict[str, object]:
    """Every scenario."""
    found: dict[str, object] = {}
    for world in worlds:
        found[f"correct W={world}"] = all_ok(run(world, "correct", one_gpu=one_gpu), f"correct W={world}")
    small = worlds[0]
    scenario = "mhc_checks.in_a_process"
    found["hyper-connections"] = all_ok(run(small, scenario, one_gpu=one_gpu), scenario)[0]
    found["measured"] = all_ok(run(small, "measured", one_gpu=one_gpu), "measured")[0]
    texts = all_ok(run(small, "refused", one_gpu=one_gpu), "refused")
    if not all("no memory for you" in text and "rank 1" in text for text in texts):
        raise AssertionError(f"refused: {texts}")
    found["refused"] = texts
    survivors = run(small, "dead", one_gpu=one_gpu)
    found["dead"] = all_ok(survivors[:-1], "dead")
    if survivors[-1][0] == "ok":
        raise AssertionError("the dead rank lived")
    return found

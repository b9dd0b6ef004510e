"""Times in one process and one run: ours and the peers, each captured in a graph of many rounds."""

from __future__ import annotations

import json
import statistics
from functools import partial
from typing import TYPE_CHECKING

import peers
import reference
import topk_checks
import torch
import virtual
from blackwell_kernels import plans, topk_transform

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from pathlib import Path

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
_ROUNDS, _REPLAYS, _WARM = 20, 25, 5
_FUSED = 2


def repeated(launch: Callable[[], object]) -> Callable[[int], None]:
    """A body of `time_graph` from one launch."""

    def body(rounds: int) -> None:
        for _ in range(rounds):
            launch()

    return body


def on_every_rank(ranks: virtual.Ranks, launch: Callable[[int], None]) -> Callable[[int], None]:
    """A body of `time_graph` in which each rank runs its rounds on its own stream, as on a GPU of its own."""

    def body(rounds: int) -> None:
        def chain(rank: int) -> None:
            for _ in range(rounds):
                launch(rank)

        ranks.fork(chain)

    return body


def time_graph(body: Callable[[int], None], rounds: int = _ROUNDS) -> dict[str, float]:
    """Microseconds of one round of a graph: median, quartiles and extremes of 25 replays.

    Args:
        body: Launches a number of rounds.
        rounds: How many are captured.
    """
    body(rounds)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body(rounds)
    times = []
    for number in range(_WARM + _REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= _WARM:
            times.append(begin.elapsed_time(end) * 1e3 / rounds)
    low, middle, high = statistics.quantiles(times, n=4)
    return {
        "median": round(middle, 3),
        "quartile_1": round(low, 3),
        "quartile_3": round(high, 3),
        "least": round(min(times), 3),
        "most": round(max(times), 3),
    }


def all_reduce(path: Path, world: int, hidden_sizes: tuple[int, ...]) -> list[dict[str, object]]:
    """Fused all-reduce, residual and norm against each pair of peers, by hidden size and rows."""
    library = peers.load(path)
    table: list[dict[str, object]] = []
    for hidden in hidden_sizes:
        ranks = virtual.Ranks(world, max(ROWS), hidden, patience=5.0)
        for rows in ROWS:
            table.append(_row(library, ranks, rows, hidden))
            print("ROW " + json.dumps(table[-1]), flush=True)
            print(_line(table[-1]), flush=True)
        ranks.close()
    return table


def _row(library: ctypes.CDLL, ranks: virtual.Ranks, rows: int, hidden: int) -> dict[str, object]:
    xs, residual, weight = reference.inputs(ranks.world, rows, hidden, rows)
    rounds = virtual.rounds_of(_FUSED, xs, residual, weight)
    torch.cuda.synchronize()

    def times_of_ours() -> dict[str, dict[str, float]]:
        found = {}
        for path, name in enumerate(plans.PATHS):

            def launch(rank: int, path: int = path) -> None:
                ranks.slabs[rank].run(path, _FUSED, rounds[rank])

            found[name] = time_graph(on_every_rank(ranks, launch))
            ranks.raise_if_stalled()
        return found

    ours = times_of_ours()
    theirs = {}
    # A pair of kernels of a peer, with slabs of its own and all settings.
    peer = peers.Peers(library, ranks, rows, hidden)
    for name, launch in peer.candidates().items():
        peer.check(launch, name)
        peer.reset()
        theirs[name] = time_graph(on_every_rank(ranks, launch))
    # Ours once more at the end: the difference is what the machine changes by itself.
    again = times_of_ours()
    best = min(ours, key=lambda name: ours[name]["median"])
    rival = min(theirs, key=lambda name: theirs[name]["median"])
    return {
        "world": ranks.world,
        "hidden": hidden,
        "rows": rows,
        "ours": ours,
        "ours_again": again,
        "peers": theirs,
        "best_of_ours": best,
        "best_peer": rival,
        "ratio": round(ours[best]["median"] / theirs[rival]["median"], 3),
    }


def _line(row: dict[str, object]) -> str:
    ours, theirs = row["ours"], row["peers"]
    best, rival = row["best_of_ours"], row["best_peer"]
    both = "  ".join(f"{name} {one['median']:.2f}" for name, one in ours.items())  # type: ignore[attr-defined]
    return (
        f"W={row['world']} {row['rows']}x{row['hidden']}: {both} | "
        f"{rival} {theirs[rival]['median']:.2f} us | {best} is {row['ratio']} of it"  # type: ignore[index]
    )


def topk(path: Path) -> list[dict[str, object]]:
    """Top-k with page transform against FlashInfer's and torch's."""
    library = peers.load(path)
    table: list[dict[str, object]] = []
    shapes = [(rows, columns) for columns in (8192, 32768, 65536, 131072) for rows in (1, 4, 16, 64)]
    for rows, columns in [(1, 2048), (32, 2048), *shapes, (4, 262144)]:
        for k in (512, 2048):
            if k >= columns:
                continue
            logits, lengths, pages = topk_checks.case(rows, columns, "normal", 64, 1)
            lengths.fill_(columns)
            out = torch.empty(rows, k, dtype=torch.int32, device="cuda")
            rival = peers.TopkPeer(library, logits, lengths, k)
            run_ours = partial(topk_transform, logits, lengths, pages, 64, k, out=out)
            times = {
                "ours": time_graph(repeated(run_ours)),
                "flashinfer": time_graph(repeated(partial(rival.run, deterministic=False))),
                "flashinfer deterministic": time_graph(repeated(partial(rival.run, deterministic=True))),
                "torch.topk alone": time_graph(
                    repeated(partial(torch.topk, logits, k, sorted=False)), rounds=5
                ),
            }
            rival.run(deterministic=False)
            torch.cuda.synchronize()
            seen = topk_checks.expected(logits, lengths, rival.table, 1, k)
            if not torch.equal(rival.out.sort(1).values, seen.sort(1).values):
                raise reference.WrongError(
                    f"flashinfer's top-k is not what is compared with: {rows}x{columns} k={k}"
                )
            short = lengths.clone()
            lengths.fill_(min(columns, 2 * k))
            times["ours, length 2k"] = time_graph(repeated(run_ours))
            lengths.copy_(short)
            table.append({"rows": rows, "columns": columns, "k": k, **times})
            medians = "  ".join(f"{name} {one['median']:.2f}" for name, one in times.items())
            print("ROW " + json.dumps(table[-1]), flush=True)
            print(f"top-k {k} of {rows}x{columns}: {medians} us", flush=True)
    return table

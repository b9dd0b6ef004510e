"""All-reduce with hyper-connections on virtual ranks: against float64, and timed beside TileLang's."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import peers
import reference
import timing
import torch
import virtual
from blackwell_kernels import mhc, plans

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from pathlib import Path

HIDDEN, ITERATIONS = 4096, 20
TOKENS = (1, 4, 8, 16, 32, 64)
#: Half a step of bfloat16 at the size of what was added, and room for float32 sums.
_STEP = 2.0**-8 * 1.02
_FLOAT = 1e-4
_FUNCTIONS = ("bk_resident_blocks", "bk_mhc_resident_blocks")


def inputs(
    world: int, hidden: int, tokens: int, seed: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], mhc.Mixing]:
    """Parts of all ranks; streams, post and comb; what the next sublayer brings."""
    random = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device="cuda")

    xs = [normal(tokens, hidden).to(torch.bfloat16) for _ in range(world)]
    streams = (3 * normal(tokens, 4, hidden)).to(torch.bfloat16)
    shared = [streams, 2 * normal(tokens, 4).sigmoid(), normal(tokens, 4, 4).softmax(-1)]
    fn = normal(24, 4 * hidden) * (4 * hidden) ** -0.5
    weight = normal(hidden).to(torch.bfloat16)
    return xs, shared, (fn, normal(3), normal(24), weight, 1e-6, 1e-6, 1e-6, ITERATIONS)


class Ranks:
    """Virtual ranks with a workspace each, and inputs that change with a seed."""

    def __init__(self, world: int, tokens: int, hidden: int = HIDDEN, first_round: int = 0) -> None:
        self.world, self.hidden, self.slices = world, hidden, mhc.slices_of(hidden)
        rows = tokens * self.slices
        self.ranks = virtual.Ranks(
            world, rows, hidden // self.slices, first_round=first_round, functions=_FUNCTIONS
        )
        self.workspaces = [
            (torch.empty(rows, 25, device="cuda"), torch.zeros(tokens, dtype=torch.int32, device="cuda"))
            for _ in range(world)
        ]

    def inputs(self, tokens: int, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor], mhc.Mixing]:
        """Inputs of all ranks for a number of rows."""
        return inputs(self.world, self.hidden, tokens, seed)

    def launches(
        self, xs: list[torch.Tensor], shared: list[torch.Tensor], mixing: mhc.Mixing | None
    ) -> tuple[list[tuple[torch.Tensor, ...]], list[ctypes.Structure]]:
        """Poisoned outputs of every rank, and the calls that fill them."""
        both = [
            mhc.prepare((x, *shared), mixing, workspace, self.slices)
            for x, workspace in zip(xs, self.workspaces, strict=True)
        ]
        for made, _ in both:
            for tensor in made:
                tensor.fill_(float("nan"))
        return [made for made, _ in both], [call for _, call in both]

    def run(self, path: int, calls: list[ctypes.Structure]) -> None:
        """One round on all ranks."""
        self.ranks.fork(lambda rank: self.ranks.slabs[rank].run_mhc(path, calls[rank]))


def expected_streams(xs: list[torch.Tensor], shared: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """R' in float64 before it is rounded, and the size of what was added."""
    total = xs[0].float()
    for x in xs[1:]:
        total = total + x.float()
    streams, post, comb = (tensor.double() for tensor in shared)
    own = post[:, :, None] * total.to(torch.bfloat16).double()[:, None, :]
    # comb[t, j, i] takes stream j to stream i.
    mixed = torch.einsum("tji,tjh->tih", comb, streams)
    return own + mixed, own.abs() + torch.einsum("tji,tjh->tih", comb.abs(), streams.abs())


def expected_next(
    streams: torch.Tensor, mixing: mhc.Mixing
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """post', comb', out and the size of what was added for out, in float64, from streams as written."""
    fn, scale, base, weight, rms_eps, hc_eps, norm_eps, iterations = mixing
    flat = streams.double().flatten(1)
    mix = flat @ fn.double().T * torch.rsqrt(flat.square().mean(1, keepdim=True) + rms_eps)
    pre = torch.sigmoid(mix[:, :4] * scale[0].double() + base[:4].double()) + hc_eps
    post = 2 * torch.sigmoid(mix[:, 4:8] * scale[1].double() + base[4:8].double())
    comb = (mix[:, 8:] * scale[2].double() + base[8:].double()).unflatten(1, (4, 4)).softmax(-1) + hc_eps
    comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
    value = torch.einsum("ti,tih->th", pre, streams.double())
    factor = torch.ones_like(value)
    if weight is not None:
        factor = torch.rsqrt(value.square().mean(1, keepdim=True) + norm_eps) * weight.double()
    size = torch.einsum("ti,tih->th", pre, streams.double().abs()) * factor.abs()
    return post, comb, value * factor, size


def check(
    xs: list[torch.Tensor],
    shared: list[torch.Tensor],
    mixing: mhc.Mixing | None,
    made: tuple[torch.Tensor, ...],
    where: str,
) -> None:
    """Compare one rank's outputs.

    Raises:
        WrongError: Says which one, where and by how much.
    """
    streams, size = expected_streams(xs, shared)
    _near(made[0], streams, _STEP * size, f"{where}: streams")
    if mixing is None:
        return
    post, comb, out, out_size = expected_next(made[0], mixing)
    _near(made[1], post, torch.full_like(post, _FLOAT), f"{where}: post")
    _near(made[2], comb, torch.full_like(comb, _FLOAT), f"{where}: comb")
    _near(made[3], out, 2 * _STEP * out_size, f"{where}: output")


def _near(seen: torch.Tensor, wanted: torch.Tensor, room: torch.Tensor, where: str) -> None:
    wrong = ~((seen.double() - wanted).abs() <= room + 1e-30)
    if wrong.any():
        first = tuple(int(i) for i in wrong.nonzero()[0])
        values = f"{float(seen[first])!r}, not {float(wanted[first])!r}"
        raise reference.WrongError(f"{where} {list(first)} is {values}; {int(wrong.sum())} wrong")


def check_all() -> dict[str, object]:
    """Groups of 2 to 8, widths of 5, 7 and 8 slices, every path, with a norm, without, the post step."""
    compared = 0
    for world in (2, 4, 8):
        for hidden in (HIDDEN, 5120, 7168):
            ranks = Ranks(world, 64, hidden, first_round=0xFFFFFFF0)
            for number, tokens in enumerate((1, 2, 7, 64, 33, 1, 16) if hidden == HIDDEN else (1, 5, 40)):
                xs, shared, mixing = ranks.inputs(tokens, number + hidden)
                for wanted in (mixing, (*mixing[:3], None, *mixing[4:]), None):
                    compared += check_paths(ranks, xs, shared, wanted, f"W={world} {tokens}x{hidden}")
            ranks.ranks.close()
    return {"comparisons": compared, "replays": replay()}


def check_paths(
    ranks: Ranks,
    xs: list[torch.Tensor],
    shared: list[torch.Tensor],
    mixing: mhc.Mixing | None,
    where: str,
) -> int:
    """One set of inputs over every path; returns the number of comparisons."""
    by_path, last = [], 4 if mixing else 1
    for path, name in enumerate(plans.PATHS):
        made, calls = ranks.launches(xs, shared, mixing)
        torch.cuda.synchronize()
        ranks.run(path, calls)
        torch.cuda.synchronize()
        ranks.ranks.raise_if_stalled()
        check(xs, shared, mixing, made[0], f"{where} {name}")
        for place in range(last):
            bits = [outputs[place].view(torch.int16) for outputs in made]
            reference.same_bits(bits, f"{where} {name}: ranks, output {place}")
        by_path.append(made[0][0])
        if any(int(arrivals.abs().sum()) for _, arrivals in ranks.workspaces):
            raise reference.WrongError(f"{where} {name}: a counter of arrivals is not 0 again")
    reference.same_bits(by_path, f"{where}: paths")
    return len(plans.PATHS) * ranks.world


def in_a_process(
    rank: int, world: int, device: int, exchange: Callable[[bytes], list[bytes]]
) -> dict[str, int]:
    """The scenario of one rank over CUDA IPC: the group's own methods on every path, a replay, a clean end."""
    torch.cuda.set_device(device)
    group = mhc.MhcGroup(
        world, rank, exchange, 32, HIDDEN, device, patience=60.0, measure=False, first_round=0xFFFFFFFA
    )
    names = ("fn", "scale", "base", "norm_weight", "rms_eps", "hc_eps", "norm_eps", "iterations")
    for seed in range(16):
        group.forced = seed % 4
        xs, shared, mixing = inputs(world, HIDDEN, (1, 32, 5)[seed % 3], seed)
        made = group.boundary(xs[rank], *shared, **dict(zip(names, mixing, strict=True)))
        check(xs, shared, mixing, made, f"rank {rank} seed {seed}")
        reference.same_bits([made[0], group.post(xs[rank], *shared)], f"rank {rank} seed {seed}: post alone")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = group.boundary(xs[rank], *shared, **dict(zip(names, mixing, strict=True)))
    for seed in range(100, 104):
        new, new_shared, _ = inputs(world, HIDDEN, xs[0].shape[0], seed)
        for old, other in zip((*xs, *shared), (*new, *new_shared), strict=True):
            old.copy_(other)
        graph.replay()
        check(xs, shared, mixing, made, f"rank {rank} replay {seed}")
    counters = group.counters()
    group.close()
    return counters


def replay(replays: int = 20_000) -> int:
    """Graphs of different rows and paths in turn; inputs change on the way."""
    ranks = Ranks(4, 32, first_round=0xFFFFF000)
    graphs: list[torch.cuda.CUDAGraph] = []
    states: list[tuple[Any, ...]] = []
    for tokens, path in ((1, 0), (32, 1), (5, 2), (17, 3)):
        xs, shared, mixing = ranks.inputs(tokens, tokens)
        made, calls = ranks.launches(xs, shared, mixing)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ranks.run(path, calls)
        graphs.append(graph)
        states.append((xs, shared, mixing, made))
    for number in range(replays):
        which = (number * 5 + number // 7) % len(graphs)
        fresh = number % 400 < len(graphs)
        if fresh:
            xs, shared, mixing, made = states[which]
            new, new_shared, _ = ranks.inputs(xs[0].shape[0], number)
            for old, other in zip((*xs, *shared), (*new, *new_shared), strict=True):
                old.copy_(other)
        graphs[which].replay()
        if fresh:
            torch.cuda.synchronize()
            ranks.ranks.raise_if_stalled()
            for outputs in made:
                check(xs, shared, mixing, outputs, f"replay {number}")
    torch.cuda.synchronize()
    ranks.ranks.raise_if_stalled()
    ranks.ranks.close()
    return replays


def _launch(ranks: Ranks, path: int, calls: list[Any], rank: int) -> None:
    ranks.ranks.slabs[rank].run_mhc(path, calls[rank])


def times(path: Path) -> list[dict[str, object]]:
    """Each path of ours against FlashInfer's all-reduce and SGLang's TileLang post-pre with its norm."""
    library = peers.load(path)
    table: list[dict[str, object]] = []
    for world in (4, 2):
        ranks = Ranks(world, max(TOKENS))
        for tokens in TOKENS:
            xs, shared, mixing = ranks.inputs(tokens, tokens)
            made, calls = ranks.launches(xs, shared, mixing)
            torch.cuda.synchronize()
            ours = {}
            for number, name in enumerate(plans.PATHS):
                launch = partial(_launch, ranks, number, calls)
                ours[name] = timing.time_graph(timing.on_every_rank(ranks.ranks, launch))
                ranks.ranks.raise_if_stalled()
            check(xs, shared, mixing, made[0], f"W={world} {tokens} tokens, timed")
            rivals = {
                name: timing.time_graph(timing.on_every_rank(ranks.ranks, rival))
                for name, rival in _rivals(library, ranks, tokens, shared, mixing).items()
            }
            table.append({"world": world, "hidden": HIDDEN, "rows": tokens, "ours": ours, "peers": rivals})
            print("ROW " + json.dumps(table[-1]), flush=True)
        ranks.ranks.close()
    return table


def _rivals(
    library: ctypes.CDLL, ranks: Ranks, tokens: int, shared: list[torch.Tensor], mixing: mhc.Mixing
) -> dict[str, Callable[[int], None]]:
    """Right ones alone: what SGLang's function gives for the same sum is held against the formulas first."""
    from sglang.kernels.ops.layernorm.mhc import mhc_fused_post_pre  # type: ignore[import-not-found]  # noqa: PLC0415

    peer = peers.Peers(library, ranks.ranks, tokens, HIDDEN)
    streams, post, comb = shared
    fn, scale, base, weight, rms_eps, hc_eps, norm_eps, iterations = mixing

    def boundary(rank: int) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = mhc_fused_post_pre(
            *(peer.outs[rank], streams, post, comb, fn, scale, base),
            *(rms_eps, hc_eps, hc_eps, 2.0, iterations),
            norm_weight=weight,
            norm_eps=norm_eps,
        )
        return found

    for out in peer.outs:
        out.copy_(sum(x.float() for x in peer.xs))
    seen, seen_post, seen_comb, seen_out = boundary(0)
    made = (seen, seen_post.view_as(post), seen_comb.view_as(comb), seen_out)
    wanted, size = expected_streams(peer.xs, shared)
    _near(made[0], wanted, 2 * _STEP * size, "TileLang: streams")
    _near(made[3], expected_next(made[0], mixing)[2], 4 * _STEP * expected_next(made[0], mixing)[3], "TileLang")
    return peer.pcie_candidates(boundary)

"""Virtual ranks: W slabs and W streams in one process on one GPU, for races and for the time without a bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import reference
import torch
from blackwell_kernels import plans
from blackwell_kernels.slab import KINDS, Round, Sizes, Slab, resident_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Ranks:
    """The ranks of a group on one GPU; every launch is all of them, each on its stream.

    Args:
        world: Number of ranks.
        rows: Most rows.
        hidden: Most columns.
        first_round: Where counters start.
        one_shot_rows: Most rows of one-shot rounds; by default all.
        patience: Seconds until a thread gives up; kernels then end and leave a diagnosis.
        functions: Of the library, what says how many blocks of its kernels are resident.
    """

    def __init__(
        self,
        world: int,
        rows: int,
        hidden: int,
        *,
        first_round: int = 0,
        one_shot_rows: int | None = None,
        patience: float = 15.0,
        functions: tuple[str, ...] = ("bk_resident_blocks",),
    ) -> None:
        self.world, self.hidden = world, hidden
        sizes = Sizes(world, rows, one_shot_rows or rows, hidden)
        self.blocks = resident_blocks(world, (hidden,), world, functions)
        self.slabs = [Slab(rank, sizes, self.blocks, first_round) for rank in range(world)]
        exported = [slab.exported for slab in self.slabs]
        for slab in self.slabs:
            slab.join(exported)
            slab.patience(patience, traps=False)
        self.streams = [torch.cuda.Stream() for _ in range(world)]

    def fork(self, launch: Callable[[int], None]) -> None:
        """Call `launch(rank)` on the stream of each rank, between what the current stream did and will do."""
        current = torch.cuda.current_stream()
        begin = current.record_event()
        for rank, stream in enumerate(self.streams):
            stream.wait_event(begin)
            with torch.cuda.stream(stream):
                launch(rank)
        for stream in self.streams:
            current.wait_event(stream.record_event())

    def run(self, path: int, kind: int, rounds: Sequence[Round]) -> None:
        """One round."""
        self.fork(lambda rank: self.slabs[rank].run(path, kind, rounds[rank]))

    def raise_if_stalled(self) -> None:
        """Fail with the first diagnosis of any rank."""
        for slab in self.slabs:
            if text := slab.diagnosis():
                raise reference.WrongError(text)

    def close(self) -> None:
        """Free all; nothing may run."""
        torch.cuda.synchronize()
        for slab in self.slabs:
            slab.leave()
        for slab in self.slabs:
            slab.destroy(free=True)


def rounds_of(
    kind: int, xs: Sequence[torch.Tensor], residual: torch.Tensor, weight: torch.Tensor
) -> list[Round]:
    """Arguments of every rank with poisoned outputs of their own."""
    made = []
    for x in xs:
        out, residual_out = (torch.full_like(x, float("nan")) for _ in range(2))
        made.append(
            Round(
                x,
                residual.clone() if kind else None,
                weight if kind >= 2 else None,
                reference.EPS,
                out,
                residual_out,
            )
        )
    return made


def check_round(ranks: Ranks, rows: int, hidden: int, seed: int, special: float) -> int:
    """Every kind over every path on one set of inputs; returns the number of comparisons."""
    compared = 0
    xs, residual, weight = reference.inputs(ranks.world, rows, hidden, seed, special)
    for kind in range(len(KINDS)):
        by_path = []
        for path, name in enumerate(plans.PATHS):
            if not ranks.slabs[0].sizes.takes(path, rows):
                continue
            rounds = rounds_of(kind, xs, residual, weight)
            torch.cuda.synchronize()
            ranks.run(path, kind, rounds)
            torch.cuda.synchronize()
            ranks.raise_if_stalled()
            where = f"W={ranks.world} {rows}x{hidden} {name} {KINDS[kind]} seed {seed}"
            for rank, one in enumerate(rounds):
                reference.check(kind, xs, residual, weight, one.out, one.residual_out, f"{where} rank {rank}")
                compared += 1
            reference.same_bits([one.out for one in rounds], where)
            if kind >= 2:
                reference.same_bits([one.residual_out for one in rounds], where)
            by_path.append(rounds[0].out)
        reference.same_bits(by_path, f"W={ranks.world} {rows}x{hidden} {KINDS[kind]}: paths")
    return compared


def check_all() -> dict[str, object]:
    """All sizes of groups and matrices, ordinary and special numbers, changing rows, wrapping counters."""
    compared, errors = 0, []
    for world in (2, 4, 8):
        for hidden in (256, 4096, 5120, 6144, 7168, 8192):
            ranks = Ranks(world, 256, hidden, first_round=0xFFFFFFF0)
            rows_list = (1, 2, 3, 5, 8, 31, 64, 1, 200, 256, 7) if hidden in {4096, 7168} else (1, 9, 40)
            for number, rows in enumerate(rows_list):
                special = 0.02 if number % 3 == 2 else 0.0
                compared += check_round(ranks, rows, hidden, seed=number + hidden, special=special)
            xs, residual, weight = reference.inputs(world, 32, hidden, 5)
            rounds = rounds_of(2, xs, residual, weight)
            torch.cuda.synchronize()
            ranks.run(0, 2, rounds)
            torch.cuda.synchronize()
            errors.append(reference.error_of_norm(xs, residual, weight, rounds[0].out))
            ranks.close()
    # Narrow matrices in a slab made for wide ones.
    ranks = Ranks(4, 64, 8192)
    for number, hidden in enumerate((4096, 8192, 512, 7168, 4096)):
        compared += check_round(ranks, 13 + number, hidden, seed=number, special=0.0)
    ranks.close()
    worst = max(errors)
    if not worst < 4e-3:
        raise reference.WrongError(f"relative error of the norm against float64 is {worst}")
    return {"comparisons": compared, "worst_relative_error_float64": worst}


def replay(replays: int = 100_000) -> dict[str, object]:
    """Graphs of different rows and paths replayed in turn; inputs change on the way, counters are compared."""
    world, hidden = 4, 4096
    ranks = Ranks(world, 64, hidden, first_round=0xFFFF0000)
    shapes = ((1, 0), (64, 1), (5, 2), (33, 3), (64, 0), (4, 1))
    graphs, states = [], []
    for rows, path in shapes:
        xs, residual, weight = reference.inputs(world, rows, hidden, rows)
        rounds = rounds_of(2, xs, residual, weight)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(2):
                ranks.run(path, 2, rounds)
        graphs.append(graph)
        states.append((path, xs, residual, weight, rounds))
    checked = 0
    for number in range(replays):
        which = (number * 7 + number // 11) % len(shapes)
        fresh = number % 500 < len(shapes)
        if fresh:
            path, xs, residual, weight, rounds = states[which]
            new, new_residual, _ = reference.inputs(world, xs[0].shape[0], hidden, number, special=0.01)
            for rank in range(world):
                xs[rank].copy_(new[rank])
                rounds[rank].residual.copy_(new_residual)  # type: ignore[union-attr]
                rounds[rank].out.fill_(float("nan"))
            residual.copy_(new_residual)
        graphs[which].replay()
        if fresh:
            torch.cuda.synchronize()
            ranks.raise_if_stalled()
            where = f"replay {number}, {shapes[which]}"
            for one in rounds:
                reference.check(2, xs, residual, weight, one.out, one.residual_out, where)
            reference.same_bits([one.out for one in rounds], where)
            checked += 1
    torch.cuda.synchronize()
    ranks.raise_if_stalled()
    counts = [slab.rounds() for slab in ranks.slabs]
    if sum(counts[0].values()) != 2 * replays or any(count != counts[0] for count in counts):
        raise reference.WrongError(f"{2 * replays} rounds were replayed, the device counted {counts}")
    ranks.close()
    return {
        "replays": replays,
        "rounds": 2 * replays,
        "checked_with_fresh_inputs": checked,
        "counted": counts[0],
    }


def late_and_absent() -> dict[str, object]:
    """A rank that comes late is waited for; one that does not come is named within the bound."""
    world, hidden, rows = 4, 4096, 8
    found: dict[str, object] = {}
    torch.cuda._sleep(1)  # loads it; later a waiting kernel would hold that up
    for path, name in enumerate(plans.PATHS):
        ranks = Ranks(world, 64, hidden, patience=1.0)
        xs, residual, weight = reference.inputs(world, rows, hidden, path)
        rounds = rounds_of(2, xs, residual, weight)
        torch.cuda.synchronize()

        def late(rank: int, one: Ranks = ranks, path: int = path, rounds: list[Round] = rounds) -> None:
            if rank == 1:
                torch.cuda._sleep(600_000_000)  # some 0.3 s, within the bound
            one.slabs[rank].run(path, 2, rounds[rank])

        ranks.fork(late)
        torch.cuda.synchronize()
        ranks.raise_if_stalled()
        reference.check(2, xs, residual, weight, rounds[0].out, rounds[0].residual_out, f"late {name}")
        for rank in (0, 1, 3):
            with torch.cuda.stream(ranks.streams[rank]):
                ranks.slabs[rank].run(path, 2, rounds[rank])
        torch.cuda.synchronize()
        texts = [ranks.slabs[rank].diagnosis() for rank in (0, 1, 3)]
        if not any("waiting for rank 2" in text for text in texts) or not all(texts):
            raise reference.WrongError(f"{name}: rank 2 was absent, the diagnoses are {texts}")
        found[name] = texts
        ranks.close()
    return found

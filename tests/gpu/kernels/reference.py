"""What the kernels must give: the documented formula, exactly where it is exact, in float64 where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

EPS = 1e-6
#: Half a step of bfloat16 is 2^-9 of a value; the rest is float32 arithmetic.
NORM_TOLERANCE = 2.0**-8
SPECIAL = (0.0, -0.0, 1e-40, -9e-41, float("inf"), float("-inf"), float("nan"), 3.3e38)


class WrongError(AssertionError):
    """A kernel gave something else than its formula."""


def inputs(
    world: int, rows: int, hidden: int, seed: int, special: float = 0.0
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Fresh bfloat16 inputs of all ranks, a residual and a weight; `special` is the share of special values."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

    xs = [normal(rows, hidden) for _ in range(world)]
    residual = 3 * normal(rows, hidden)
    if special:
        values = torch.tensor(SPECIAL, device="cuda").to(torch.bfloat16)
        for tensor in (*xs, residual):
            where = torch.rand(rows, hidden, generator=generator, device="cuda") < special
            picks = torch.randint(len(values), (rows, hidden), generator=generator, device="cuda")
            tensor.copy_(torch.where(where, values[picks], tensor))
        # The mark of an empty mailbox is a possible input too.
        xs[0].view(torch.int16)[0, :64] = -1
    return xs, residual, normal(hidden)


def check(  # noqa: PLR0917
    kind: int,
    xs: Sequence[torch.Tensor],
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    residual_out: torch.Tensor,
    where: str,
) -> None:
    """Compare one rank's outputs; sums bit for bit, norms within the rounding of bfloat16.

    Raises:
        WrongError: Says where and by how much.
    """
    total = xs[0].float()
    for x in xs[1:]:
        total = total + x.float()
    if kind == 0:
        return _same(out, total.to(torch.bfloat16), f"{where}: sum")
    if kind == 1:
        return _same(out, (total + residual.float()).to(torch.bfloat16), f"{where}: sum and residual")
    if kind == 2:
        value = total.to(torch.bfloat16).float() + residual.float()
    else:
        value = (total + residual.float()).to(torch.bfloat16).float()
    _same(residual_out, value.to(torch.bfloat16), f"{where}: residual")
    exact = value.double()
    wanted = exact * torch.rsqrt(exact.square().mean(1, keepdim=True) + EPS) * weight.double()
    seen = out.double()
    # Squares of values near the end of the range overflow float32, in every implementation of this norm.
    overflowing = (exact.square().mean(1, keepdim=True) > 1e38).expand_as(seen)
    finite = torch.isfinite(wanted) & ~overflowing
    wrong = finite & ((seen - wanted).abs() > NORM_TOLERANCE * wanted.abs() + 1e-38)
    wrong |= torch.isnan(wanted) & ~torch.isnan(seen)
    if wrong.any():
        row, column = (int(i) for i in wrong.nonzero()[0])
        raise WrongError(
            f"{where}: norm [{row}, {column}] is {seen[row, column]:.6g}, not {wanted[row, column]:.6g}; "
            f"{int(wrong.sum())} wrong"
        )
    return None


def error_of_norm(
    xs: Sequence[torch.Tensor], residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
) -> float:
    """Relative error of a norm against float64 arithmetic without any rounding between."""
    value = torch.stack([x.double() for x in xs]).sum(0) + residual.double()
    wanted = value * torch.rsqrt(value.square().mean(1, keepdim=True) + EPS) * weight.double()
    return float((out.double() - wanted).norm() / wanted.norm())


def _same(seen: torch.Tensor, wanted: torch.Tensor, where: str) -> None:
    different = (seen.view(torch.int16) != wanted.view(torch.int16)) & ~(
        torch.isnan(seen) & torch.isnan(wanted)
    )
    if different.any():
        row, column = (int(i) for i in different.nonzero()[0])
        raise WrongError(
            f"{where} [{row}, {column}] is {float(seen[row, column])!r}, not {float(wanted[row, column])!r}; "
            f"{int(different.sum())} wrong"
        )


def same_bits(tensors: Sequence[torch.Tensor], where: str) -> None:
    """All ranks, or paths, gave the same bits.

    Raises:
        WrongError: They did not.
    """
    for number, tensor in enumerate(tensors[1:], start=1):
        if not torch.equal(tensor.view(torch.int16), tensors[0].view(torch.int16)):
            raise WrongError(f"{where}: number {number} differs in bits from number 0")

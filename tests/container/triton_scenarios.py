"""Runs inside the image, without a GPU: the Triton kernels under Triton's interpreter, held against float64.

    triton_scenarios.py PACKAGE CHECKS            all cases, one `RESULT` line each
    triton_scenarios.py PACKAGE CHECKS --wrong    the same with one line of a kernel changed; must fail

PACKAGE is `images/kernels`, CHECKS `tests/gpu/kernels`.

The references gather token by token and share nothing with the kernels, not even how a page is read.
"""

# ruff: noqa: T201

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["TRITON_INTERPRET"] = "1"
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

#: float32 sums of a few thousand products.
LOGIT_TOLERANCE = 2e-5
#: Probabilities are rounded to bfloat16, and so is the result: 2^-9 each, and room for the sums.
OUTPUT_TOLERANCE = 3 * 2.0**-9
CASES: dict[str, Callable[[], dict[str, Any]]] = {}


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Add a case under its name."""
    CASES[function.__name__] = function
    return function


def fp8(values: torch.Tensor) -> torch.Tensor:
    """Bytes of the nearest e4m3 values."""
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def widen_dots() -> None:
    """Triton 3.8's interpreter multiplies the bits of bfloat16 in `tl.dot`; give it the numbers: exact."""
    import numpy as np  # noqa: PLC0415
    import triton.language as tl  # noqa: PLC0415
    from triton.runtime import interpreter  # noqa: PLC0415

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None)
        return interpreter.TensorHandle(wide.view(np.float32), tl.float32)

    original = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original(self, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


# Indexer


def indexer_inputs(
    lengths: list[list[int]], pages: int, heads: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, cache, weights and a page table without order; pages that no row has are NaN."""
    random = torch.Generator().manual_seed(seed)
    sequences, following = len(lengths), len(lengths[0])
    q = torch.randn(sequences, following, heads, 128, generator=random)
    q[..., ::17] = 0.0
    q[..., 1::17] = -0.0
    cache = torch.full((sequences * pages + 1, 64 * 132), 0x7F, dtype=torch.uint8)
    for page in range(sequences * pages):
        cache[page, : 64 * 128] = fp8(torch.randn(64 * 128, generator=random))
        scales = torch.rand(64, generator=random) + 0.01
        scales[5] = -0.0
        cache[page, 64 * 128 :] = scales.view(torch.uint8)
    order = torch.randperm(sequences * pages, generator=random).to(torch.int32)
    table = order.view(sequences, pages).clone()
    for sequence, row in enumerate(lengths):
        table[sequence, max(0, -(-max(row) // 64)) :] = sequences * pages  # the page of NaN
    weights = torch.randn(sequences * following, heads, generator=random)
    counts = torch.tensor(lengths, dtype=torch.int32)
    return q.to(torch.float8_e4m3fn), cache.view(-1, 64, 1, 132), weights, counts, table


def expected_logit(q: torch.Tensor, page: bytes, place: int, weights: torch.Tensor) -> float:
    """One logit in double precision from the bytes of a page."""
    key = torch.frombuffer(bytearray(page[place * 128 : place * 128 + 128]), dtype=torch.uint8)
    (scale,) = struct.unpack_from("<f", page, 64 * 128 + 4 * place)
    products = q.double() @ key.view(torch.float8_e4m3fn).double()
    return float(scale * (weights.double() * products.clamp(min=0)).sum())


def check_logits(lengths: list[list[int]], pages: int, heads: int, columns: int, seed: int) -> int:
    """Every logit up to the lengths, and nothing written behind them."""
    from blackwell_kernels import indexer  # noqa: PLC0415

    q, cache, weights, counts, table = indexer_inputs(lengths, pages, heads, seed)
    out = torch.full((weights.shape[0], columns), 1234.5)
    indexer.check_logits(q, cache, weights, counts, table, columns)
    indexer.run_logits(q, cache, weights, counts, table, out)
    compared = 0
    for row, length in enumerate(counts.view(-1).tolist()):
        sequence = row // counts.shape[1]
        real = max(0, min(length, columns))
        for column in range(real):
            page = bytes(cache[table[sequence, column // 64]].flatten().tolist())
            wanted = expected_logit(q.view(-1, heads, 128)[row], page, column % 64, weights[row])
            seen = float(out[row, column])
            if not abs(seen - wanted) <= LOGIT_TOLERANCE * max(1.0, abs(wanted)):
                raise AssertionError(f"logit [{row}, {column}] is {seen}, not {wanted}")
            compared += 1
        if not bool((out[row, real:] == 1234.5).all()):
            raise AssertionError(f"row {row} is written behind its length {real}")
    return compared


@case
def logits_of_ragged_lengths() -> dict[str, Any]:
    """Empty rows, page boundaries, one part a page."""
    return {"compared": check_logits([[0], [1], [63], [64], [65], [-3], [190]], 3, 64, 192, 1)}


@case
def logits_of_several_queries_in_one_part() -> dict[str, Any]:
    """A row walks over its pages alone; columns end inside a page and cut off a length."""
    from blackwell_kernels import indexer  # noqa: PLC0415

    kept, indexer._PROGRAMS = indexer._PROGRAMS, 1
    try:
        return {"compared": check_logits([[129, 130], [64, 0], [200, 256]], 4, 32, 201, 2)}
    finally:
        indexer._PROGRAMS = kept


@case
def logits_of_special_numbers() -> dict[str, Any]:
    """Zeros of both signs and infinite scales give what the formula gives."""
    from blackwell_kernels import paged_mqa_logits  # noqa: PLC0415

    q, cache, weights, counts, table = indexer_inputs([[64]], 1, 64, 3)
    pages = cache.view(-1, 64 * 132)
    scales = pages[int(table[0, 0]), 64 * 128 :].view(torch.float32)
    scales[:2] = torch.tensor([float("inf"), float("-inf")])
    q[0, 0, :32] = 0.0
    weights[0, 32:] = weights[0, 32:].abs()
    seen = paged_mqa_logits(q, cache, weights, counts, table, 64)[0]
    assert seen[0] == float("inf")
    assert seen[1] == float("-inf")
    assert seen[5] == 0.0
    weights.zero_()
    zeros = paged_mqa_logits(q, cache, weights, counts, table, 64)[0]
    assert bool((zeros[2:] == 0).all())
    assert bool(torch.isnan(zeros[:2]).all())
    return {"compared": 128}


# Sparse attention


def make_cache(pages: int, page_size: int, padding: int, seed: int) -> torch.Tensor:
    """Pages with random tokens, powers of two from 2^-3 to 2^3, stride padded by bytes of NaN."""
    random = torch.Generator().manual_seed(seed)
    cache = torch.full((pages, page_size * 584 + padding), 0xFF, dtype=torch.uint8)
    tokens = pages * page_size
    latent = fp8(torch.randn(tokens, 448, generator=random)).view(pages, page_size, 448)
    rope = torch.randn(tokens, 64, generator=random).to(torch.bfloat16).view(torch.uint8)
    powers = torch.randint(124, 131, (pages, page_size, 7), generator=random).to(torch.uint8)
    values = cache[:, : page_size * 576].view(pages, page_size, 576)
    values[:, :, :448] = latent
    values[:, :, 448:] = rope.view(pages, page_size, 128)
    cache[:, page_size * 576 : page_size * 584].view(pages, page_size, 8)[:, :, :7] = powers
    return cache


def token(cache: torch.Tensor, page_size: int, index: int) -> torch.Tensor:
    """One vector in double precision."""
    page, place = divmod(index, page_size)
    data = bytes(cache[page].tolist())
    start, scales = place * 576, page_size * 576 + place * 8
    latent = torch.frombuffer(bytearray(data[start : start + 448]), dtype=torch.uint8)
    rope = torch.frombuffer(bytearray(data[start + 448 : start + 576]), dtype=torch.bfloat16)
    powers = torch.tensor([2.0 ** (data[scales + group] - 127) for group in range(7)], dtype=torch.float64)
    exact = latent.view(torch.float8_e4m3fn).double() * powers.repeat_interleave(64)
    return torch.cat([exact, rope.double()])


def expected_attention(
    q: torch.Tensor, scopes: list[Any], sinks: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The documented formula, sequence by sequence."""
    sequences, heads, width = q.shape
    out = torch.zeros(sequences, heads, width, dtype=torch.float64)
    lse = torch.full((sequences, heads), float("-inf"), dtype=torch.float64)
    for sequence in range(sequences):
        tokens = []
        for cache, indices, lengths, page_size in scopes:
            count = indices.shape[1] if lengths is None else int(lengths[sequence])
            named = indices[sequence, : max(0, count)].tolist()
            tokens += [token(cache, page_size, index) for index in named if index >= 0]
        if not tokens:
            continue
        keys = torch.stack(tokens)
        scores = q[sequence].double() @ keys.T * scale
        lse[sequence] = torch.logsumexp(scores, 1)
        out[sequence] = torch.softmax(scores, 1) @ keys
        if sinks is not None:
            out[sequence] *= torch.sigmoid(lse[sequence] - sinks.double())[:, None]
    return out, lse


def check_attention(
    q: torch.Tensor, scopes: list[Any], sinks: torch.Tensor | None, scale: float = 512**-0.5
) -> int:
    """Both results within the rounding of their types."""
    from blackwell_kernels import sparse_mla_decode  # noqa: PLC0415

    out, lse = sparse_mla_decode(q, *scopes, sinks=sinks, softmax_scale=scale)
    wanted, wanted_lse = expected_attention(q, scopes, sinks, scale)
    most = float((out.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))
    if not most <= OUTPUT_TOLERANCE:
        raise AssertionError(f"output is wrong by {most} of its largest value")
    same = wanted_lse == lse.double()
    near = (wanted_lse - lse.double()).abs() <= 1e-4 * wanted_lse.abs().clamp(min=1.0)
    if not bool((same | near).all()):
        raise AssertionError(f"lse is {lse.tolist()}, not {wanted_lse.tolist()}")
    return int(out.numel())


def window(
    page_size: int, rows: list[list[int]], lengths: list[int] | None, seed: int, padding: int = 0
) -> Any:
    """A scope whose rows are filled up with -1; tokens that no row names are NaN."""
    from blackwell_kernels import Scope  # noqa: PLC0415

    width = max(map(len, rows))
    indices = torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int32)
    pages = int(indices.max()) // page_size + 1
    cache = make_cache(max(1, pages), page_size, padding, seed)
    named = set(indices.flatten().tolist())
    for index in set(range(pages * page_size)) - named:
        page, place = divmod(index, page_size)
        cache[page, place * 576 : place * 576 + 576] = 0xFF
    counts = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    return Scope(cache, indices, counts, page_size)


def queries(sequences: int, heads: int, seed: int) -> torch.Tensor:
    """Random queries with zeros of both signs."""
    q = torch.randn(sequences, heads, 512, generator=torch.Generator().manual_seed(seed)) * 2
    q[..., ::19] = 0.0
    q[..., 1::19] = -0.0
    return q.to(torch.bfloat16)


@case
def attention_over_two_scopes() -> dict[str, Any]:
    """Padded pages of two sizes, ragged lengths, no length, -1 in the middle, twice the same token, sinks."""
    first = window(16, [[3, 15, 16, 17, 3, 3], [31, -1, 30, 0], [5]], [6, 4, 0], 4, padding=96)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(5)).tolist()
    second = window(64, [order, order[:33], [-1, -1]], [70, 33, 2], 6)
    sinks = torch.tensor([float("-inf"), -2.0, 0.0, 4.0, 1000.0] * 4)[:16].contiguous()
    compared = check_attention(queries(3, 16, 7), [first, second], sinks)
    return {"compared": compared + check_attention(queries(3, 16, 8), [second], None)}


@case
def attention_in_one_part_and_in_many() -> dict[str, Any]:
    """More heads than a tile, no lengths; the same tokens in 1, 2 and as many parts as there are tiles."""
    from blackwell_kernels import sparse_mla  # noqa: PLC0415

    order = torch.randperm(97, generator=torch.Generator().manual_seed(9)).tolist()
    scope = window(4, [order], None, 10)
    more = window(2, [order[:40]], [35], 11)
    kept, compared, seen = sparse_mla._PROGRAMS, 0, []
    try:
        for programs in (2, 4, 1000):
            sparse_mla._PROGRAMS = programs
            seen.append(sparse_mla.parts_of(1, 20, (97, 40)))
            compared += check_attention(queries(1, 20, 12), [scope, more], torch.zeros(20))
    finally:
        sparse_mla._PROGRAMS = kept
    assert seen == [1, 2, 6], seen
    return {"compared": compared}


@case
def attention_of_large_and_infinite_scores() -> dict[str, Any]:
    """Scores that no exponential takes without their peak, and some that are -inf in float32."""
    scope = window(8, [list(range(40))], None, 13)
    compared = check_attention(queries(1, 8, 14) * 60, [scope], None)
    q = queries(1, 8, 15)
    q[..., 511] = -3e38
    for index in (1, 33):
        page, place = divmod(index, 8)
        scope.cache[page, place * 576 + 574 : place * 576 + 576] = torch.tensor(
            [3e38], dtype=torch.bfloat16
        ).view(torch.uint8)
    q[..., :511] = 0
    for index in set(range(40)) - {1, 33}:
        page, place = divmod(index, 8)
        scope.cache[page, place * 576 + 574 : place * 576 + 576] = 0
    return {"compared": compared + check_attention(q, [scope], None)}


@case
def attention_without_a_token() -> dict[str, Any]:
    """Zeros and -inf, with and without sinks; a batch of none."""
    from blackwell_kernels import sparse_mla_decode  # noqa: PLC0415

    scope = window(4, [[-1, -1], [2, 3]], [2, 0], 16)
    for sinks in (None, torch.zeros(4), torch.full((4,), float("-inf"))):
        out, lse = sparse_mla_decode(queries(2, 4, 17), scope, sinks=sinks, softmax_scale=1.0)
        assert bool((out == 0).all())
        assert bool((lse == float("-inf")).all())
    empty = scope._replace(indices=scope.indices[:0], lengths=None)
    out, lse = sparse_mla_decode(queries(0, 4, 17), empty, softmax_scale=1.0)
    assert (out.shape, lse.shape) == ((0, 4, 512), (0, 4))
    return {"compared": 3}


# Operators


@case
def operators_agree_with_their_fakes() -> dict[str, Any]:
    """Shapes, types and strides as tracing sees them; arguments are as they were."""
    from blackwell_kernels import portable  # noqa: F401, PLC0415

    ops = torch.ops.blackwell_kernels
    scope = window(4, [[0, 5]], None, 19)
    calls = (
        (ops.paged_mqa_logits, (*indexer_inputs([[70, 3]], 2, 32, 18), 128)),
        (ops.sparse_mla_decode, (queries(1, 2, 20), *scope, None, None, None, 1, None, 0.05)),
        (ops.sparse_mla_decode, (queries(1, 2, 20), *scope, *scope, torch.zeros(2), 0.05)),
    )
    for op, arguments in calls:
        before = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
        real = op(*arguments)
        fake = op(*(one.to("meta") if isinstance(one, torch.Tensor) else one for one in arguments))
        for seen, said in zip(
            *(one if isinstance(one, tuple) else (one,) for one in (real, fake)), strict=True
        ):
            assert (seen.shape, seen.dtype, seen.stride()) == (said.shape, said.dtype, said.stride())
        for one, other in zip(arguments, before, strict=True):
            if isinstance(one, torch.Tensor):
                assert bytes(one.view(torch.uint8).flatten().tolist()) == bytes(
                    other.view(torch.uint8).flatten().tolist()
                )
    return {"compared": len(calls)}


def hyper_connection_inputs(tokens: int = 2, hidden: int = 512) -> dict[str, torch.Tensor]:
    """What the boundary of hyper-connections takes, with nothing in it."""
    wide = {"x": (tokens, hidden), "streams": (tokens, 4, hidden), "norm_weight": (hidden,)}
    narrow = {"post": (tokens, 4), "comb": (tokens, 4, 4), "fn": (24, 4 * hidden), "scale": (3,), "base": (24,)}
    found = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in wide.items()}
    found |= {name: torch.zeros(shape) for name, shape in narrow.items()}
    order = ("x", "streams", "post", "comb", "fn", "scale", "base", "norm_weight")
    return {name: found[name] for name in order}


@case
def hyper_connections_have_fakes_and_refuse_what_does_not_fit() -> dict[str, Any]:
    """Without its kernel, which needs a GPU: shapes as tracing sees them, and the checks of every argument."""
    from blackwell_kernels import mhc, ops  # noqa: F401, PLC0415

    given = hyper_connection_inputs()
    on_meta = [tensor.to("meta") for tensor in given.values()]
    made = torch.ops.blackwell_kernels.all_reduce_mhc(*on_meta, 1e-6, 1e-6, 1e-6, 20, 1)
    names = ("streams", "post", "comb", "x")
    assert [(one.shape, one.dtype) for one in made] == [
        (given[name].shape, given[name].dtype) for name in names
    ]
    alone = torch.ops.blackwell_kernels.all_reduce_mhc_post(*on_meta[:4], 1)
    assert (alone.shape, alone.dtype) == (given["streams"].shape, torch.bfloat16)
    assert [mhc.slices_of(hidden) for hidden in (4096, 5120, 7168, 8192, 1280)] == [8, 5, 7, 8, 5]
    group: Any = object.__new__(mhc.MhcGroup)
    group.hidden, group.slices, group.max_tokens, group.device = 512, 2, 2, torch.device("cpu")
    group._slab = group
    long = {name: torch.cat([tensor, tensor]) for name, tensor in given.items()}
    tries = [(name, {**given, name: long[name]}) for name in given]
    tries += [(name, {**given, name: given[name].half()}) for name in given]
    tries += [("streams", {**given, "streams": given["streams"].transpose(1, 2).contiguous().transpose(1, 2)})]
    for name, tensors in tries:
        x, streams, post, comb, *mixing = tensors.values()
        said = ""
        try:
            group.launch_mhc(x, streams, post, comb, (*mixing, 1e-6, 1e-6, 1e-6, 20))
        except ValueError as error:
            said = str(error)
        assert said.startswith(f"{name}: "), (name, said)
    return {"compared": len(tries)}


@case
def hyper_connections_are_what_sglang_computes() -> dict[str, Any]:
    """The formulas that kernels are held against, and SGLang's own in torch, on the same inputs."""
    import mhc_checks  # noqa: PLC0415

    spec = importlib.util.find_spec("sglang")
    assert spec
    assert spec.origin
    text = (Path(spec.origin).parent / "kernels" / "ops" / "layernorm" / "mhc.py").read_text()
    wanted = {"_mhc_pre_torch", "_mhc_post_torch"}
    found = [node for node in ast.parse(text).body if getattr(node, "name", "") in wanted]
    theirs: dict[str, Any] = {"torch": torch, "Tuple": tuple}
    exec(compile(ast.Module(found, []), "mhc.py", "exec"), theirs)  # noqa: S102  # SGLang's own text
    random = torch.Generator().manual_seed(24)
    x, streams = (torch.randn(*shape, 512, generator=random).double() for shape in ((3,), (3, 4)))
    post, comb = torch.rand(3, 4, 1, generator=random), torch.rand(3, 4, 4, generator=random)
    fn, scale, base = (torch.randn(*shape, generator=random) for shape in ((24, 2048), (3,), (24,)))
    x, streams = x.to(torch.bfloat16), streams.to(torch.bfloat16)
    seen = theirs["_mhc_post_torch"](x, streams, post, comb).double()
    exact, size = mhc_checks.expected_streams([x], [streams, post[..., 0], comb])
    assert bool(((seen - exact).abs() <= 2.0**-8 * size + 1e-30).all())
    mixing = (fn, scale, base, None, 1e-6, 1e-6, 1e-6, 20)
    their_post, their_comb, their_input = theirs["_mhc_pre_torch"](
        streams, fn, scale, base, 1e-6, 1e-6, 1e-6, 2.0, 20
    )
    our_post, our_comb, our_input, size = mhc_checks.expected_next(streams, mixing)
    assert bool(((their_post[..., 0] - our_post).abs() <= 1e-4).all())
    assert bool(((their_comb - our_comb).abs() <= 1e-4).all())
    assert bool(((their_input.double() - our_input).abs() <= 2.0**-8 * size + 1e-30).all())
    return {"compared": exact.numel() + our_comb.numel() + our_input.numel()}


@case
def wrong_arguments_are_refused() -> dict[str, Any]:
    """Each with the argument's name."""
    from blackwell_kernels import Scope, paged_mqa_logits, portable, sparse_mla_decode  # noqa: PLC0415

    q, cache, weights, counts, table = indexer_inputs([[70]], 2, 32, 21)
    scope, query = window(4, [[0, 5]], None, 22), queries(1, 2, 23)

    def attend(one: Any = scope, more: Any = None, sinks: Any = None, query: torch.Tensor = query) -> Any:
        return sparse_mla_decode(query, one, more, sinks=sinks, softmax_scale=1.0)

    half = Scope(scope.cache, None, None, 4)
    tries: list[tuple[str, Callable[[], Any]]] = [
        ("q:", lambda: paged_mqa_logits(q.float(), cache, weights, counts, table, 128)),
        ("q:", lambda: paged_mqa_logits(q[:, :, :16], cache, weights, counts, table, 128)),
        ("cache:", lambda: paged_mqa_logits(q, cache[:, :32], weights, counts, table, 128)),
        ("weights:", lambda: paged_mqa_logits(q, cache, weights.half(), counts, table, 128)),
        ("lengths:", lambda: paged_mqa_logits(q, cache, weights, counts.long(), table, 128)),
        ("page_table:", lambda: paged_mqa_logits(q, cache, weights, counts, table.long(), 128)),
        ("max_length:", lambda: paged_mqa_logits(q, cache, weights, counts, table, 129)),
        ("one device", lambda: portable._device_of(q, counts.to("meta"))),
        ("q:", lambda: attend(query=query.float())),
        ("cache:", lambda: attend(scope._replace(cache=scope.cache[:, :2000]))),
        ("cache:", lambda: attend(scope._replace(cache=torch.zeros(4, 2344, dtype=torch.uint8)))),
        ("indices:", lambda: attend(scope._replace(indices=scope.indices.long()))),
        ("indices:", lambda: attend(scope._replace(indices=scope.indices[:, :0]))),
        ("more_lengths:", lambda: attend(more=scope._replace(lengths=torch.zeros(2, dtype=torch.int32)))),
        ("page_size:", lambda: attend(scope._replace(page_size=0))),
        ("sinks:", lambda: attend(sinks=torch.zeros(3))),
        ("belong together", lambda: attend(more=half)),
    ]
    for name, attempt in tries:
        said = ""
        try:
            attempt()
        except ValueError as error:
            said = str(error)
        assert name in said, (name, said)
    return {"compared": len(tries)}


def spoil(package: Path) -> Path:
    """A copy of the package whose running softmax forgets to shrink what it has summed."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(package / "blackwell_kernels", folder / "blackwell_kernels")
    path = folder / "blackwell_kernels" / "triton_kernels.py"
    text = path.read_text()
    assert text.count("acc=sums * shrink[:, None]") == 1
    path.write_text(text.replace("acc=sums * shrink[:, None]", "acc=sums"))
    return folder


def main() -> int:
    """Run all cases, say how each went."""
    package = Path(sys.argv[1])
    sys.path[:0] = [str(spoil(package) if "--wrong" in sys.argv else package), sys.argv[2]]
    widen_dots()
    for name, run in CASES.items():
        try:
            outcome = {"name": name, "wrong": "", **run()}
        except AssertionError as error:
            outcome = {"name": name, "wrong": str(error) or "an assertion failed"}
        print("RESULT " + json.dumps(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

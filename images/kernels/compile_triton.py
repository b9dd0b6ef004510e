"""Compile the Triton kernels for a GPU that is not here: needs Triton with its assembler, no GPU and no driver.

Usage: compile_triton.py --out DIR [--targets 120,90]

Leaves `<target>/<kernel>.cubin` for each kernel, and `kernels.json` with what a cubin does not say: the dynamic
shared memory that a launch asks for. Constants and warps are those that the package launches with. A kernel
that asks for more shared memory than SM120 has is refused, for every target: Triton compiles it all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
TARGETS = (120, 90)
#: Bytes that a block may have on SM120: 100 KB a multiprocessor, of which 1 KB is the system's.
SHARED_LIMIT = 101_376
#: What a launch finds out by itself: a pointer, or a whole number, is a multiple of 16.
_ALIGNED = ["tt.divisibility", 16]


class Variant(NamedTuple):
    """A kernel as it is launched.

    Attributes:
        name: Of the files.
        kernel: The `triton.jit` function.
        types: By argument, Triton's name of its type; `*` is a pointer.
        odd: Arguments of whole numbers that need not be multiples of 16.
        constants: Compile-time arguments.
        warps: A program.
        stages: Of the pipelined loops.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    odd: frozenset[str]
    constants: dict[str, object]
    warps: int
    stages: int


def _types(words: str) -> dict[str, str]:
    """`name:type` words as a mapping."""
    return dict(word.split(":") for word in words.split())


_LOGITS = _types(
    "q:*fp8e4nv keys:*fp8e4nv scales:*fp32 weights:*fp32 lengths:*i32 page_table:*i32 out:*fp32"
    " table_stride:i32 out_stride:i32 columns:i32 parts:i32"
)
_CACHE = _types("values:*fp8e4nv ropes:*bf16 scales:*u8 indices:*i32 lengths:*i32")
_PARTS = _types("part_sums:*fp32 part_peaks:*fp32 part_totals:*fp32")
_ATTENTION = (
    {"q": "*bf16", **_CACHE}
    | {f"more_{name}": kind for name, kind in _CACHE.items()}
    | _PARTS
    | _types(
        "heads:i32 parts:i32 width:i32 page_stride:i32 more_width:i32 more_page_stride:i32 scale_log2:fp32"
    )
)
_COMBINE = _PARTS | _types("sinks:*fp32 out:*bf16 lse:*fp32 heads:i32 parts:i32")


def variants() -> list[Variant]:
    """Every kernel with the constants of DeepSeek-V4, the smaller indexer and one scope alone."""
    from blackwell_kernels import indexer, sparse_mla, triton_kernels  # noqa: PLC0415  # after the path is set

    sizes = {"WIDTH": sparse_mla.WIDTH, "GROUP": sparse_mla.GROUP, "GROUPS": sparse_mla.GROUPS}
    tile = {"HEADS": sparse_mla.BLOCK_HEADS, "TOKENS": sparse_mla.BLOCK_TOKENS, **sizes}
    pages = {"HAS_LENGTHS": True, "HAS_MORE_LENGTHS": True, "PAGE": 256, "MORE_PAGE": 64}
    found = [
        Variant(
            f"paged_mqa_logits_{heads}",
            triton_kernels.paged_mqa_logits_kernel,
            _LOGITS,
            frozenset({"table_stride", "parts"}),
            {"NEXT": 1, "HEADS": heads, "WIDTH": indexer.WIDTH, "PAGE": indexer.PAGE},
            indexer.WARPS,
            indexer.STAGES,
        )
        for heads in indexer.HEADS
    ]
    found += [
        Variant(
            f"sparse_mla_part_{scopes}",
            triton_kernels.sparse_mla_part_kernel,
            _ATTENTION,
            frozenset({"parts", "heads"}),
            {"HAS_MORE": scopes > 1, **pages, **tile},
            sparse_mla.WARPS,
            sparse_mla.STAGES,
        )
        for scopes in (1, 2)
    ]
    found.append(
        Variant(
            "sparse_mla_combine",
            triton_kernels.sparse_mla_combine_kernel,
            _COMBINE,
            frozenset({"parts", "heads"}),
            {"HAS_SINKS": True, "PARTS": sparse_mla.MAX_PARTS, "WIDTH": sparse_mla.WIDTH},
            sparse_mla.COMBINE_WARPS,
            sparse_mla.COMBINE_STAGES,
        )
    )
    return found


def compile_for(variant: Variant, capability: int) -> Any:
    """What `triton.compile` makes of a kernel for a capability, e.g. 120."""
    import triton  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = variant.kernel.arg_names
    missing = set(names) ^ (variant.types.keys() | variant.constants.keys())
    if missing:
        raise SystemExit(f"{variant.name}: arguments without a type, or types without an argument: {missing}")
    aligned = [
        name
        for name, kind in variant.types.items()
        if kind[0] == "*" or (kind == "i32" and name not in variant.odd)
    ]
    source = ASTSource(
        variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(names.index(name),): [_ALIGNED] for name in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def too_large(record: list[dict[str, Any]]) -> list[str]:
    """The launches that SM120 would refuse, in words."""
    return [
        f"{one['kernel']} for {one['target']} asks for {one['shared']} bytes of shared memory, "
        f"SM120 has {SHARED_LIMIT}"
        for one in record
        if one["shared"] > SHARED_LIMIT
    ]


def main() -> int:
    """Entry of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--targets", default=",".join(map(str, TARGETS)))
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    record = []
    for target in map(int, arguments.targets.split(",")):
        folder = arguments.out / str(target)
        folder.mkdir(parents=True, exist_ok=True)
        for variant in variants():
            made = compile_for(variant, target)
            (folder / f"{variant.name}.cubin").write_bytes(made.asm["cubin"])
            record.append({"target": target, "kernel": variant.name, "shared": made.metadata.shared})
            print(f"{variant.name} for {target}: {made.metadata.shared} bytes of shared memory", flush=True)
    (arguments.out / "kernels.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    for line in (refused := too_large(record)):
        print(line, file=sys.stderr)
    return 1 if refused or not record else 0


if __name__ == "__main__":
    sys.exit(main())

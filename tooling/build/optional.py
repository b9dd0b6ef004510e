"""Compile the optional kernel modules of a stack, each in its own build step, without making an image."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tooling import console
from tooling.base.bootstrap import ensure_base, read_base_lock
from tooling.build.builder import ca_bundle, ingredients_of, run_build
from tooling.build.context import gather, labels_of, render_dockerfile
from tooling.build.job import open_job
from tooling.build.kernels import export_kernels, import_kernels, judge_module, kernel_inputs, read_kernels_of
from tooling.build.layers import assign_layers
from tooling.build.record import KernelReceipt
from tooling.census.kernels import Kernel
from tooling.errors import CheckError, InputError
from tooling.gates.records import Check, Verdict, worst
from tooling.lock.resolve import read_lock
from tooling.records import Record
from tooling.stack import load_stack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.stack.model import Stack


class CompiledModule(Record):
    """One module that was compiled, or taken from the kernel cache, and looked at.

    Attributes:
        receipt: What the build step wrote of it.
        input_sha256: Hash of all that it is made of: its name in the kernel cache.
        from_cache: Whether an earlier build of equal inputs had made it.
        seconds: Duration of the build with all its steps.
        kernels: Every kernel in it.
        checks: What was asked of them.
    """

    receipt: KernelReceipt
    input_sha256: str
    from_cache: bool
    seconds: float
    kernels: tuple[Kernel, ...]
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks."""
        return worst(check.verdict for check in self.checks)


def with_module(stack: Stack, module: str) -> Stack:
    """A stack whose only kernel module is an optional one of its own."""
    if stack.kernels is None:
        raise InputError(f"stack {stack.name} compiles no kernels", fix="add `kernels` to the stack")
    kernels = stack.kernels.model_copy(update={"modules": (module,), "optional": (), "native": {}})
    return stack.model_copy(update={"kernels": kernels, "local_packages": ()})


def chosen(stack: Stack, modules: Sequence[str]) -> tuple[str, ...]:
    """The optional modules that were asked for; all of them when none is named.

    Raises:
        InputError: The stack has none, or not one of that name.
    """
    optional = stack.kernels.optional if stack.kernels else ()
    if not optional:
        raise InputError(
            f"stack {stack.name} has no optional kernel modules",
            fix="list them under kernels.optional of the stack",
        )
    unknown = sorted(set(modules) - set(optional))
    if unknown:
        raise InputError(
            f"not optional kernel modules of {stack.name}: {', '.join(unknown)}",
            fix=f"name one of {', '.join(optional)}",
        )
    return tuple(modules) or optional


#: Kernels that a refusal names.
_NAMED = 8


def compile_optional(
    name: str, modules: Sequence[str], root: Path, output: Path | None = None
) -> tuple[CompiledModule, ...]:
    """Compile optional modules, look at every kernel, and keep those that can do their work.

    Args:
        name: Name of the stack.
        modules: Which ones; all when empty.
        root: The checkout.
        output: Folder for logs; by default `build/` in the checkout.

    Raises:
        ToolkitError: A module does not compile; the stack has none.
        CheckError: A kernel is empty, spills, or cannot run on the target. Nothing of that module is kept.
    """
    file = load_stack(name, root)
    directory = (output or root / "build") / name
    directory.mkdir(parents=True, exist_ok=True)
    return tuple(
        _compile(with_module(file.stack, module), module, root, directory)
        for module in chosen(file.stack, modules)
    )


def _compile(stack: Stack, module: str, root: Path, directory: Path) -> CompiledModule:
    if stack.kernels is None:
        raise InputError(f"stack {stack.name} compiles no kernels")
    file, images = load_stack(stack.name, root), root / "images"
    lock = read_lock(file, root)
    added = ingredients_of(file, lock, images)
    with open_job(stack, directory, target=f"kernel-{module}") as job, ExitStack() as made:
        client = job.client
        base = ensure_base(stack, read_base_lock(file), client, console.say)
        inputs = kernel_inputs(stack, lock, base, added.plans, images)
        kept = import_kernels(inputs, job.context)
        layers = assign_layers(stack, lock)
        gather(stack, lock, layers, added, images=images, context=job.context, epoch=base.epoch)
        labels = labels_of(stack, lock, base)
        dockerfile = render_dockerfile(stack, base, added, images, labels, ca=ca_bundle() is not None)
        job.dockerfile.write_text(dockerfile, encoding="utf-8")
        image_id = run_build(job)
        # The layers stay in the builder's cache; the image itself is of no use.
        made.callback(client.images.remove, image_id, force=True)
        compiled = read_kernels_of(client, image_id, stack.kernels, "/out")
        receipt, library = compiled[module]
        kernels, checks = judge_module(module, library, stack.kernels)
        result = CompiledModule(
            receipt=receipt,
            input_sha256=inputs[module],
            from_cache=module in kept,
            seconds=round(sum(job.durations_s.values()), 1),
            kernels=kernels,
            checks=checks,
        )
        if result.verdict is not Verdict.PASS:
            raise CheckError(
                f"kernels of {module} cannot do their work",
                where=f"stack {stack.name}, kernels.optional",
                details=[
                    line
                    for check in checks
                    if check.verdict is not Verdict.PASS
                    for line in (check.seen, *check.details[:_NAMED])
                ],
                fix="correct the sources or patches, or leave the module out",
            )
        for path in export_kernels(compiled, inputs):
            console.say(f"kernels: kept {path}")
    return result

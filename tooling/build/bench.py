"""Time the builder against the least that could be done: one step that installs the same lock."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uv

from tooling import console, runner
from tooling.base.bootstrap import ensure_base, read_base_lock
from tooling.build.builder import build, ca_bundle
from tooling.dockerhost import ensure_engine, find_build_client
from tooling.errors import CommandError
from tooling.patches.series import Selection, Switch, load_series, switched
from tooling.records import Record
from tooling.stack import load_stack

if TYPE_CHECKING:
    from tooling.stack.model import Stack

_PLAIN = """\
FROM {base}
RUN --mount=type=bind,source=uv,target=/usr/local/bin/uv \\
    --mount=type=bind,source=lock.txt,target=/lock.txt \\
    --mount=type=secret,id=ca,target=/run/ca.pem \\
    export UV_CACHE_DIR=/opt/.cache UV_NO_CONFIG=1; [ ! -s /run/ca.pem ] || export SSL_CERT_FILE=/run/ca.pem; \\
    uv venv --quiet --python /usr/bin/python{python} /opt/stack && \\
    uv pip install --python /opt/stack/bin/python --require-hashes --no-deps -r /lock.txt && rm -r /opt/.cache
"""


class BuildBench(Record):
    """Seconds of one run on one machine.

    Attributes:
        stack: Which stack.
        plain_s: One BuildKit step with `uv pip install` of the lock.
        cold_s: Our build with every step run again, checks and selftest included, the base already there.
        rebuild_s: Our build after one changed argument.
        patch_s: Our build after one patch was switched; None for a stack without two patches of one series.
        plain_bytes: Size of the plain image.
        image_bytes: Size of ours.
    """

    stack: str
    plain_s: float
    cold_s: float
    rebuild_s: float
    patch_s: float | None
    plain_bytes: int
    image_bytes: int


def run_bench(name: str, root: Path) -> BuildBench:
    """Build three times and time it; needs the disk for two images. The plain image is removed again."""
    file = load_stack(name, root)
    client = ensure_engine(console.say)
    builder = find_build_client()
    base = ensure_base(file.stack, read_base_lock(file), client, console.say)
    with tempfile.TemporaryDirectory(prefix="blackwell-stacks-bench-") as directory:
        work = Path(directory)
        context = work / "context"
        context.mkdir()
        shutil.copy2(uv.find_uv_bin(), context / "uv")
        shutil.copy2(file.lock_path, context / "lock.txt")
        text = _PLAIN.format(base=base.reference, python=file.stack.platform.python)
        (context / "Dockerfile").write_text(text, encoding="utf-8")
        argv = [*builder.build_argv, "--no-cache", "--iidfile", str(work / "iid"), str(context)]
        if ca := ca_bundle():
            argv += ["--secret", f"id=ca,src={ca}"]
        console.say("plain install of the same lock in one step ...")
        clock = time.monotonic()
        lines: list[str] = []
        if runner.stream(argv, lines.append, env=builder.environment):
            raise CommandError("the plain build failed", details=lines[-15:])
        plain_s = time.monotonic() - clock
        plain_id = (work / "iid").read_text(encoding="utf-8").strip()
        plain_bytes = client.images.get(plain_id).attrs["Size"]
        client.images.remove(plain_id)

        clock = time.monotonic()
        cold = build(name, root, work / "records", no_cache=True)
        cold_s = time.monotonic() - clock

        changed = work / "checkout"
        for part in ("stacks", "images"):
            shutil.copytree(root / part, changed / part)
        path = changed / "stacks" / f"{name}.yaml"
        edited = path.read_text(encoding="utf-8").replace(
            "  arguments:\n", "  arguments:\n    log-level: info\n", 1
        )
        path.write_text(edited, encoding="utf-8")
        clock = time.monotonic()
        rebuilt = build(name, changed, work / "records")
        rebuild_s = time.monotonic() - clock
        if rebuilt.image_id == cold.image_id:
            raise CommandError("the changed argument did not change the image", str(path))
        client.images.remove(rebuilt.image_id, force=True)
        patch_s = None
        if switch := switch_off_one(edited, file.stack, root / "images"):
            path.write_text(switch, encoding="utf-8")
            clock = time.monotonic()
            switched_off = build(name, changed, work / "records")
            patch_s = time.monotonic() - clock
            client.images.remove(switched_off.image_id, force=True)
    return BuildBench(
        stack=name,
        plain_s=plain_s,
        cold_s=cold_s,
        rebuild_s=rebuild_s,
        patch_s=patch_s,
        plain_bytes=plain_bytes,
        image_bytes=cold.size_bytes,
    )


def switch_off_one(text: str, stack: Stack, images: Path) -> str | None:
    """The text of a stack with one more patch switched off, None where no series would keep another one."""
    for given in stack.patches:
        if given.disable:
            continue
        series = load_series(given.series, images / "patches")
        switches = switched(series, Selection.model_validate(given.model_dump()))
        used = [name for name, switch in switches.items() if switch is Switch.ON]
        line = f"  - series: {given.series}\n"
        if len(used) > 1 and line in text:
            return text.replace(line, f'{line}    disable: ["{used[-1][:4]}"]\n')
    return None

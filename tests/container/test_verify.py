"""The whole chain on real engines: the cpu stack, broken models, and the released GPU image on a CPU."""

import json
from pathlib import Path

import pytest

from tests.models.damage import damage_gguf
from tooling.boot import BootError, Reason
from tooling.build import build
from tooling.errors import InputError
from tooling.gates.records import Verdict, worst
from tooling.verify import VerifyRecord, verify_attached, verify_stack
from tooling.verify.boots import CPU_PLAN

pytestmark = pytest.mark.container
ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "stacks" / "models" / "tiny"


@pytest.fixture(scope="session")
def cpu_image() -> str:
    """The image of the cpu stack, built by the product itself."""
    return build("cpu", ROOT).image_id


def _gate(record: VerifyRecord, name: str) -> Verdict:
    return next(gate.verdict for gate in record.gates if gate.gate == name)


def test_the_cpu_stack_goes_from_image_to_verdict(cpu_image, tmp_path):
    record = verify_stack("cpu", ROOT, output=tmp_path)
    assert {gate.gate for gate in record.gates} == {"arguments", "correctness", "throughput", "log-triage"}
    for gate in ("arguments", "correctness", "log-triage"):
        assert _gate(record, gate) is Verdict.PASS, record.model_dump_json(indent=1)
    # Without a baseline it cannot pass, and on a noisy host it may not even be measured; it must not fail.
    assert _gate(record, "throughput") in {Verdict.NO_BASELINE, Verdict.INCONCLUSIVE}
    assert record.boots[0].image_id == cpu_image
    assert record.verdict is worst(gate.verdict for gate in record.gates)
    assert json.loads((tmp_path / "verify.json").read_text())["device"] == "cpu"
    assert record.model == {"tiny.gguf": record.model["tiny.gguf"]}


@pytest.mark.long
def test_two_images_are_booted_by_turns_and_compared(cpu_image, tmp_path):
    """Candidate and baseline are the same image here: whatever the host's noise, that must not fail."""
    record = verify_stack("cpu", ROOT, boots=1, against=cpu_image, output=tmp_path)
    assert len(record.boots) == len(record.baseline_boots) == 1
    assert record.baseline_boots[0].started_at < record.boots[0].started_at
    correctness = next(gate for gate in record.gates if gate.gate == "correctness")
    assert any(check.name == "paired-with-baseline" for check in correctness.checks)
    # One boot a side is too few to pass, and too few to fail.
    assert _gate(record, "throughput") is Verdict.INCONCLUSIVE


def test_an_image_to_compare_with_that_is_not_here_is_refused_before_any_boot(tmp_path):
    with pytest.raises(InputError, match="not on this host"):
        verify_stack("cpu", ROOT, against="no/such:image", output=tmp_path / "evidence")
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize(
    "kind",
    # The others are held against the gate itself in tests/engine.
    ["zero-v", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("swapped-qk", "int2"))],
)
@pytest.mark.usefixtures("cpu_image")
def test_a_damaged_model_fails_by_its_answers(tmp_path, kind):
    damage_gguf(TINY / "tiny.gguf", kind, tmp_path / "tiny.gguf")
    record = verify_stack("cpu", ROOT, model=tmp_path / "tiny.gguf", output=tmp_path / "evidence")
    assert _gate(record, "correctness") is Verdict.FAIL
    assert record.verdict is Verdict.FAIL


@pytest.mark.usefixtures("cpu_image")
def test_a_nan_model_fails(tmp_path):
    damage_gguf(TINY / "tiny.gguf", "nan", tmp_path / "tiny.gguf")
    seen: Reason | Verdict
    try:
        record = verify_stack("cpu", ROOT, model=tmp_path / "tiny.gguf", output=tmp_path / "evidence")
    except BootError as error:
        # Often all its answers are empty, and it does not even get ready.
        seen = error.reason
    else:
        seen = _gate(record, "correctness")
    assert seen in {Reason.EMPTY_ANSWER, Verdict.FAIL}


@pytest.mark.usefixtures("cpu_image")
def test_an_argument_that_the_engine_does_not_know_fails_before_the_boot(tmp_path):
    with pytest.raises(BootError, match="exit"):
        verify_stack("cpu", ROOT, extra=["--no-such-argument=1"], output=tmp_path)


def test_an_engine_of_somebody_else_is_verified_and_left_alone(engine, cpu_image, tmp_path):
    command = ["serve", "--model-path", "/models/tiny.gguf"]
    container = engine.containers.run(
        cpu_image,
        command,
        detach=True,
        ports={"30000/tcp": ("127.0.0.1", None)},
        volumes={str(TINY): {"bind": "/models", "mode": "ro"}},
    )
    try:
        container.reload()
        port = container.attrs["NetworkSettings"]["Ports"]["30000/tcp"][0]["HostPort"]
        record = verify_attached(
            f"http://127.0.0.1:{port}",
            ROOT,
            container=container.name,
            engine="xllamacpp",
            profile="tiny",
            plan=CPU_PLAN,
            output=tmp_path,
        )
        assert _gate(record, "correctness") is Verdict.PASS
        assert not record.boots[0].owned
        container.reload()
        assert container.status == "running"
    finally:
        container.remove(force=True)


@pytest.mark.usefixtures("engine")
def test_the_gpu_image_boots_on_a_cpu_and_answers(tmp_path):
    """The very image that would be released, only `sgl_kernel` stubbed: imports, arguments, routes, logs."""
    record = verify_stack("cu130", ROOT, device="cpu", output=tmp_path)
    assert record.device == "cpu"
    assert _gate(record, "arguments") is Verdict.PASS
    assert _gate(record, "correctness") is Verdict.PASS, record.model_dump_json(indent=1)
    assert _gate(record, "log-triage") is Verdict.PASS, record.model_dump_json(indent=1)
    assert _gate(record, "engine-kits") is Verdict.PASS, record.model_dump_json(indent=1)
    assert any("nothing is qualified for a GPU" in line for line in record.limitations)

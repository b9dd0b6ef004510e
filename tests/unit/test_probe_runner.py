"""The in-image probe where there is no GPU, and its runner with children that hang, crash and lie."""

import ast
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import probe
import probe_collector
import probe_runner
import pytest
from probe_runner import Child, worst_of_ranks

RUNTIME = Path(probe.__file__).parent


def follow(script: str, limit_s: float = 5.0) -> list[dict[str, object]]:
    child = Child([sys.executable, "-c", script], {}, {"ladder": "memory", "device": 0})
    child.follow(limit_s)
    assert child.process.poll() is not None
    return child.lines


BEGIN = 'print(\'{"kind": "begin", "rung": "copy", "size": 4096}\', flush=True)\n'
GOOD = 'print(\'{"kind": "rung", "rung": "copy", "outcome": "ok"}\', flush=True)\n'


def test_a_hanging_rung_is_killed_named_and_the_earlier_ones_are_kept():
    lines = follow(f"{GOOD}{BEGIN}import time; time.sleep(60)", 0.5)
    assert [line["outcome"] for line in lines] == ["ok", "hang"]
    assert (lines[1]["rung"], lines[1]["size"], lines[1]["log"]) == ("copy", 4096, "no answer within 0.5 s")


def test_a_crash_is_named_by_its_signal():
    (line,) = follow(f"{BEGIN}import os; os.kill(os.getpid(), 11)")
    assert line["outcome"] == "crash"
    assert "SIGSEGV" in str(line["log"])


def test_an_exit_code_without_a_reported_error_is_a_crash_with_the_last_words():
    (line,) = follow(f"{BEGIN}raise SystemExit('out of luck')")
    assert line["outcome"] == "crash"
    assert "out of luck" in str(line["log"])


def test_chatter_between_the_lines_is_passed_over():
    assert len(follow(f"print('[]'); print('NCCL INFO'); print('{{'); {GOOD}")) == 1


def test_the_worst_rank_speaks_for_all():
    good = {"kind": "rung", "rung": "all-reduce", "size": 8, "outcome": "ok", "rank": 0}
    bad = {**good, "outcome": "wrong-data", "rank": 1}
    assert worst_of_ranks([[good], [bad]])[0]["rank"] == 1
    assert worst_of_ranks([[bad], [good]])[0]["outcome"] == "wrong-data"


def test_children_live_without_multicast_unless_asked():
    assert probe_runner.Runner(1, allow_multicast=False).environment == probe_runner.NO_MULTICAST
    assert probe_runner.Runner(1, allow_multicast=True).environment == {}


def test_multicast_objects_are_made_in_one_place_behind_the_flag():
    calls = [path.name for path in RUNTIME.glob("*.py") if '"cuMulticastCreate"' in path.read_text()]
    assert calls == ["probe_child.py"]
    assert (
        'if create:\n            handle = driver.call("cuMulticastCreate"'
        in (RUNTIME / "probe_child.py").read_text()
    )
    assert probe.arguments([]).multicast_create is False


def test_without_a_gpu_it_says_so_with_its_own_exit_code():
    done = subprocess.run(
        [sys.executable, str(RUNTIME / "probe.py"), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert (document["devices"], document["rungs"][0]["outcome"]) == ([], "unavailable")
    assert "no GPU can be used here" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--limit", "0"], ["--workspace-mib", "0"], ["--nonsense"]])
def test_wrong_arguments_end_with_2(words: list[str]):
    with pytest.raises(SystemExit) as caught:
        probe.arguments(words)
    assert caught.value.code == 2


def test_refused_fabric_handles_are_no_fault_and_everything_else_is():
    fabric = {"handle": "fabric", "outcome": "error", "code": 800}
    assert not probe.is_bad(fabric)
    assert probe.is_bad({**fabric, "code": 2})
    assert probe.is_bad({**fabric, "handle": "posix_fd"})
    assert probe.is_bad({"outcome": "hang"})


def test_the_collector_is_one_file_for_python_3_8():
    source = (RUNTIME / "probe_collector.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        name.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert imported <= set(sys.stdlib_module_names)


def test_the_collector_keeps_secrets_and_serials_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\necho '<nvidia_smi_log><serial>123</serial><uuid>GPU-1</uuid></nvidia_smi_log>'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/sbin")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    text = json.dumps(probe_collector.collect()[0])
    assert "hf_secret" not in text
    assert "GPU-1" not in text
    assert "<serial>" not in text
    assert '"NCCL_DEBUG": "INFO"' in text


def test_a_program_that_hangs_does_not_hang_the_collector():
    assert probe_collector.program("sleep", "30", limit_s=0.2) == {
        "error": "did not end within 0.2 s",
        "hang": True,
    }
    assert "No such file" in probe_collector.program("no-such-program")["error"]


def test_acs_is_found_in_the_extended_configuration_space(tmp_path: Path):
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x146:0x148] = (0x1D).to_bytes(2, "little")
    file = tmp_path / "config"
    file.write_bytes(config)
    assert probe_collector.acs_control(str(file)) == 0x1D
    file.write_bytes(config[:64])
    assert probe_collector.acs_control(str(file)) is None
    config[0x140:0x144] = (0x0003 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")  # a list that bites its tail
    file.write_bytes(config)
    assert probe_collector.acs_control(str(file)) == -1


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_rounds_hold_every_pair_once_and_no_gpu_twice(count: int):
    rounds = probe_runner.rounds_of(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({gpu for pair in pairs for gpu in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == count - 1 + count % 2


def test_only_pairs_that_push_both_ways_without_a_fault_are_timed():
    def rungs(device: int, peer: int, outcome: str = "ok") -> list[dict[str, object]]:
        facts = {"ladder": "pair", "device": device, "peer": peer, "outcome": outcome}
        return [{**facts, "rung": name} for name in ("copy", "push")]

    good = [*rungs(0, 1), *rungs(1, 0)]
    half = rungs(0, 2)
    wrong = [*rungs(1, 2), *rungs(2, 1, "wrong-data")]
    assert probe.working_pairs([*good, *half, *wrong]) == [(0, 1)]

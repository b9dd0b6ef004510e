import json
import subprocess
import sys

import pytest


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tooling", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--url", "localhost:1"), "url"),
        (("--url", "http://127.0.0.1:1", "--concurrency", "1,x"), "no list of concurrencies"),
        (("--url", "http://127.0.0.1:1", "--concurrency", "8,1"), "ascend"),
        (("--url", "http://127.0.0.1:1", "--record-baseline"), "nowhere to put"),
        (("--url", "http://127.0.0.1:1"), "does not list its models"),
    ],
)
def test_bad_input_is_one_message_and_an_exit_code(arguments: tuple[str, ...], told: str):
    done = _command("throughput", "--json", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "InputError"

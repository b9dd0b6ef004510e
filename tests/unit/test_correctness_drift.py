import json
import math
from pathlib import Path

import pytest

from tooling.errors import InputError
from tooling.gates.correctness.client import Endpoint, Reply
from tooling.gates.correctness.datasets import read_dataset
from tooling.gates.correctness.drift import compare_logprobs
from tooling.gates.correctness.length import Fit
from tooling.gates.correctness.speculation import acceptance_length, parse_metrics
from tooling.gates.records import Verdict

DECODED = [-0.1 * i for i in range(10)]
POSITIONS = list(range(90, 100))


def test_equal_series_pass():
    assert compare_logprobs(POSITIONS, DECODED, DECODED, 0.02, 0.5).verdict is Verdict.PASS


def test_a_step_at_one_position_fails_although_the_median_is_zero():
    spoiled = [*DECODED[:7], DECODED[7] - 3, *DECODED[8:]]
    check = compare_logprobs(POSITIONS, DECODED, spoiled, 0.02, 0.5)
    assert check.verdict is Verdict.FAIL
    assert "position 97" in check.seen


def test_a_drift_everywhere_fails_and_so_does_a_nan():
    drifted = [n - 0.05 for n in DECODED]
    assert compare_logprobs(POSITIONS, DECODED, drifted, 0.02, 0.5).verdict is Verdict.FAIL
    assert compare_logprobs(POSITIONS, DECODED, [math.nan, *DECODED[1:]], 0.02, 0.5).verdict is Verdict.FAIL
    assert compare_logprobs([], [], [], 0.02, 0.5).verdict is Verdict.INCONCLUSIVE


VLLM = """# HELP vllm:spec_decode_num_drafts_total drafts
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
"""


def test_acceptance_length_of_the_interval_and_not_since_the_start():
    before = parse_metrics(VLLM)
    after = parse_metrics(VLLM.replace("100.0", "200.0").replace("150.0", "170.0"))
    assert acceptance_length(before, after, None, []) == pytest.approx(1.2)


def test_acceptance_length_of_the_other_engines():
    assert acceptance_length({}, parse_metrics('sglang:spec_accept_length{tp="0"} 2.5'), None, []) == 2.5
    assert acceptance_length({}, {}, {"internal_states": [{"avg_spec_accept_length": 3.1}]}, []) == 3.1
    timings = {"draft_n": 12, "draft_n_accepted": 6, "predicted_n": 12}
    assert acceptance_length({}, {}, None, [Reply("x", body={"timings": timings})]) == 2.0


def test_a_server_that_does_not_speculate_has_no_acceptance_length():
    assert acceptance_length({}, {}, {"internal_states": [{}]}, [Reply("x", body={"timings": {}})]) is None


def test_the_fit_of_filler_finds_the_number_of_words():
    fit = Fit()
    words = 0
    for _ in range(6):
        words = fit.words_for(129)
        fit.learn(words, 31 + round(words * 1.25))
    assert 31 + round(words * 1.25) in {128, 129, 130}


def test_an_url_is_an_url_with_or_without_v1():
    assert Endpoint("http://h:1/v1/").root == "http://h:1"
    with pytest.raises(InputError, match="not an http URL"):
        assert Endpoint("h:1").root
    with pytest.raises(InputError, match="credentials"):
        assert Endpoint("http://user:word@h:1").root
    assert "secret" not in repr(Endpoint("http://h:1", api_key="secret"))


def test_question_files_are_read_or_refused(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "1+1?", "answer": "#### 2"}) + "\n\n")
    assert read_dataset(path) == [("1+1?", "#### 2")]
    path.write_text('{"question": "1+1?"}\n')
    with pytest.raises(InputError, match=r"q\.jsonl:1"):
        read_dataset(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="empty"):
        read_dataset(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_dataset(tmp_path / "none.jsonl")

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tooling.errors import CheckError, InputError
from tooling.gates.throughput.counters import Counters, grown, known_engines, parse_metrics, read_counters
from tooling.gates.throughput.extension import (
    NoCompiledClientError,
    client_pin,
    install_command,
    verified,
    wanted_extension,
)
from tooling.gates.throughput.load import Load, compiled_config, fallback_config
from tooling.gates.throughput.pacing import Pace
from tooling.gates.throughput.plan import Endpoint, Route, ThroughputPlan, UsageStyle, distribution
from tooling.gates.throughput.prompts import make_prompts
from tooling.gates.throughput.raw import frozen_for_ms, parse_result, to_window
from tooling.gates.throughput.usage import compiled_client_reads, usage_style

SGLANG = """\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="org/m {x}",tp_rank="0"} 2048.0
sglang:prompt_tokens_total{model_name="m"} 1.2e+03 1764412345000
sglang:cached_tokens_total{cache_source="device",model_name="m"} 3
sglang:cached_tokens_total{cache_source="host",model_name="m"} 4
sglang:realtime_tokens_total{mode="decode"} 100
sglang:num_running_reqs{model_name="m"} 2
sglang:cache_hit_rate NaN
this line is broken
"""


def test_counters_of_one_engine_are_read_and_summed_over_labels():
    assert read_counters(parse_metrics(SGLANG)) == Counters(
        engine="sglang", generated=2048, prompt=1200, cached=7, running=2, progress=2148
    )


def test_an_engine_that_does_not_count_cached_prompts_gets_them_added():
    text = (
        "llamacpp:tokens_predicted_total 64\nllamacpp:prompt_tokens_total 90\n"
        "llamacpp:prompt_tokens_cached_total 10\n"
    )
    found = read_counters(parse_metrics(text))
    assert found is not None
    assert (found.engine, found.generated, found.prompt, found.cached) == ("llamacpp", 64, 100, 10)


def test_older_names_of_a_counter_are_known():
    text = (
        "vllm:generation_tokens_total 5\nvllm:gpu_prefix_cache_hits_total 3\n"
        "vllm:gpu_prefix_cache_queries_total 9\n"
    )
    found = read_counters(parse_metrics(text))
    assert found is not None
    assert (found.cached, found.prompt) == (3, 9)


@pytest.mark.parametrize("text", ["", "<html>404</html>", "python_gc_objects_collected_total 5\n"])
def test_metrics_of_nobody_we_know_are_none(text: str):
    assert read_counters(parse_metrics(text)) is None


def test_every_engine_says_whose_names_it_uses():
    for engine in known_engines():
        names = {*engine.generated, *engine.prompt, *engine.cached, *engine.running, *engine.progress}
        assert all(name.startswith(engine.prefix) for name in names)


def test_a_counter_that_fell_belongs_to_another_boot():
    assert grown(5, 12) == 7
    assert grown(None, 12) == 12
    assert grown(12, 5) is None
    assert grown(12, None) is None


def document(**changes: Any) -> dict[str, Any]:
    return {
        "duration": 2.0,
        "completed": 2,
        "output_lens": [4, 4],
        "input_lens": [10, 10],
        "ttfts": [0.2, 0.3],
        "itls": [[0.05, 0.05, 0.05], [0.05, 0.05, 0.05]],
        "generated_texts": ["a b c d", "a b c d"],
        "errors": ["", ""],
        "something_new": 1,
    } | changes


def window(**changes: Any):
    raw = parse_result(document(**changes))
    return to_window(raw, requested=2, output_tokens=4, concurrency=2, request_rate=None, freeze_ratio=10)


def test_a_result_becomes_a_window():
    found = window()
    assert (found.completed, found.output_tokens, found.tokens_per_s) == (2, 8, 4.0)
    assert found.tpot_ms.p50 == pytest.approx(50)
    assert found.ttft_ms.p50 == pytest.approx(250)
    assert (found.wrong_length, found.empty, found.errors) == (0, 0, ())


def test_failed_requests_count_in_no_time_and_are_told():
    found = window(
        completed=1,
        output_lens=[4, 0],
        ttfts=[0.2, 0.0],
        itls=[[0.05] * 3, []],
        errors=["", "503 queue is full"],
    )
    assert found.completed == 1
    assert found.ttft_ms.count == 1
    assert found.errors == ("1 x 503 queue is full",)


def test_tokens_without_text_are_empty_answers():
    assert window(generated_texts=["", "a b c d"]).empty == 1
    assert window(output_lens=[3, 4]).wrong_length == 1


def test_a_client_that_claims_more_than_it_shows_is_not_believed():
    assert window(completed=2, output_lens=[4, 0]).completed == 1


def test_coalesced_tokens_are_seen():
    found = window(itls=[[0.1], [0.1]])
    assert found.tokens_per_chunk == 2
    assert found.tpot_ms.p50 == pytest.approx(100 / 3)


def test_an_unreadable_result_is_one_clear_message():
    with pytest.raises(CheckError, match="not readable"):
        parse_result({"duration": 1})
    with pytest.raises(CheckError, match="different lengths"):
        parse_result(document(errors=[""]))


@pytest.mark.parametrize(
    ("gaps", "frozen"),
    [
        ([], 0),
        ([0.05] * 20, 0),
        ([0.05] * 10 + [3.0] + [0.05] * 10, 3000),
        ([0.05, 3.0], 3000),
        ([3.0], 3000),
        ([2.5] * 5, 0),  # a slow engine keeps its rhythm
        ([0.05] * 10 + [0.4], 0),
    ],
)
def test_a_freeze_is_a_gap_out_of_rhythm(gaps: list[float], frozen: float):
    assert frozen_for_ms(gaps, 10) == pytest.approx(frozen)


def test_percentiles_are_nearest_rank():
    found = distribution([float(value) for value in range(1, 101)])
    assert (found.p50, found.p90, found.p99, found.largest, found.count) == (50.5, 90, 99, 100, 100)
    assert distribution([]).count == 0


@given(st.integers(1, 60), st.integers(1, 30))
def test_prompts_share_no_beginning_and_never_repeat(count: int, words: int):
    first, second = make_prompts(count, words, "n/1"), make_prompts(count, words, "n/2")
    heads = {prompt.split()[0] for prompt in first + second}
    assert len(heads) == 2 * count
    assert {len(prompt.split()) for prompt in first} == {words}


def test_a_load_of_nothing_is_refused():
    with pytest.raises(InputError, match="no load"):
        make_prompts(0, 5, "n")


@pytest.mark.parametrize(
    "changes",
    [{"concurrencies": ()}, {"concurrencies": (8, 1)}, {"concurrencies": (1, 1)}, {"concurrencies": (0,)}],
)
def test_a_senseless_plan_is_refused(changes: dict[str, Any]):
    with pytest.raises(ValidationError):
        ThroughputPlan(**changes)


def test_an_endpoint_is_a_url():
    with pytest.raises(ValidationError):
        Endpoint(url="localhost:30000")


def _load(**changes: Any) -> Load:
    base: dict[str, Any] = {"url": "http://h:1", "model": "m", "route": Route.COMPLETIONS, "output_tokens": 8}
    return Load(**(base | {"prompts": ("a b", "c d")} | changes))


def test_the_compiled_clients_configuration_is_exact(tmp_path: Path):
    config = compiled_config(_load(concurrency=2), {"Authorization": "Bearer k"}, tmp_path)
    assert config["backend"] == "sglang-oai"
    assert (config["num_prompts"], config["max_concurrency"], config["request_rate"]) == (2, 2, "inf")
    assert config["warmup_requests"] == 0
    assert config["headers"] == ["Authorization: Bearer k"]
    written = json.loads(Path(config["dataset_path"]).read_text(encoding="utf-8"))
    assert [entry["conversations"][0]["value"] for entry in written] == ["a b", "c d"]


def test_an_open_loop_has_a_rate_and_no_limit(tmp_path: Path):
    config = compiled_config(_load(request_rate=7.5, route=Route.CHAT), {}, tmp_path)
    assert (config["backend"], config["request_rate"]) == ("sglang-oai-chat", "7.5")
    assert "max_concurrency" not in config
    assert fallback_config(_load(request_rate=7.5), {})["request_rate"] == 7.5


def test_the_pinned_client_exists_for_common_machines_and_not_for_others():
    pin = client_pin()
    assert wanted_extension(pin, "cp312", "x86_64", "Linux").sha256.startswith("a8be685e")
    for python, machine, system in (
        ("cp314", "x86_64", "Linux"),
        ("cp311", "riscv64", "Linux"),
        ("cp311", "x86_64", "Darwin"),
    ):
        with pytest.raises(NoCompiledClientError, match=python):
            wanted_extension(pin, python, machine, system)


def test_another_file_under_its_name_is_not_loaded(tmp_path: Path):
    extension = wanted_extension(client_pin(), "cp311", "x86_64", "Linux")
    impostor = tmp_path / extension.file
    impostor.write_bytes(b"\x7fELF")
    with pytest.raises(CheckError, match="not the pinned load client"):
        verified(impostor, extension)


TEXT = 'data: {"choices": [{"text": "a"}]}'
TEXT_WITH_USAGE = 'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}'
LAST_WITHOUT_TEXT = (
    'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 4}}'
)
LAST = 'data: {"choices": [], "usage": {"completion_tokens": 4}}'
CHAT = 'data: {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 1}}'


@pytest.mark.parametrize(
    ("lines", "style"),
    [
        ([TEXT_WITH_USAGE, LAST], UsageStyle.EACH),
        ([CHAT], UsageStyle.EACH),
        ([TEXT, TEXT, "", LAST, "data: [DONE]"], UsageStyle.FINAL),
        ([TEXT, LAST_WITHOUT_TEXT], UsageStyle.FINAL),
        ([TEXT, "data: [DONE]"], UsageStyle.NONE),
        ([], UsageStyle.NONE),
    ],
)
def test_how_a_server_tells_its_tokens(lines: list[str], style: UsageStyle):
    assert usage_style(lines) is style


def test_where_the_compiled_client_cannot_read_usage():
    unread = {
        (style, route) for style in UsageStyle for route in Route if not compiled_client_reads(style, route)
    }
    assert unread == {
        (UsageStyle.FINAL, Route.COMPLETIONS),
        (UsageStyle.NONE, Route.COMPLETIONS),
        (UsageStyle.NONE, Route.CHAT),
    }


def test_usage_is_asked_for_since_the_client_does_not(tmp_path: Path):
    body = json.loads(compiled_config(_load(concurrency=1), {}, tmp_path)["extra_request_body"])
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_only_the_pinned_wheel_is_installed(tmp_path: Path):
    argv = install_command(client_pin(), tmp_path)
    assert argv[1:5] == ["pip", "install", "--quiet", "--no-deps"]
    assert "--only-binary=:all:" in argv
    assert argv[-1] == f"{client_pin().distribution}=={client_pin().version}"


def test_the_mocks_arithmetic():
    pace = Pace(ttft_ms=200, itl_ms=50)
    assert pace.duration_s(64) == pytest.approx(3.35)
    assert pace.ideal_tokens_per_s(1024, 64) == pytest.approx(19563, abs=1)
    coalesced = Pace(ttft_ms=200, itl_ms=50, tokens_per_chunk=4)
    assert coalesced.duration_s(16) == pytest.approx(0.8)
    assert coalesced.duration_s(17) == pytest.approx(1.0)

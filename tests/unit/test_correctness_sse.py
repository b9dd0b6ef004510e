import json
import re
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from tooling.gates.correctness.answers import Answer
from tooling.gates.correctness.sse import SseDecoder, compare_stream, judge_extraction, read_stream
from tooling.gates.records import Verdict

CASES = Path(__file__).parents[1] / "cases"


def stream(*pieces: str, end: str = "\n\n", done: bool = True) -> bytes:
    events = [json.dumps({"choices": [{"delta": {"content": piece}}]}, ensure_ascii=False) for piece in pieces]
    return "".join(f"data: {event}{end}" for event in [*events, *(["[DONE]"] if done else [])]).encode()


def test_the_field_case_of_a_reader_that_stops_at_a_quote():
    lines = yaml.safe_load((CASES / "correctness-stream-reader-drops-text.yaml").read_text())["input"]["text"]
    event, pattern, extracted, *_ = lines.splitlines()
    raw = event.encode() + b"\n\n"
    naive = re.findall(pattern.removeprefix("reader pattern: "), event)
    assert naive  # the pattern does match, and loses text
    check = judge_extraction(raw, extracted.removeprefix("extracted: "), 'The "implied" warranty')
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "the reader is wrong" in check.seen
    assert read_stream(raw).answer.content == 'The "implied" warranty'


def test_a_reader_that_agrees_with_the_events_is_not_to_blame():
    raw = stream("The ", "warranty")
    assert judge_extraction(raw, "The warranty", "The warranty").verdict is Verdict.PASS
    assert judge_extraction(raw, "The warranty", "The whole warranty").verdict is Verdict.FAIL
    assert judge_extraction(b"data: {broken\n\n", "", None).verdict is Verdict.INCONCLUSIVE


@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=6),
    st.lists(st.integers(1, 400), max_size=12),
    st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]),
)
def test_no_cut_of_the_bytes_changes_the_text(pieces: list[str], cuts: list[int], end: str):
    # Lone surrogates cannot travel as UTF-8.
    pieces = [piece.encode("utf-8", "replace").decode() for piece in pieces]
    raw = stream(*pieces, end=end)
    decoder, events, start = SseDecoder(), [], 0
    for cut in [*sorted(c for c in cuts if c < len(raw)), len(raw)]:
        events += decoder.feed(raw[start:cut])
        start = cut
    events += decoder.feed(b"", final=True)
    assert "".join(json.loads(e)["choices"][0]["delta"]["content"] for e in events[:-1]) == "".join(pieces)
    assert events[-1] == "[DONE]"


def test_comments_fields_and_split_data_lines_are_read_as_the_standard_says():
    raw = (
        b': ping\nevent: message\nid: 1\ndata: {"choices":\ndata:  [{"delta":{"content":"a"}}]}\n\ndata:[DONE]'
    )
    streamed = read_stream(raw)
    assert streamed.answer.content == "a"
    assert streamed.done


def test_reasoning_tool_calls_and_usage_are_put_together():
    deltas = [
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    events = [{"choices": [{"delta": delta}]} for delta in deltas]
    tail = [
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 7}},
    ]
    streamed = read_stream("".join(f"data: {json.dumps(event)}\n\n" for event in events + tail).encode())
    assert streamed.answer.reasoning == "hm"
    assert streamed.answer.tool_calls[0].arguments == '{"a":1}'
    assert streamed.answer.completion_tokens == 7
    assert streamed.answer.finish == "tool_calls"
    assert streamed.done


WHOLE = Answer(content="The warranty")


def test_an_equal_stream_passes_and_a_shorter_one_fails():
    assert compare_stream(read_stream(stream("The ", "warranty")), WHOLE).verdict is Verdict.PASS
    check = compare_stream(read_stream(stream("The ")), WHOLE, WHOLE)
    assert check.verdict is Verdict.FAIL
    assert "8 characters are missing" in check.seen


def test_a_stream_of_a_server_that_answers_differently_each_time_says_nothing():
    check = compare_stream(read_stream(stream("A warranty")), WHOLE, Answer(content="Some warranty"))
    assert check.verdict is Verdict.INCONCLUSIVE


def test_streams_without_end_events_or_with_errors_fail():
    assert compare_stream(read_stream(stream("The warranty", done=False)), WHOLE).verdict is Verdict.FAIL
    assert compare_stream(read_stream(b""), WHOLE).verdict is Verdict.FAIL
    error = b'data: {"error": {"message": "CUDA error"}}\n\n'
    check = compare_stream(read_stream(error), WHOLE)
    assert check.verdict is Verdict.FAIL
    assert "CUDA error" in check.seen


def test_unreadable_events_make_the_reader_a_suspect():
    check = compare_stream(read_stream(b"data: {x\n\n" + stream("The ")), WHOLE)
    assert check.verdict is Verdict.INCONCLUSIVE

import pytest

from tooling.gates.correctness.profile import Question
from tooling.gates.correctness.text import degeneration, is_right, number_in, without_thinking

PROSE = (
    "The capital of France is Paris. It lies on the Seine, has about two million people, and has been the seat "
    "of the government for most of the last thousand years, with some short breaks that historians discuss."
)


@pytest.mark.parametrize(
    "text",
    [
        "!!!!!!!!!!!!",
        "++++++++++++ ",
        "The answer is " + "A" * 30,
        "33333333" * 20,
        "ha " * 30,
        "I see the cat and " * 12,
        PROSE + " yes and no" * 12,
        "abcabcabcabcabcabcabcabcabc",
        "\ufffd\ufffd\ufffd\ufffd ok",
        "\x01\x02\x03 ok ok",
    ],
)
def test_broken_text_is_named(text: str):
    assert degeneration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "391",
        PROSE,
        " ".join(map(str, range(1, 121))),
        "1" + "0" * 30,
        "| a | b |\n|" + "-" * 40 + "|\n",
        '{"name": "Ada", "age": 36}',
        "北京是中国的首都。",
    ],
)
def test_sound_text_is_left_alone(text: str):
    assert degeneration(text) == ""


def test_an_answer_in_another_script_is_wrong_only_where_ascii_was_asked_for():
    assert degeneration("北京是中国的首都。", ascii_only=True)


@pytest.mark.parametrize(
    ("match", "answer", "text", "right"),
    [
        ("exact", "391", " 391\n", True),
        ("exact", "391", "3910", False),
        ("word", "Paris", "It is **Paris**.", True),
        ("word", "Paris", "Parisian", False),
        ("number", "1234", "So it is 1,234.00.", True),
        ("number", "#### 18", "16 + 2 = 18", True),
        ("number", "18", "none", False),
        ("json", '{"a": 1}', '```json\n{"a":1}\n```', True),
        ("json", '{"a": 1}', '{"a": 2}', False),
        ("json", '{"a": 1}', "sure!", False),
        ("exact", "391", "<think>17*23 is 390?</think> 391", True),
        ("exact", "391", "thoughts</think>391", True),
        ("exact", "391", "<think>391", False),
    ],
)
def test_ways_of_matching(match: str, answer: str, text: str, *, right: bool):
    question = Question.model_validate({"id": "q", "group": "g", "ask": "?", "answer": answer, "match": match})
    assert is_right(question, answer, text) is right


def test_numbers_and_thinking():
    assert number_in("-3.50") == "-3.5"
    assert number_in("nothing") is None
    assert without_thinking("<think>a</think>b") == "b"

"""The signature files are sound, and unsound ones are refused by name."""

import re

import pytest

from tooling.errors import InputError
from tooling.triage import LogTriage, Role, load_signatures
from tooling.triage.reader import parse_line
from tooling.triage.signatures import check_set, fill, parse_signatures

ENTRY = """
- id: {id}
  source: x
  pattern: '{pattern}'
  role: cause
  outcome: FAIL
  meaning: Something happened to {{what}}.
  advice: Do something.
  matches: ["{line}"]
  rejects: {rejects}
"""


def entry(
    *,
    id_: str = "a-b",
    pattern: str = "broken widget (?P<what>\\w+)",
    line: str = "broken widget x",
    rejects: str = "[]",
) -> str:
    return ENTRY.format(id=id_, pattern=pattern, line=line, rejects=rejects)


def test_the_files_hold_every_group_of_the_reference():
    signatures = load_signatures()
    assert len(signatures) >= 130
    assert sum(len(signature.matches) for signature in signatures) > len(signatures)


def test_examples_match_as_the_lines_of_a_log_do():
    """Patterns meet a line without its time stamp and rank, so an example must match there, too."""
    for signature in load_signatures():
        for line in signature.matches:
            if signature.pattern.startswith("^"):
                continue
            assert signature.regex.search(parse_line(1, f"[2026-11-29 17:48:00 TP0] {line}").message), line


def test_no_noise_hides_the_example_of_a_cause():
    noise = [s for s in load_signatures() if s.pattern and s.role in (Role.NOISE, Role.HINT)]
    for signature in load_signatures():
        if signature.role in (Role.CAUSE, Role.SYMPTOM, Role.EVIDENCE):
            for line in signature.matches:
                hiding = [n.id for n in noise if n.regex.search(parse_line(1, line).message)]
                assert not hiding, (signature.id, line)


def test_a_log_finds_every_example_also_after_a_line_that_differs_in_its_numbers():
    for signature in load_signatures():
        for line in signature.matches:
            reader = LogTriage(engine=signature.engine)
            reader.feed(re.sub(r"\d", "9", line))
            reader.feed(line)
            assert signature.id in [finding.signature for finding in reader.report().findings], line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (entry(pattern="broken widget (?P<what>"), "does not compile"),
        (entry(pattern="broken widget (?P<what>.*)"), "too long on a hostile line"),
        (entry(pattern="broken (?:widget )+(?P<what>x)"), "too long on a hostile line"),
        (entry(pattern="broken widget (?P<what>.{0,9999})"), "too long on a hostile line"),
        (entry(line="a sound widget"), "wrong on its own example"),
        (entry(rejects="[broken widget y]"), "wrong on its own example"),
        (entry(pattern="broken widget (?P<other>\\w+)"), "does not capture"),
        (entry(pattern="x (?P<what>\\w+)", line="x y"), "too short"),
        (entry(id_="Not A Slug"), "id"),
        (entry().replace("  advice: Do something.\n", ""), "needs advice"),
        (entry().replace("outcome: FAIL", "outcome: OK"), "cannot be OK"),
        (entry() + "  versions: '>=not'\n", "Invalid specifier"),
        (entry() + "  surprise: 1\n", "surprise"),
        (entry() + "  detector: also\n", "either a pattern or a detector"),
        ("id: x", "must be a list"),
        ("[]", "must be a list"),
        ("- [", "not YAML"),
    ],
)
def test_unsound_files_are_refused(text: str, problem: str):
    with pytest.raises(InputError, match=r".") as caught:
        parse_signatures(text, "f.yaml")
    assert problem in str(caught.value)
    assert caught.value.where == "f.yaml"


def test_double_ids_and_unknown_references_are_refused():
    double = parse_signatures(entry() + entry(), "f")
    with pytest.raises(InputError, match="used twice: a-b"):
        check_set(double)
    with pytest.raises(InputError, match="explains unknown"):
        check_set(parse_signatures(entry() + "  explains: [nothing]\n", "f"))


def test_versions_limit_a_signature_to_the_engines_that_print_it():
    signature = parse_signatures(entry() + "  engine: sglang\n  versions: '>=0.5.14'\n", "f")[0]
    assert signature.fits("sglang", "0.5.23")
    assert not signature.fits("sglang", "0.5.9")
    assert not signature.fits("vllm", "0.19.0")
    assert signature.fits("sglang", "")
    assert signature.fits("", "")
    assert signature.fits("sglang", "nightly")


def test_templates_leave_out_what_is_not_known():
    assert fill("Old< (CUDA {cuda})>< (needs {needed})>.", {"cuda_level": "12080", "needed": ""}) == (
        "Old (CUDA 12.8)."
    )
    assert fill("It failed< ({error})>.", {"error": "x"}) == "It failed (x)."

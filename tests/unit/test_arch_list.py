from pathlib import Path

import pytest
import yaml

from tooling.census.arch_list import check_request, losses, parse_arch_list, parse_code_list
from tooling.errors import InputError
from tooling.gates.records import Verdict

CASE = Path(__file__).parents[1] / "cases" / "census-arch-specific-does-not-carry-over.yaml"


def test_the_field_case_names_each_loss_and_fails_on_the_gpu():
    text = yaml.safe_load(CASE.read_text("utf-8"))["input"]["text"]
    request, listing, gpu = text.splitlines()
    requested = parse_arch_list(request.split('"')[1])
    checks = check_request(requested, parse_code_list(listing), gpu.split()[-1])
    assert [check.verdict for check in checks] == [Verdict.FAIL, Verdict.FAIL]
    assert [line.partition(":")[0] for line in checks[0].details] == ["10.0", "12.1", "12.1+PTX"]
    assert "there is 10.0a instead, which runs on 10.0 alone" in checks[0].details[0]
    assert "10.0a" in checks[1].seen


@pytest.mark.parametrize(
    ("found", "device", "verdict"),
    [
        ("sm_120a", "12.1", Verdict.FAIL),
        ("sm_120", "12.1", Verdict.PASS),
        ("sm_120f", "12.1", Verdict.PASS),
        ("sm_121a", "12.0", Verdict.FAIL),
        ("compute_90", "12.0", Verdict.PASS),
        ("compute_90a", "12.0", Verdict.FAIL),
        ("sm_100f", "10.3", Verdict.PASS),
        ("sm_100f", "12.0", Verdict.FAIL),
    ],
)
def test_the_kind_behind_it(found: str, device: str, verdict: Verdict):
    codes = parse_code_list(found)
    assert check_request(codes, codes, device)[1].verdict is verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.0a", ["12.0a"]),
        ("8.0;9.0a 12.0,12.1+PTX", ["8.0", "9.0a", "12.0", "12.1", "12.1+PTX"]),
        ("12.0f+PTX", ["12.0f", "12.0f+PTX"]),
        ("Ampere;Hopper+PTX", ["8.0", "8.6", "9.0", "9.0+PTX"]),
        ("12.0 12.0", ["12.0"]),
    ],
)
def test_the_syntax(text: str, expected: list[str]):
    assert [str(code) for code in parse_arch_list(text)] == expected


@pytest.mark.parametrize("text", ["", " ; ", "All", "native", "12.0+ptx", "12.0b", "Blackwell2"])
def test_what_names_no_architecture(text: str):
    with pytest.raises(InputError):
        parse_arch_list(text)


def test_listings_of_cuobjdump():
    text = "ELF file    1: x.1.sm_120a.cubin\nPTX file    1: x.1.sm_90.ptx\nptx: none"
    assert [str(code) for code in parse_code_list(text)] == ["12.0a", "9.0+PTX"]
    with pytest.raises(InputError, match="no architecture"):
        parse_code_list("cuobjdump info: File 'x' does not contain device code")


def test_plain_and_family_machine_code_are_one_but_arch_specific_is_not():
    assert losses(parse_arch_list("12.0f"), parse_code_list("sm_120")) == ()
    assert losses(parse_arch_list("12.0"), parse_code_list("sm_120f")) == ()
    assert [str(loss.code) for loss in losses(parse_arch_list("12.0"), parse_code_list("sm_120a"))] == ["12.0"]
    assert [str(loss.code) for loss in losses(parse_arch_list("12.0a"), parse_code_list("sm_120"))] == ["12.0a"]


def test_nothing_lost():
    requested = parse_arch_list("9.0a;12.0a+PTX")
    [check] = check_request(requested, requested)
    assert check.verdict is Verdict.PASS

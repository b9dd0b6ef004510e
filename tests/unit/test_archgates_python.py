import textwrap

import pytest

from tooling.archgates.python_scan import scan_python
from tooling.archgates.records import Pattern


def _scan(source: str) -> list[tuple[Pattern, bool | None]]:
    return [(hit.pattern, hit.sm120) for hit in scan_python("m.py", textwrap.dedent(source).encode())]


@pytest.mark.parametrize(
    ("source", "pattern", "sm120"),
    [
        ("flags(supported_major_versions=[9, 10])", Pattern.ARCH_LIST, False),
        ("flags(supported_major_versions=[9, 10, 12])", Pattern.ARCH_LIST, True),
        ("flags(supported_major_versions=list(SUPPORTED))", Pattern.ARCH_LIST_BY_NAME, None),
        ("@supported_compute_capability([100, 103])\ndef f(): pass", Pattern.CAPABILITY_DECORATOR, False),
        ("@supported_compute_capability([100, 120])\ndef f(): pass", Pattern.CAPABILITY_DECORATOR, True),
        ("admissible_archs = ['sm_100a']", Pattern.ADMISSIBLE_ARCHS, None),
        ("if is_sm100_supported(): pass", Pattern.SM100_HELPER, False),
        ("if get_platform().is_sm100: pass", Pattern.SM100_HELPER, False),
        ("if get_platform().is_blackwell: pass", Pattern.BLACKWELL_HELPER, True),
        ("if not get_platform().is_sm120: pass", Pattern.NOT_SM12X, False),
        ("if p.is_sm90 or p.is_sm100: pass", Pattern.SM90_OR_SM100, False),
        ("if p.is_sm90 or p.is_sm100 or p.is_sm120: pass", Pattern.SM90_OR_SM100, True),
        ("if major == 10: pass", Pattern.CAPABILITY_EQUALITY, False),
        ("if sm_major not in (9, 10): pass", Pattern.CAPABILITY_EQUALITY, True),
        ("if capability not in ((10, 0), (10, 3)): pass", Pattern.CAPABILITY_EQUALITY, True),
        ("if torch.cuda.get_device_capability()[0] == 9: pass", Pattern.CAPABILITY_EQUALITY, False),
        ("if (major, minor) == (12, 0): pass", Pattern.CAPABILITY_EQUALITY, True),
        ("x = 'trtllm' if self.device_sm_major >= 10 else 'fa3'", Pattern.CAPABILITY_LOWER_BOUND, True),
        ("if CUDA_CAPABILITY[0] > 8: pass", Pattern.CAPABILITY_LOWER_BOUND, True),
        ("if 90 <= device_sm < 120: pass", Pattern.CAPABILITY_UPPER_BOUND, False),
        ("if sm_version < 90: pass", Pattern.CAPABILITY_UPPER_BOUND, False),
        ("SIZES = {9: a, 10: b}", Pattern.CAPABILITY_KEYS, False),
        ("table = {'sm_100a': a}", Pattern.ARCH_STRING_KEY, False),
        ("run(arch in ('100a', '103a'))", Pattern.ARCH_STRING, False),
        ("flags = ['-gencode=arch=compute_100a,code=sm_100a']", Pattern.GENCODE_FLAG, None),
        ("build(cflags=sm100a_nvcc_flags)", Pattern.NVCC_FLAGS_CONSTANT, None),
    ],
)
def test_every_way_to_write_a_gate_is_found(source: str, pattern: Pattern, sm120: bool | None):
    assert (pattern, sm120) in _scan(source)


@pytest.mark.parametrize(
    "source",
    [
        "# if major >= 10",
        '"""Supports major == 10 and is_sm100_supported."""',
        "from m import is_sm100_supported, is_blackwell",
        "def is_sm100_supported(): return probe()",
        "if len(parts) == 10: pass",
        "if batch_size >= 100: pass",
        "if torch_version.major >= 10 and cuda_version_major == 12: pass",
        "if capability[1] == 9: pass",
        "levels = {1: a, 9: b, 30: c}",
        "name = '120'",
    ],
)
def test_what_is_no_gate_is_not_counted(source: str):
    assert _scan(source) == []


def test_a_gate_says_where_it_stands():
    source = """
    import os

    class Backend:
        def choose(self):
            text = '''
            major >= 10
            '''
            if self.sm_major >= 10:
                return 1
    """
    (hit,) = scan_python("pkg/m.py", textwrap.dedent(source).encode())
    assert (hit.path, hit.line, hit.symbol) == ("pkg/m.py", 9, "Backend.choose")
    assert hit.code == "if self.sm_major >= 10:"


def test_a_gate_inside_a_text_at_the_margin_is_no_code():
    source = 'EXAMPLE = """\nif major >= 10:\n    pass\n"""\n\n\ndef f(major):\n    return major >= 10\n'
    (hit,) = scan_python("m.py", source.encode())
    assert hit.line == 8


def test_a_decorator_belongs_to_its_function():
    source = "@supported_compute_capability(\n    [100, 103]\n)\n@other\ndef f():\n    return is_blackwell()\n"
    assert [hit.line for hit in scan_python("m.py", source.encode())] == [1, 6]


def test_source_that_is_no_python_is_said_so():
    with pytest.raises(SyntaxError):
        scan_python("m.py", b"def f(:\n    return major >= 10\n")

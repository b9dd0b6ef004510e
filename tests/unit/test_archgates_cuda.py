import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.archgates.cuda_scan import SM120, admits, scan_cuda
from tooling.archgates.records import Marker, Pattern


def _scan(source: str) -> list[tuple[int, Pattern, bool | None]]:
    return [(hit.line, hit.pattern, hit.sm120) for hit in scan_cuda("k.cu", source.encode())[0]]


@pytest.mark.parametrize(
    ("source", "pattern", "sm120"),
    [
        (
            "#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900) && (__CUDA_ARCH__ < 1200))",
            Pattern.ARCH_BELOW,
            False,
        ),
        ("#elif __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030", Pattern.ARCH_EQUAL, False),
        ("#  if __CUDA_ARCH__ >= 1000", Pattern.ARCH_AT_LEAST, True),
        ("#if __CUDA_ARCH__ >= 1000 && defined(WITH_FP4)", Pattern.ARCH_AT_LEAST, None),
        ("#ifdef __CUDA_ARCH_FEAT_SM100_ALL", Pattern.ARCH_FEATURE_MACRO, None),
        ("TVM_FFI_ICHECK_EQ(major, 10) << 1;", Pattern.HOST_CHECK, None),
        ("TVM_FFI_ICHECK(major == 10 && (minor == 0 || minor == 3));", Pattern.HOST_CHECK, None),
        ("if (sm >= 100 && sm < 120) {", Pattern.HOST_CONDITION, None),
        ('FLASHINFER_CHECK(mSM == kSM_100 || mSM == kSM_103, "Unsupported");', Pattern.HOST_CONDITION, None),
    ],
)
def test_every_way_to_write_a_gate_is_found(source: str, pattern: Pattern, sm120: bool | None):
    assert (1, pattern, sm120) in _scan(source)


@pytest.mark.parametrize(
    "source",
    [
        "// #if __CUDA_ARCH__ < 1200",
        "/* if (sm >= 100)\n #if __CUDA_ARCH__ >= 1000\n*/",
        "#if __CUDA_ARCH__ >= 800",
        "#if defined(CUDA_VERSION) && (CUDA_VERSION < 12000)",
        "int smem = 100;",
    ],
)
def test_what_is_no_gate_is_not_counted(source: str):
    assert _scan(source) == []


def test_a_spliced_condition_is_one_line_and_lines_after_it_keep_their_numbers():
    source = (
        "a\n#if defined(__CUDA_ARCH__) && \\\n    (__CUDA_ARCH__ < 1200)\n/*\n*/ #if __CUDA_ARCH__ >= 1000\n"
    )
    assert _scan(source) == [(2, Pattern.ARCH_BELOW, False), (5, Pattern.ARCH_AT_LEAST, True)]


def test_marker_instructions_are_counted_and_comments_are_not():
    _, markers = scan_cuda("k.cu", b'asm("tcgen05.alloc");\n// tcgen05\nasm("multimem.ld_reduce");\n')
    assert markers == {Marker.TCGEN05: 1, Marker.MULTIMEM: 1}


@pytest.mark.parametrize(
    ("condition", "arch", "value"),
    [
        ("__CUDA_ARCH__ < 1200", 1200, False),
        ("__CUDA_ARCH__ < 1200", 1030, True),
        ("!(__CUDA_ARCH__ >= 900) || __CUDA_ARCH__ == 1200", 1200, True),
        ("defined(FOO) && __CUDA_ARCH__ < 1200", 1200, False),
        ("defined(FOO) || __CUDA_ARCH__ < 1200", 1200, None),
        ("VERSION(12, 8)", 1200, None),
        ("", 1200, None),
        ("((((", 1200, None),
    ],
)
def test_a_condition_is_evaluated_for_one_architecture(condition: str, arch: int, value: bool | None):
    assert admits("if", condition, arch) is value


@given(st.text(alphabet="()!&|<>= _ACDEFHINRU0129defin", max_size=60))
def test_no_condition_breaks_the_scan(condition: str):
    assert admits("if", condition, SM120) in (True, False, None)
    scan_cuda("k.cu", f"#if __CUDA_ARCH__ {condition}\n".encode())

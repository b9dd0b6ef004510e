import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.patches.apply import Content, apply_file
from tooling.patches.diff import parse_diff
from tooling.patches.errors import Fault, PatchError

LINES = [f"line {number}\n" for number in range(1, 21)]
TEXT = "".join(LINES)


def _patch(body: str, path: str = "m.py") -> str:
    return f"--- a/{path}\n+++ b/{path}\n{body}"


CHANGE_10 = _patch("@@ -9,3 +9,3 @@\n line 9\n-line 10\n+line ten\n line 11\n")
ADD_AFTER_2 = _patch("@@ -2,2 +2,4 @@\n line 2\n+new a\n+new b\n line 3\n")


def _apply(text: str, *patches: str) -> str:
    content: Content | None = Content.of(text.encode())
    for number, patch in enumerate(patches, 1):
        (diff,) = parse_diff(f"000{number}-p", patch)
        content = apply_file(f"000{number}-p", diff, content)
    assert content is not None
    return content.data.decode()


def _fault(text: str, *patches: str) -> PatchError:
    with pytest.raises(PatchError) as caught:
        _apply(text, *patches)
    return caught.value


def test_an_edit_at_the_stated_line_is_made():
    assert _apply(TEXT, CHANGE_10) == TEXT.replace("line 10", "line ten")


def test_a_patch_of_the_pristine_file_fits_whether_or_not_an_earlier_one_moved_its_lines():
    both = _apply(TEXT, ADD_AFTER_2, CHANGE_10)
    assert both == TEXT.replace("line 10", "line ten").replace("line 2\n", "line 2\nnew a\nnew b\n", 1)


def test_a_patch_of_the_file_as_earlier_patches_left_it_fits_too():
    stacked = CHANGE_10.replace("-9,3 +9,3", "-11,3 +11,3")
    assert _apply(TEXT, ADD_AFTER_2, stacked) == _apply(TEXT, ADD_AFTER_2, CHANGE_10)
    assert _fault(TEXT, stacked).fault is Fault.CONFLICT


def test_a_later_patch_may_edit_what_an_earlier_one_added():
    on_top = _patch("@@ -2,4 +2,4 @@\n line 2\n new a\n-new b\n+new c\n line 3\n")
    assert "new a\nnew c\n" in _apply(TEXT, ADD_AFTER_2, on_top)


def test_a_drifted_anchor_is_an_error_that_says_where_the_lines_went():
    error = _fault("inserted upstream\n" + TEXT, CHANGE_10)
    assert (error.fault, error.patch, error.file, error.hunk) == (Fault.CONFLICT, "0001-p", "m.py", 1)
    assert "not at line 9, they stand at line 10" in str(error)


def test_an_anchor_that_is_gone_is_an_error_that_shows_both_lines():
    error = _fault(TEXT.replace("line 11\n", "line eleven\n"), CHANGE_10)
    assert error.fault is Fault.CONFLICT
    assert error.details == ["expected: 'line 11\\n'", "found:    'line eleven\\n'"]


def test_white_space_counts():
    assert _fault(TEXT.replace("line 9\n", "line 9 \n"), CHANGE_10).fault is Fault.CONFLICT
    assert _fault(TEXT.replace("\n", "\r\n"), CHANGE_10).fault is Fault.CONFLICT


def test_the_same_patch_twice_is_already_applied_and_not_a_conflict():
    error = _fault(TEXT, CHANGE_10, CHANGE_10)
    assert (error.fault, error.patch, error.hunk) == (Fault.ALREADY_APPLIED, "0002-p", 1)


def test_an_insertion_at_the_end_is_not_made_twice():
    at_end = _patch("@@ -20 +20,2 @@\n line 20\n+line 21\n")
    assert _apply(TEXT, at_end) == TEXT + "line 21\n"
    assert _fault(TEXT, at_end, at_end).fault is Fault.ALREADY_APPLIED


def test_an_edit_that_upstream_made_elsewhere_in_the_file_is_already_applied():
    upstream = "moved\n" + TEXT.replace("line 10", "line ten")
    assert _fault(upstream, CHANGE_10).fault is Fault.ALREADY_APPLIED


def test_hunks_that_undo_each_other_change_nothing():
    there = "@@ -9,2 +9,3 @@\n line 9\n+extra\n line 10\n"
    back = "@@ -9,3 +10,2 @@\n line 9\n-extra\n line 10\n"
    error = _fault(TEXT, _patch(there + back.replace("-9,3 +10,2", "-8,3 +9,2")))
    assert error.fault is Fault.NO_OP


def test_a_missing_file_is_named():
    (diff,) = parse_diff("0001-p", CHANGE_10)
    with pytest.raises(PatchError) as caught:
        apply_file("0001-p", diff, None)
    assert (caught.value.fault, caught.value.file) == (Fault.FILE_MISSING, "m.py")


def test_a_new_file_must_not_be_there():
    (diff,) = parse_diff("0001-p", "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n")
    assert apply_file("0001-p", diff, None).data == b"x = 1\n"
    with pytest.raises(PatchError) as caught:
        apply_file("0001-p", diff, Content.of(b"y = 2\n"))
    assert caught.value.fault is Fault.FILE_EXISTS


@given(st.binary(max_size=200))
def test_bytes_that_no_hunk_touches_come_out_as_they_went_in(data: bytes):
    assert Content.of(data).data == data

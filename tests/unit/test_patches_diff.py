import pytest

from tooling.patches.diff import parse_diff
from tooling.patches.errors import Fault, PatchError

GOOD = """Description: an edit

--- a/pkg/mod.py
+++ b/pkg/mod.py
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""


def _refused(text: str) -> PatchError:
    with pytest.raises(PatchError) as caught:
        parse_diff("0001-x", text)
    assert caught.value.patch == "0001-x"
    return caught.value


def test_a_hunk_is_its_old_lines_its_new_lines_and_a_place():
    (diff,) = parse_diff("0001-x", GOOD)
    (hunk,) = diff.hunks
    assert (diff.path, diff.creates, hunk.start) == ("pkg/mod.py", False, 1)
    assert hunk.before == ("one\n", "two\n", "three\n")
    assert hunk.after == ("one\n", "2\n", "three\n")


def test_lines_after_a_hunk_that_counts_too_few_are_not_lost():
    error = _refused(GOOD + "+four\n")
    assert error.fault is Fault.MALFORMED
    assert "line 10 of the patch belongs to no hunk: '+four'" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Description: nothing else\n", "holds no diff"),
        (GOOD.replace("-1,3 +1,3", "-1,9 +1,9"), "shorter than expected"),
        (GOOD.replace("pkg/mod.py", "../../etc/passwd"), "not a plain path"),
        (
            GOOD.replace("a/pkg/mod.py", "/pkg/mod.py").replace("b/pkg/mod.py", "/pkg/mod.py"),
            "not a plain path",
        ),
        (GOOD.replace("b/pkg/mod.py", "/dev/null"), "cannot be deleted"),
        (GOOD.replace("b/pkg/mod.py", "b/pkg/other.py"), "deleted or renamed"),
        (GOOD + GOOD.partition("\n\n")[2], "two diffs of this file"),
        ("--- a/x\n+++ b/x\n@@ -4,0 +5 @@\n+new\n", "without context"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "belongs to no hunk"),
        ("diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 1\n", "belongs to no hunk"),
    ],
)
def test_what_cannot_be_applied_exactly_is_refused_when_it_is_read(text: str, said: str):
    error = _refused(text)
    assert error.fault is Fault.MALFORMED
    assert said in str(error)


def test_a_hunk_of_context_alone_is_named_as_changing_nothing():
    error = _refused("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n two\n")
    assert (error.fault, error.file, error.hunk) == (Fault.NO_OP, "x", 1)


def test_a_file_without_a_last_line_end_keeps_its_shape():
    marker = "\\ No newline at end of file\n"
    text = f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n{marker}+new\n{marker}"
    (diff,) = parse_diff("0001-x", text)
    assert diff.hunks[0].before == ("old",)
    assert diff.hunks[0].after == ("new",)


def test_the_signature_that_git_appends_is_no_edit():
    (diff,) = parse_diff("0001-x", GOOD + "-- \n2.39.5\n\n")
    assert len(diff.hunks) == 1

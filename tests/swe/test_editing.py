"""Edits and views as functions of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs import ToolError
from trajgym.envs.swe._editing import decode, encode, inserted, numbered, replaced, shortened
from trajgym.envs.swe._hunks import parse_patch


def test_text_that_is_not_unique_is_named_with_its_lines() -> None:
    """The agent learns where all the places are."""
    with pytest.raises(ToolError, match=r"occurs 2 times in a\.py, at lines 1, 3"):
        replaced("x\ny\nx\n", "x", "z", "a.py")


def test_overlapping_places_count() -> None:
    """Text that overlaps itself is not unique."""
    with pytest.raises(ToolError, match="occurs 2 times"):
        replaced("aaa", "aa", "b", "a.py")


@pytest.mark.parametrize(
    ("old", "new", "said"), [("", "x", "empty"), ("a", "a", "equal"), ("b", "x", "does not occur")]
)
def test_useless_replacements_are_refused(old: str, new: str, said: str) -> None:
    """Empty, equal and missing text are errors with the reason."""
    with pytest.raises(ToolError, match=said):
        replaced("a\n", old, new, "a.py")


def test_windows_line_ends_are_kept() -> None:
    """Plain line ends in an edit stand for the file's own."""
    assert replaced("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "f") == ("x\r\ny\r\nc\r\n", 1)
    assert inserted("a\r\nb\r\n", 1, "n", "f") == "a\r\nn\r\nb\r\n"


@given(st.binary(max_size=200))
def test_bytes_survive_an_edit(data: bytes) -> None:
    """Text that is not edited keeps its bytes, UTF-8 or not."""
    text = decode(data)
    assert encode(text) == data
    assert encode(inserted(text, 0, "top", "f")).endswith(data)


def test_insert_at_the_ends() -> None:
    """Lines go in at the top, and after a last line that has no end."""
    assert inserted("a\nb", 0, "n\n", "f") == "n\na\nb"
    assert inserted("a\nb", 2, "n", "f") == "a\nb\nn\n"
    with pytest.raises(ToolError, match="has 2 lines"):
        inserted("a\nb", 3, "n", "f")


def test_view_counts_from_one() -> None:
    """The asked range is shown, cut at the end of the file."""
    assert numbered("a\nb\nc", 2, 9, "f") == "     2\tb\n     3\tc"
    assert numbered("", 1, None, "f") == "f is empty"
    with pytest.raises(ToolError, match="is not a range"):
        numbered("a\n", 0, 1, "f")


@given(st.binary(max_size=300), st.integers(2, 100), st.integers(0, 50))
def test_output_is_bounded_and_says_how_much_is_missing(
    data: bytes, limit: int, dropped: int
) -> None:
    """Head and tail are kept, the mark counts every byte between them."""
    text = shortened(data, limit, dropped)
    if len(data) <= limit and not dropped:
        assert text == data.decode("utf-8", "replace")
        return
    half = min(limit, len(data)) // 2
    assert f"[... {len(data) - 2 * half + dropped} bytes left out ...]" in text
    assert len(text) <= limit + 60


def test_patches_are_read_back() -> None:
    """Hunks have both sides; new, deleted and unterminated files are distinguished."""
    patch = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -3,3 +3,3 @@ def f():\n one\n"
        "-two\n+2\n three\n\\ No newline at end of file\n"
        "diff --git a/b b/b\nnew file mode 100644\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n"
        "diff --git a/c b/c\ndeleted file mode 100644\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    first, second, third = parse_patch(patch)
    assert first.hunks == ((3, "one\ntwo\nthree", "one\n2\nthree"),)
    assert (second.old_path, second.new_path, second.hunks[0].new) == ("", "b", "new\n")
    assert (third.old_path, third.new_path, third.path) == ("c", "", "c")
    assert "".join(change.text for change in (first, second, third)) == patch

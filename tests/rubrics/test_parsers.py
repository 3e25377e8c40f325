"""Parsers of answers, on examples and on arbitrary text."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.rubrics import boxed, choice, code_block, json_value, last_number, tagged

TEXT = st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{1}, no: \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"),
        ("\\boxed{open", None),
        ("nothing", None),
    ],
)
def test_boxed(text: str, expected: str | None) -> None:
    """The last box counts, braces in it are balanced."""
    assert boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 1, b 2.5.", 2.5),
        ("it costs $1,234.50 in all", 1234.5),
        ("-3", -3.0),
        ("1e3", 1000.0),
        ("version 3.2.1", None),
        ("x1 and 2y", None),
        ("none", None),
        ("1,234", 1234.0),
        ("-1,234,567", -1234567.0),
        ("about 3,14.", 3.14),
        ("0,125", 0.125),
        ("1234,567", 1234.567),
        ("1.234,5 EUR", 1234.5),
        ("1.234.567,89", 1234567.89),
        ("2,5e3", 2500.0),
        ("1,2,3", 3.0),
        ("2, 5", 5.0),
        ("7, and version 3.2.1,5", 5.0),
        ("4,5x", None),
    ],
)
def test_last_number(text: str, expected: float | None) -> None:
    """The last number counts, with thousands commas or a decimal comma; parts of words are none."""
    assert last_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{b}", "B"),
        ("<answer>(C)</answer>", "C"),
        ("A or B? The answer is **D**.", "D"),
        ("Answer: a", "A"),
        ("(B)", "B"),
        ("A good question about answers", None),
        ("the answer is E", None),
    ],
)
def test_choice(text: str, expected: str | None) -> None:
    """A letter counts where it is the answer, not where a sentence begins with it."""
    assert choice(text) == expected


def test_code_block() -> None:
    """The last closed block counts; a longer fence may hold a shorter one."""
    text = "```python\nx = 1\n```\nthen\n````md\n```python\ninner\n```\n````\n```python\nopen"
    assert code_block(text) == "```python\ninner\n```"
    assert code_block(text, "Python") == "x = 1"
    assert code_block(text, "sh") is None


@given(before=TEXT, content=TEXT, after=TEXT)
def test_what_is_between_tags_is_found(before: str, content: str, after: str) -> None:
    """Whatever stands around it, the content of the last tag comes back."""
    if "<" in content + after:
        return
    assert tagged(f"{before}<answer>{content}</answer>{after}") == content.strip()


@given(before=st.text(alphabet=string.ascii_letters + " \n"), value=JSON)
def test_json_after_prose_is_found(before: str, value: Any) -> None:
    """An object or array after prose comes back as it was; other values don't count as JSON."""
    found = json_value(f"{before}\n```json\n{json.dumps(value)}\n```")
    if isinstance(value, (dict, list)):
        assert found == value


@given(TEXT | st.text(alphabet="\\boxed{}<answer>/`~[]()1,.eE+-\n \"':", max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    """Every parser returns something of its kind, or None."""
    assert isinstance(boxed(text), (str, type(None)))
    assert isinstance(tagged(text), (str, type(None)))
    assert isinstance(last_number(text), (float, type(None)))
    assert isinstance(json_value(text), (dict, list, type(None)))
    assert choice(text) in {None, "A", "B", "C", "D"}
    assert isinstance(code_block(text), (str, type(None)))


@given(value=st.integers(0, 10**12), places=st.integers(0, 4))
def test_a_number_is_read_back_in_every_notation(value: int, places: int) -> None:
    """Plain, with thousands commas, and with a decimal comma unless that reads as thousands."""
    number = value / 10**places
    english = f"{number:,.{places}f}"
    assert last_number(f"it is {number:.{places}f}.") == number
    assert last_number(f"it is {english}.") == number
    if places and not (places == 3 and 1 <= number < 1000):
        german = english.translate(str.maketrans(",.", ".,"))
        assert last_number(f"it is {german}.") == number


@pytest.mark.parametrize(
    "unit", ["{", "[1,", "\\boxed{", "<answer>", "```\n", "1,111", "1,111x", "answer: "]
)
def test_long_answers_take_no_longer_than_their_length(unit: str) -> None:
    """Four times the text takes about four times as long, not sixteen."""

    def seconds(text: str) -> float:
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            for parse in (boxed, tagged, last_number, json_value, choice, code_block):
                parse(text)
            best = min(best, time.process_time() - started)
        return best

    small, large = seconds(unit * 10_000), seconds(unit * 40_000)
    assert large < 10 * small + 0.05

"""Expressions over fields: what they mean, and that they run no code."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.trajectory import InvalidInput
from trajgym.trajectory.datasets import Expression

RECORD: dict[str, Any] = {
    "passed": True,
    "turns": 7,
    "score": None,
    "status": "failed:env",
    "data": {"repo": "a/b", "level": 3, "tags": ["x", "y"], "deep": {"n": 1}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("passed and turns < 20", True),
        ("not passed or turns == 7", True),
        ("3 < turns <= 7", True),
        ("turns % 2 == 1 and turns // 2 + 1 == 4 and -turns < 0", True),
        ("score > 0", False),
        ("score < 0", False),
        ("not score", True),
        ("score == None", True),
        ("score is not None", False),
        ("score + 1 > 0", False),
        ("data.repo in ['a/b', 'c/d']", True),
        ('data["level"] >= 3', True),
        ("'x' in data.tags and data.tags[1] == 'y' and data.tags[9] == None", True),
        ("data.deep.n == 1", True),
        ("data.nothing.at.all", None),
        ("'env' in status", True),
        ("'a' in score", False),
        ("len(data.tags) == 2", True),
        ("len(score)", None),
    ],
)
def test_values(text: str, value: object) -> None:
    """Expressions have Python's meaning; None is neither less nor greater than anything."""
    assert Expression(text, RECORD)(RECORD) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "[x for x in data]",
        "turns := 3",
        "turns ** 999999999",
        "f'{turns}'",
        "data[turns]",
        "open('/etc/passwd')",
        "len(data, 1)",
        "passed if turns else 0",
        "turns <",
        "",
        "\0",
        "(" * 500 + "1" + ")" * 500,
        "x" * 20_000,
        "1j",
    ],
)
def test_what_is_not_an_expression_is_refused(text: str) -> None:
    """Calls, comprehensions and the like are refused before anything is read."""
    with pytest.raises(InvalidInput, match="expression"):
        Expression(text, RECORD)


def test_mistakes_are_named() -> None:
    """Unknown fields are refused with a suggestion; values that don't fit, with the expression."""
    with pytest.raises(InvalidInput, match="no field 'turn'; did you mean 'turns'"):
        Expression("turn > 3", RECORD)
    for text in ("status < 3", "turns / 0", "status * 3", "3 in turns"):
        with pytest.raises(InvalidInput, match="expression"):
            Expression(text, RECORD)(RECORD)


def test_attributes_of_objects_are_out_of_reach() -> None:
    """A part is looked up in JSON objects and lists only."""
    for text in ("status.__class__", "data.__class__", "data.tags.append", "turns.real"):
        assert Expression(text, RECORD)(RECORD) is None


@given(st.text(alphabet="passedturn<>=()[]'\"., 0123*-+", max_size=40))
def test_any_text_is_refused_or_evaluated(text: str) -> None:
    """Whatever is typed, the only exception is InvalidInput."""
    with contextlib.suppress(InvalidInput):
        Expression(text, RECORD)(RECORD)

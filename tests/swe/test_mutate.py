"""Procedural bugs as edits of text."""

from __future__ import annotations

import ast

import pytest

from trajgym.envs.swe import InvalidTask
from trajgym.envs.swe._candidates import hunks_between
from trajgym.envs.swe._mutate import RULES, edits_of, find_edit, is_python

SOURCE = '''\
"""Module é docstring, never touched: a < b."""

LIMIT = 3  # nothing outside functions is touched


def first(items, start=0):
    """Docstring with 1 < 2 and True."""
    total = 0  # é
    for item in items[start + 1 :]:
        if item and not item.skip:
            total += item.value * 2
        elif item is None:
            break
    if total >= LIMIT or start < 0:
        raise ValueError("é", total)
    try:
        call("é", total, start)
    except KeyError:
        items.seen = True
        return ""
    return total
'''


def bugs(rule: str, source: str = SOURCE) -> list[str]:
    """Return what each edit of a rule makes of the lines that it changes."""
    old = source.encode()
    shown = []
    for edit in edits_of(old):
        if edit.rule == rule:
            new = edit.apply(old).decode().split("\n")
            before = source.split("\n")
            changed = [n.strip() for n, b in zip(new, before, strict=False) if n != b]
            shown.append(changed[0])
    return shown


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("operator", ["for item in items[start - 1 :]:", "total += item.value + 2"]),
        ("comparison", ["elif item is not None:", "if total > LIMIT or start < 0:",
                        "if total >= LIMIT or start <= 0:"]),
        ("boolean", ["if item or not item.skip:", "if total >= LIMIT and start < 0:"]),
        ("arguments", ['raise ValueError(total, "é")', 'call(total, "é", start)',
                       'call("é", start, total)']),
        ("exception", ["pass", "pass"]),
        ("return", ["return None", "return None"]),
        ("assignment", ["pass", "pass"]),
    ],
)  # fmt: skip
def test_rules_change_what_they_say_and_nothing_else(rule: str, expected: list[str]) -> None:
    """Each edit is one place; comments, layout and letters beyond ASCII stay."""
    assert bugs(rule) == expected


def test_off_by_one_goes_both_ways() -> None:
    """A number becomes its neighbours, never a negative one."""
    assert bugs("off-by-one", "def f(a):\n    return a[0:2]\n") == [
        "return a[1:2]",
        "return a[0:3]",
        "return a[0:1]",
    ]


def test_conditions_are_turned_round() -> None:
    """A plain condition gets a not, a negated one loses it."""
    source = "def f(a):\n    if a:\n        return 1\n    while not a.b:\n        pass\n"
    assert bugs("condition", source) == ["if not a:", "while a.b:"]


def test_every_edit_has_a_name_that_finds_it_again() -> None:
    """Rule, place and variant are unique, give the same edit again, and leave most code Python."""
    source = SOURCE.encode()
    edits = edits_of(source)
    assert len({edit[:4] for edit in edits}) == len(edits) > 25
    assert {edit.rule for edit in edits} <= set(RULES)
    for edit in edits:
        assert find_edit(source, *edit[:4]) == edit
        assert edit.scope == "first"
    assert all(is_python(edit.apply(source)) for edit in edits)
    ast.parse(source)


def test_edit_that_is_not_there_is_an_error() -> None:
    """A recipe for another file is refused, not guessed at."""
    with pytest.raises(InvalidTask, match="no edit 'operator' number 0 at line 1"):
        find_edit(SOURCE.encode(), "operator", 1, 0, 0)
    with pytest.raises(InvalidTask, match="not Python"):
        edits_of(b"def (")


def test_hunks_join_when_they_are_near() -> None:
    """Changes at most four lines apart are one hunk; its line is that of a diff without context."""
    old = "".join(f"{n}\n" for n in range(20))
    new = old.replace("3\n", "three\n", 1).replace("8\n", "", 1).replace("16\n", "16\nmore\n")
    near, far = hunks_between(old.encode(), new.encode())
    assert (near.base, near.fixed, near.line) == ((3, 9), (3, 8), 4)
    assert (far.base, far.fixed, far.line) == ((17, 17), (16, 17), 17)
    (gone,) = hunks_between(b"a\nb\n", b"a\n")
    assert (gone.base, gone.fixed, gone.line) == ((1, 2), (1, 1), 1)

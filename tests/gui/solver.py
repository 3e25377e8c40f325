"""A scripted solver of some MiniWoB++ tasks: reads the elements, acts on them by id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

from trajgym.envs.gui import (
    Action,
    Click,
    Element,
    Fill,
    PressKeys,
    SelectOption,
    SetChecked,
    TypeText,
)

__all__ = ["SOLVERS", "Seen", "read_tree"]

_LINE = re.compile(r'^\s*\[(\d+)\] (\w+)(?: ("(?:[^"\\]|\\.)*"))?(.*)$')


class Item(NamedTuple):
    """One element of the tree."""

    id: str
    role: str
    name: str
    notes: str

    @property
    def at(self) -> Element:
        return Element(self.id)


class Seen(NamedTuple):
    """What the solver looks at."""

    asked: str
    items: list[Item]

    def all(self, *roles: str) -> list[Item]:
        return [item for item in self.items if item.role in roles]

    def one(self, role: str, name: str) -> Item:
        return next(i for i in self.all(role) if i.name.lower() == name.lower())


Steps: TypeAlias = Generator[Action, Seen, None]


def read_tree(asked: str, tree: str) -> Seen:
    items = []
    for line in tree.splitlines():
        match = _LINE.match(line)
        if match:
            name = json.loads(match[3]) if match[3] else ""
            items.append(Item(match[1], match[2], name, match[4]))
    return Seen(asked, items)


def _quoted(asked: str) -> list[str]:
    return re.findall(r'"([^"]*)"', asked)


def _click_named(role: str) -> Callable[[Seen], Steps]:
    def solve(seen: Seen) -> Steps:
        yield Click(seen.one(role, _quoted(seen.asked)[0]).at)

    return solve


def _sequence(seen: Seen) -> Steps:
    seen = yield Click(seen.one("button", "ONE").at)
    yield Click(seen.one("button", "TWO").at)


def _only_button(seen: Seen) -> Steps:
    yield Click(seen.all("button")[0].at)


def _first_button(seen: Seen) -> Steps:
    yield Click(seen.one("button", "ONE").at)


def _wanted(seen: Seen) -> list[str]:
    listed = re.sub(r"^Select | and click Submit\.$", "", seen.asked)
    return [] if listed == "nothing" else listed.split(", ")


def _checkboxes(seen: Seen) -> Steps:
    for name in _wanted(seen):
        seen = yield SetChecked(seen.one("checkbox", name).at, checked=True)
    yield Click(seen.one("button", "Submit").at)


def _option(seen: Seen) -> Steps:
    seen = yield Click(seen.one("radio", _wanted(seen)[0]).at)
    yield Click(seen.one("button", "Submit").at)


def _list(seen: Seen) -> Steps:
    name = re.sub(r"^Select | from the list and click Submit\.$", "", seen.asked)
    seen = yield SelectOption(seen.all("combobox", "listbox")[0].at, (name,))
    yield Click(seen.one("button", "Submit").at)


def _text(seen: Seen) -> Steps:
    seen = yield Fill(seen.all("textbox")[0].at, _quoted(seen.asked)[0])
    yield Click(seen.one("button", "Submit").at)


def _password(seen: Seen) -> Steps:
    for number in (0, 1):
        seen = yield Fill(seen.all("textbox")[number].at, _quoted(seen.asked)[0])
    yield Click(seen.one("button", "Submit").at)


def _date(seen: Seen) -> Steps:
    found = re.search(r"(\d\d)/(\d\d)/(\d{4})", seen.asked)
    assert found
    field = seen.all("Date")[0]
    seen = yield Fill(field.at, f"{found[3]}-{found[1]}-{found[2]}")
    yield Click(seen.one("button", "Submit").at)


def _time(seen: Seen) -> Steps:
    found = re.search(r"(\d+):(\d\d) (AM|PM)", seen.asked)
    assert found
    hour = int(found[1]) % 12 + (12 if found[3] == "PM" else 0)
    seen = yield Fill(seen.all("InputTime")[0].at, f"{hour:02}:{found[2]}")
    yield Click(seen.one("button", "Submit").at)


def _focus(number: Callable[[str], int]) -> Callable[[Seen], Steps]:
    def solve(seen: Seen) -> Steps:
        yield Click(seen.all("textbox")[number(seen.asked)].at)

    return solve


def _ordinal(asked: str) -> int:
    found = re.search(r"(\d)(?:st|nd|rd|th)", asked)
    assert found
    return int(found[1]) - 1


def _login(seen: Seen) -> Steps:
    for number, text in enumerate(_quoted(seen.asked)):
        seen = yield Fill(seen.all("textbox")[number].at, text)
    yield Click(seen.one("button", "Login").at)


def _tab(seen: Seen) -> Steps:
    name = re.sub(r"^Click on |\.$", "", seen.asked)
    yield Click(seen.one("link", name).at)


def _collapsible(seen: Seen) -> Steps:
    seen = yield Click(seen.all("tab")[0].at)
    yield Click(seen.one("button", "Submit").at)


def _link(seen: Seen) -> Steps:
    name = _quoted(seen.asked)[0]
    yield Click(next(i for i in seen.all("text", "link") if i.name == name).at)


def _arithmetic(seen: Seen) -> Steps:
    said = next(i.name for i in seen.all("text") if re.fullmatch(r"\d+ . \d+ =", i.name))
    left, sign, right, _ = said.split()
    value = {"+": int.__add__, "-": int.__sub__, "x": int.__mul__}[sign](int(left), int(right))
    seen = yield Click(seen.all("textbox")[0].at)
    seen = yield TypeText(str(value))
    yield Click(seen.one("button", "Submit").at)


def _copy(seen: Seen) -> Steps:
    source, target = sorted(seen.all("textbox"), key=lambda item: "value=" not in item.notes)
    yield Click(source.at)
    yield PressKeys(("Control", "a"))
    yield PressKeys(("Control", "c"))
    yield Click(target.at)
    seen = yield PressKeys(("Control", "v"))
    yield Click(seen.one("button", "Submit").at)


def _table(seen: Seen) -> Steps:
    wanted = re.search(r"the value of (.+) into", seen.asked)
    assert wanted
    cells = [item.name for item in seen.all("cell")]
    value = cells[cells.index(wanted[1]) + 1]
    seen = yield Fill(seen.all("textbox")[0].at, value)
    yield Click(seen.one("button", "Submit").at)


SOLVERS: dict[str, Callable[[Seen], Steps]] = {
    "click-button": _click_named("button"),
    "click-button-sequence": _sequence,
    "click-checkboxes": _checkboxes,
    "click-collapsible": _collapsible,
    "click-dialog": _only_button,
    "click-link": _link,
    "click-option": _option,
    "click-tab": _tab,
    "click-test": _only_button,
    "click-test-2": _first_button,
    "choose-list": _list,
    "copy-paste": _copy,
    "enter-date": _date,
    "enter-password": _password,
    "enter-text": _text,
    "enter-time": _time,
    "focus-text": _focus(lambda _: 0),
    "focus-text-2": _focus(_ordinal),
    "login-user": _login,
    "read-table": _table,
    "simple-arithmetic": _arithmetic,
    "unicode-test": _click_named("button"),
}
"""Name of a task -> steps: each gets what is seen after the one before."""

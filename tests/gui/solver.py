"""A scripted solver of MiniWoB++ tasks: it reads the elements and acts on them by their ids.

:func:`with_mouse` turns its actions into clicks at points and keys, as an agent without ids acts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, TypeAlias

from trajgym.envs.gui.actions import (
    Action,
    Click,
    Drag,
    Element,
    Fill,
    Move,
    Point,
    PressKeys,
    SelectOption,
    SetChecked,
    Target,
    TypeText,
    Wait,
)

__all__ = ["SOLVERS", "Seen", "places_needed", "read_tree", "with_mouse"]

_LINE = re.compile(r'^\s*\[(\d+)\] ([\w-]+)(?: ("(?:[^"\\]|\\.)*"))?(.*)$')


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

    def after(self, name: str, role: str) -> Item:
        """The first element of a role after the one with this name."""
        at = next(n for n, i in enumerate(self.items) if i.name.rstrip(":") == name)
        return next(i for i in self.items[at:] if i.role == role)


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


def _ordinals(asked: str) -> list[int]:
    return [int(found) - 1 for found in re.findall(r"(\d+)(?:st|nd|rd|th)", asked)]


def _ordinal(asked: str) -> int:
    return _ordinals(asked)[0]


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
    yield Click(next(i for i in seen.all("text", "link", "clickable") if i.name == name).at)


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


def _dialog(seen: Seen) -> Steps:
    name = _quoted(seen.asked)[0]
    yield Click(seen.one("button", "Close" if name == "x" else name).at)


def _behind(role: str, link: str = "clickable") -> Callable[[Seen], Steps]:
    """Open what has this role, one after the other, until the link that is asked for is there."""

    def solve(seen: Seen) -> Steps:
        name = _quoted(seen.asked)[0]
        for number in range(len(seen.all(role))):
            seen = yield Click(seen.all(role)[number].at)
            found = [i for i in seen.all(link, "text") if i.name == name and "[" not in i.name]
            if found:
                yield Click(found[0].at)
                return

    return solve


def _menu(seen: Seen) -> Steps:
    *path, last = seen.asked.removeprefix("Select ").split(">")
    for name, inside in zip(path, [*path[1:], last], strict=True):
        seen = yield Move(seen.one("menuitem", name).at)
        while inside not in [item.name for item in seen.all("menuitem")]:
            seen = yield Wait(0.2)  # a submenu opens after a moment
    yield Click(seen.one("menuitem", last).at)


def _scroll_list(seen: Seen) -> Steps:
    listed = re.sub(r"^Select | from the scroll list and click Submit\.$", "", seen.asked)
    seen = yield SelectOption(seen.all("listbox")[0].at, tuple(listed.split(", ")))
    yield Click(seen.one("button", "Submit").at)


def _widget(seen: Seen) -> Steps:
    wanted = _quoted(seen.asked)[0]
    role = {"text": "textbox", "textarea": "textbox"}.get(wanted, wanted)
    # A text field has its tag in its notes, a text area does not.
    items = [i for i in seen.all(role) if wanted != "text" or "<input" in i.notes]
    items = [i for i in items if wanted != "textarea" or "<input" not in i.notes]
    yield Click(items[0].at)


def _copy_ordinal(seen: Seen) -> Steps:
    *areas, target = seen.all("textbox")
    yield Click(areas[_ordinal(seen.asked)].at)
    yield PressKeys(("Control", "a"))
    yield PressKeys(("Control", "c"))
    yield Click(target.at)
    seen = yield PressKeys(("Control", "v"))
    yield Click(seen.one("button", "Submit").at)


def _drag_box(seen: Seen) -> Steps:
    small, large = seen.all("clickable")
    seen = yield Drag((small.at, large.at))
    yield Click(seen.one("button", "Submit").at)


def _of_mail(icon: str) -> Callable[[Seen], Steps]:
    def solve(seen: Seen) -> Steps:
        found = re.search(r"email by (\w+)", seen.asked)
        assert found
        at = next(
            n
            for n, i in enumerate(seen.items)
            if (i.role, i.name) == ("text", found[1]) and seen.items[n - 1].role == "clickable"
        )
        yield Click(next(i for i in seen.items[at:] if f'class="{icon}"' in i.notes).at)

    return solve


def _open_mail(seen: Seen) -> Item:
    found = re.search(r"email by (\w+)", seen.asked)
    assert found
    return next(i for i in seen.all("clickable") if i.name.startswith(f"{found[1]} "))


def _reply(seen: Seen) -> Steps:
    text = _quoted(seen.asked)[0]
    seen = yield Click(_open_mail(seen).at)
    seen = yield Click(seen.one("clickable", "Reply").at)
    seen = yield Fill(seen.all("textbox")[0].at, text)
    yield Click(next(i for i in seen.items if "send-reply" in i.notes).at)


def _forward(seen: Seen) -> Steps:
    found = re.search(r"that email to (\w+)\.", seen.asked)
    assert found
    seen = yield Click(_open_mail(seen).at)
    seen = yield Click(seen.one("clickable", "Forward").at)
    seen = yield Fill(seen.all("textbox")[0].at, found[1])
    yield Click(next(i for i in seen.items if "send-forward" in i.notes).at)


def _cased(seen: Seen) -> Steps:
    text = _quoted(seen.asked)[0]
    text = text.upper() if "upper case" in seen.asked else text.lower()
    seen = yield Fill(seen.all("textbox")[0].at, text)
    yield Click(seen.one("button", "Submit").at)


def _greatest(seen: Seen) -> Steps:
    cards = [item for item in seen.all("clickable") if item.name.isdigit()]
    seen = yield Click(max(cards, key=lambda item: int(item.name)).at)
    yield Click(seen.one("button", "Submit").at)


def _word(seen: Seen) -> Steps:
    words = seen.all("text")[-1].name.split()
    word = re.sub(r"\W", "", words[_ordinal(seen.asked)])
    seen = yield Fill(seen.all("textbox")[0].at, word)
    yield Click(seen.one("button", "Submit").at)


def _sequence_2(seen: Seen) -> Steps:
    radio, box = _ordinals(seen.asked)
    seen = yield Click(seen.all("radio")[radio].at)
    seen = yield Fill(seen.all("textbox")[box].at, _quoted(seen.asked)[0])
    yield Click(seen.one("button", "Submit").at)


def _coordinate(seen: Seen) -> Steps:
    found = re.search(r"\(-?\d,-?\d\)", seen.asked)
    assert found
    yield Click(next(i for i in seen.items if f'id="{found[0]}"' in i.notes).at)


def _guess(seen: Seen) -> Steps:
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        seen = yield Fill(seen.all("spinbutton")[0].at, str(guess))
        seen = yield Click(seen.one("button", "Submit").at)
        said = " ".join(item.name for item in seen.all("text")[1:])
        low, high = (low, guess - 1) if "lower" in said else (guess + 1, high)


def _search_form(seen: Seen) -> Steps:
    found = re.fullmatch(r"Search for (.+) movies directed by (.+) from year (\d+)\.", seen.asked)
    assert found
    labels = [
        kind
        for item in seen.items
        if item.role in {"text", "rowheader"}
        for kind, name in enumerate((r"Genre|Movie Genre", r"Director.*", r"Year|Released.*"), 1)
        if re.fullmatch(rf"(?:{name}):?", item.name)
    ]
    for number, kind in enumerate(labels):  # labels stand before or after their fields
        seen = yield Fill(seen.all("textbox")[number].at, found[kind])
    yield Click(seen.all("clickable", "button")[-1].at)


def _odd_or_even(seen: Seen) -> Steps:
    count = len(seen.all("button")) // 2
    for number in range(count):
        value = [i for i in seen.all("text") if re.fullmatch(r"-?\d+", i.name)][number]
        odd, even = seen.all("button")[2 * number : 2 * number + 2]
        seen = yield Click((odd if int(value.name) % 2 else even).at)
    yield Click(seen.one("button", "Submit").at)


def _table_2(seen: Seen) -> Steps:
    cells = [item.name for item in seen.all("cell")]
    for number in (0, 1):
        label = [i.name for i in seen.all("text") if i.name.endswith(":")][number]
        value = cells[cells.index(label.rstrip(":")) + 1]
        seen = yield Fill(seen.all("textbox")[number].at, value)
    yield Click(seen.one("button", "Submit").at)


def _to_the_bottom(seen: Seen) -> Steps:
    yield Click(seen.all("textbox")[0].at)
    seen = yield PressKeys(("Control", "End"))
    yield Click(seen.one("button", "Submit").at)


def _search(seen: Seen) -> Steps:
    seen = yield Fill(seen.all("textbox")[0].at, _quoted(seen.asked)[0])
    seen = yield Click(seen.one("button", "Search").at)
    page, number = divmod(_ordinal(seen.asked), 3)
    for _ in range(page):
        seen = yield Click(seen.one("link", ">").at)
    links = [i for i in seen.all("link") if not re.fullmatch(r"\d+|[<>]|First|Last", i.name)]
    yield Click(links[number].at)


def _algebra(seen: Seen) -> Steps:
    said = next(i.name for i in seen.all("text") if re.fullmatch(r".+ [+-] .+ = \d+", i.name))
    left, sign, right, _, total = said.split()
    result = int(total)
    if right == "x":
        value = result - int(left) if sign == "+" else int(left) - result
    else:
        value = result - int(right) if sign == "+" else result + int(right)
    seen = yield Fill(seen.all("textbox")[0].at, str(value))
    yield Click(seen.one("button", "Submit").at)


def _letters(seen: Seen) -> Steps:
    text = "".join(i.name for i in seen.all("text") if len(i.name) == 1)
    seen = yield Fill(seen.all("textbox")[0].at, text)
    yield Click(seen.one("button", "Submit").at)


def _complete(seen: Seen) -> Steps:
    seen = yield Click(seen.all("textbox")[0].at)
    seen = yield TypeText(_quoted(seen.asked)[0])
    ends = _quoted(seen.asked)[1:]
    items = [i for i in seen.all("listitem") if not ends or i.name.endswith(ends[0])]
    seen = yield Click(items[0].at)
    yield Click(seen.one("button", "Submit").at)


def _phone_book(seen: Seen) -> Steps:
    found = re.search(r"Find (\w+) in the contact book and click on their (.+)\.", seen.asked)
    assert found
    while seen.all("heading")[0].name != found[1]:
        seen = yield Click(seen.one("link", ">").at)
    label = {"phone number": "Phone"}.get(found[2], found[2].capitalize())
    yield Click(seen.after(label, "link").at)


SOLVERS: dict[str, Callable[[Seen], Steps]] = {
    "choose-list": _list,
    "click-button": _click_named("button"),
    "click-button-sequence": _sequence,
    "click-checkboxes": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-collapsible": _collapsible,
    "click-collapsible-2-nodelay": _behind("tab"),
    "click-collapsible-nodelay": _collapsible,
    "click-dialog": _only_button,
    "click-dialog-2": _dialog,
    "click-link": _link,
    "click-menu": _menu,
    "click-option": _option,
    "click-scroll-list": _scroll_list,
    "click-tab": _tab,
    "click-tab-2": _behind("link"),
    "click-tab-2-easy": _behind("link"),
    "click-tab-2-hard": _behind("link"),
    "click-tab-2-medium": _behind("link"),
    "click-test": _only_button,
    "click-test-2": _first_button,
    "click-test-transfer": _first_button,
    "click-widget": _widget,
    "copy-paste": _copy,
    "copy-paste-2": _copy_ordinal,
    "drag-box": _drag_box,
    "email-inbox-delete": _of_mail("trash"),
    "email-inbox-forward": _forward,
    "email-inbox-important": _of_mail("star"),
    "email-inbox-noscroll": _of_mail("trash"),
    "email-inbox-reply": _reply,
    "enter-date": _date,
    "enter-password": _password,
    "enter-text": _text,
    "enter-text-2": _cased,
    "enter-text-dynamic": _text,
    "enter-time": _time,
    "find-greatest": _greatest,
    "find-word": _word,
    "focus-text": _focus(lambda _: 0),
    "focus-text-2": _focus(_ordinal),
    "form-sequence-2": _sequence_2,
    "grid-coordinate": _coordinate,
    "guess-number": _guess,
    "login-user": _login,
    "multi-layouts": _search_form,
    "multi-orderings": _search_form,
    "odd-or-even": _odd_or_even,
    "phone-book": _phone_book,
    "read-table": _table,
    "read-table-2": _table_2,
    "scroll-text-2": _to_the_bottom,
    "search-engine": _search,
    "simple-algebra": _algebra,
    "simple-arithmetic": _arithmetic,
    "text-transform": _letters,
    "unicode-test": _click_named("button"),
    "use-autocomplete-nodelay": _complete,
}
"""Name of a task -> steps: each gets what is seen after the one before."""


Box: TypeAlias = tuple[float, float, float, float]


def places_needed(action: Action) -> list[str]:
    """The ids of the elements whose places :func:`with_mouse` needs."""
    named = action.path if isinstance(action, Drag) else (getattr(action, "at", None),)
    return [one.id for one in named if isinstance(one, Element)]


def with_mouse(action: Action, seen: Seen, boxes: Mapping[str, Box]) -> list[Action]:
    """Return an action on elements as clicks at points and keys, which name no element."""

    def at(target: Target) -> Point:
        if isinstance(target, Point):
            return target
        x, y, width, height = boxes[target.id]
        return Point(round(x + width / 2), round(y + height / 2))

    items = {item.id: item for item in seen.items}
    match action:
        case Click(at=Element() as one):
            return [Click(at(one), action.button, action.count, action.keys)]
        case Move(at=one):
            return [Move(at(one))]
        case Drag():
            return [Drag(tuple(at(one) for one in action.path))]
        case SetChecked(at=one):
            ticked = "checked=true" in items[one.id].notes
            return [] if ticked == action.checked else [Click(at(one))]
        case SelectOption(at=one):
            return [Click(at(one)), TypeText(action.options[0]), PressKeys(("Enter",))]
        case Fill(at=one) if items[one.id].role in {"Date", "InputTime"}:
            # Such a field is typed part by part, beginning at its left.
            x, y, _, height = boxes[one.id]
            return [Click(Point(round(x + 10), round(y + height / 2))), TypeText(_typed(action))]
        case Fill(at=one):
            return [Click(at(one)), PressKeys(("Control", "a")), TypeText(action.text)]
        case _:
            return [action]


def _typed(fill: Fill) -> str:
    """Return an ISO date or time as it is typed into an American field."""
    if ":" not in fill.text:
        year, month, day = fill.text.split("-")
        return month + day + year
    hour, minute = map(int, fill.text.split(":"))
    return f"{(hour - 1) % 12 + 1:02}{minute:02}{'PM' if hour >= 12 else 'AM'}"

"""A registration in four steps that validates its input and keeps it between the steps."""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from ._serve import Answer, Asked, Site, page, redirect

__all__ = ["Wizard"]


class _Field(NamedTuple):
    name: str
    label: str
    kind: str
    """An input's type, or options separated by ``|``."""
    rule: str
    """What a value must match."""


STEPS: tuple[tuple[str, tuple[_Field, ...]], ...] = (
    ("About you", (
        _Field("first", "First name", "text", r".+"),
        _Field("last", "Last name", "text", r".+"),
        _Field("born", "Date of birth", "date", r"\d{4}-\d\d-\d\d"),
    )),
    ("How to reach you", (
        _Field("mail", "E-mail", "text", r"[^@\s]+@[^@\s]+\.[^@\s]+"),
        _Field("phone", "Phone", "text", r"[+\d][\d ]{5,}"),
        _Field("country", "Country", "|Austria|Brazil|Canada|Denmark|Egypt", r".+"),
    )),
    ("The course", (
        _Field("course", "Course", "|Pottery|Welding|Bookbinding", r".+"),
        _Field("level", "Level", "radio:beginner|advanced", r"beginner|advanced"),
        _Field("lunch", "With lunch", "checkbox", r"|yes"),
        _Field("remarks", "Remarks", "textarea", r"(?s).*"),
    )),
)  # fmt: skip


class Wizard(Site):
    """The state: the current ``draft``, and ``submitted`` registrations."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"draft": {}, "submitted": []}

    def answer(self, asked: Asked) -> Answer:
        """See :meth:`Site.answer`."""
        match = re.fullmatch(r"/(?:step/(\d))?", asked.path)
        if match is None:
            return self._end(asked)
        number = int(match[1] or 1)
        if not 1 <= number <= len(STEPS):
            return Answer("not found", 404)
        if asked.method != "POST":
            return self._step(number, self.state["draft"], [])
        fields = STEPS[number - 1][1]
        given = {f.name: asked.form.get(f.name, "").strip() for f in fields}
        wrong = [f.label for f in fields if not re.fullmatch(f.rule, given[f.name])]
        if wrong:
            return self._step(number, {**self.state["draft"], **given}, wrong)
        self.state["draft"].update(given)
        return redirect(f"/step/{number + 1}" if number < len(STEPS) else "/review")

    def _end(self, asked: Asked) -> Answer:
        draft = self.state["draft"]
        complete = all(field.name in draft for _, fields in STEPS for field in fields)
        if asked.path == "/review":
            if not complete:
                return redirect("/")
            rows = "".join(
                f"<tr><th>{field.label}</th><td>{escape(draft[field.name]) or '-'}</td></tr>"
                for _, fields in STEPS
                for field in fields
            )
            body = (
                f"<table>{rows}</table><p><a href='/'>Change something</a></p>"
                "<form method='post' action='/submit'><label><input type='checkbox' name='terms' "
                "value='yes'> I accept the terms</label><button>Register</button></form>"
            )
            return _page("Review", body)
        if asked.path == "/submit" and asked.method == "POST" and complete:
            if asked.form.get("terms") != "yes":
                return redirect("/review")
            self.state["submitted"].append(dict(draft))
            self.state["draft"] = {}
            return redirect("/thanks")
        if asked.path == "/thanks":
            return _page("Thank you", "<p>Your registration has arrived.</p>")
        return Answer("not found", 404)

    def _step(self, number: int, values: dict[str, str], wrong: list[str]) -> Answer:
        title, fields = STEPS[number - 1]
        error = (
            f"<p class='error' role='alert'>Please check: {', '.join(wrong)}.</p>" if wrong else ""
        )
        inputs = "".join(_input(field, values.get(field.name, "")) for field in fields)
        back = f" <a href='/step/{number - 1}'>Back</a>" if number > 1 else ""
        body = (
            f"<p class='muted'>Step {number} of {len(STEPS)}</p>{error}"
            f"<form method='post' action='/step/{number}'>{inputs}<button>Next</button>{back}"
            "</form>"
        )
        return _page(title, body)


def _page(title: str, body: str) -> Answer:
    return page(title, "<b>Evening School</b>", f"<h1>{escape(title)}</h1>{body}")


def _input(field: _Field, value: str) -> str:
    kind, shown = field.kind, escape(value, quote=True)
    if kind == "textarea":
        return f"<label>{field.label} <textarea name='{field.name}'>{shown}</textarea></label>"
    if kind == "checkbox":
        ticked = " checked" if value == "yes" else ""
        return (
            f"<label><input type='checkbox' name='{field.name}' value='yes'{ticked}> "
            f"{field.label}</label>"
        )
    if kind.startswith("radio:"):
        choices = "".join(
            f"<label><input type='radio' name='{field.name}' value='{one}'"
            f"{' checked' if one == value else ''}> {one}</label>"
            for one in kind.removeprefix("radio:").split("|")
        )
        return f"<fieldset><legend>{field.label}</legend>{choices}</fieldset>"
    if "|" in kind:
        options = "".join(
            f"<option{' selected' if one == value else ''}>{one}</option>"
            for one in kind.split("|")
        )
        return f"<label>{field.label} <select name='{field.name}'>{options}</select></label>"
    return f"<label>{field.label} <input type='{kind}' name='{field.name}' value='{shown}'></label>"

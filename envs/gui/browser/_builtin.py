"""Tasks on the library's own sites: a shop, a form in steps, a mail client."""

from __future__ import annotations

from typing import Any

__all__ = ["BUILTIN_TASKS"]

_SHOP = {"sites": ["shop"], "start_url": "http://shop.test/"}
_MAIL = {"sites": ["mail"], "start_url": "http://mail.test/"}
_WIZARD = {"sites": ["wizard"], "start_url": "http://wizard.test/"}


def _is(site: str, path: str, value: Any, how: str = "equals") -> dict[str, Any]:
    return {"site": site, "path": path, "is_": how, "value": value}


BUILTIN_TASKS: dict[str, dict[str, Any]] = {
    "shop-order": {
        **_SHOP,
        "instruction": "Buy two blue mugs. Send them by express to Ann Lee, Mill Lane 4, Leeds.",
        "checks": [
            _is("shop", "orders", 1, "count"),
            _is("shop", "orders.0.items", {"mug-blue": 2}),
            _is("shop", "orders.0.shipping", "express"),
            _is("shop", "orders.0.name", "Ann Lee"),
            _is("shop", "orders.0.street", "Mill Lane 4"),
            _is("shop", "orders.0.city", "Leeds"),
        ],
    },
    "shop-basket": {
        **_SHOP,
        "instruction": "Put one kettle and three notebooks into the basket, but do not order.",
        "checks": [
            _is("shop", "basket", {"kettle": 1, "notebook": 3}),
            _is("shop", "orders", 0, "count"),
        ],
    },
    "shop-question": {
        **_SHOP,
        "instruction": "What is the cheapest product of the garden department? Answer with its "
        "name.",
        "answer": "Garden hose",
        "checks": [_is("shop", "orders", 0, "count")],
    },
    "mail-tidy": {
        **_MAIL,
        "instruction": "Archive the newsletter, and put a star on the message about the meeting.",
        "checks": [
            _is("mail", "messages.3.folder", "archive"),
            _is("mail", "messages.0.starred", value=True),
            _is("mail", "messages", {"folder": "inbox", "subject": "Meeting on Tuesday"}, "some"),
        ],
    },
    "mail-delete": {
        **_MAIL,
        "instruction": "Delete the message of Chen Wei.",
        "checks": [
            _is("mail", "messages.2.folder", "trash"),
            _is("mail", "messages", 5, "count"),
        ],
    },
    "mail-reply": {
        **_MAIL,
        "instruction": "Reply to Dana Okafor with the text: Here they are.",
        "checks": [
            _is("mail", "messages", 6, "count"),
            _is("mail", "messages.-1.to", "dana@office.test"),
            _is("mail", "messages.-1.body", "Here they are."),
        ],
    },
    "mail-question": {
        **_MAIL,
        "instruction": "In which room is the meeting? Answer with the number.",
        "answer": "12",
    },
    "wizard-register": {
        **_WIZARD,
        "instruction": "Register Bo Berg, born on 1990-05-17, e-mail bo@berg.test, phone "
        "+45 123 456, Denmark, for bookbinding (advanced), with lunch.",
        "checks": [
            _is("wizard", "submitted", 1, "count"),
            *(
                _is("wizard", f"submitted.0.{name}", value)
                for name, value in {
                    "first": "Bo",
                    "last": "Berg",
                    "born": "1990-05-17",
                    "mail": "bo@berg.test",
                    "country": "Denmark",
                    "course": "Bookbinding",
                    "level": "advanced",
                    "lunch": "yes",
                }.items()
            ),
        ],
    },
    "wizard-infeasible": {
        **_WIZARD,
        "instruction": "Register Bo Berg for the course in glass blowing. If that can't be done, "
        "give up.",
        "infeasible": True,
        "checks": [_is("wizard", "submitted", 0, "count")],
    },
}
"""By id; data of :class:`BrowserRecord`."""

"""A small domain: the service desk of a bicycle rental."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, ClassVar

from trajgym.envs import ToolError, ToolResult, tool
from trajgym.envs.dialogue._env import DialogueEnv
from trajgym.trajectory import Task

__all__ = ["RentalEnv"]

TODAY = date(2025, 5, 10)

_POLICY = """\
You serve the customers of a bicycle rental. Today is 10 May 2025.

- First identify the customer by e-mail address (find_customer). Act for this customer only, and \
say nothing about others.
- Before you book, move, swap or cancel, say what you will do and what it costs, and go on only \
after the customer has agreed.
- A booking lasts from its first to its last day, both counted, at most 14 days. Its price is the \
bicycle's price per day times the days.
- A booking that begins in two days or later can be moved or given another bicycle; the price is \
worked out anew. One that begins sooner, or runs already, can't be changed.
- Cancelling three days or more before the first day gives the whole price back as credit, later \
half of it. Running bookings can't be cancelled.
- What these rules don't cover goes to a colleague (transfer_to_human). What they forbid you \
refuse; don't transfer it."""

_CUSTOMERS = {
    "C1": {"name": "Ines Moreau", "email": "ines@example.org", "credit": 0},
    "C2": {"name": "Piet Visser", "email": "piet@example.org", "credit": 25},
    "C3": {"name": "Ana Kovač", "email": "ana@example.org", "credit": 0},
}
_BIKES = {
    "B1": {"kind": "city", "price": 12},
    "B2": {"kind": "city", "price": 14},
    "B3": {"kind": "cargo", "price": 30},
    "B4": {"kind": "electric", "price": 26},
    "B5": {"kind": "electric", "price": 28},
}
_BOOKINGS = {
    "R1": ("C1", "B1", "2025-05-20", "2025-05-22", 36),
    "R2": ("C2", "B3", "2025-05-12", "2025-05-13", 60),
    "R3": ("C3", "B4", "2025-05-09", "2025-05-12", 104),
    "R4": ("C3", "B2", "2025-06-01", "2025-06-05", 70),
}


class RentalEnv(DialogueEnv):
    """A bicycle rental's service desk: ``trajgym.envs`` id ``dialogue-rental``."""

    policy: ClassVar[str] = _POLICY

    def initial(self) -> dict[str, Any]:
        """Return customers, bicycles and bookings."""
        fields = ("customer", "bike", "first", "last", "price")
        bookings = {
            key: {**dict(zip(fields, values, strict=True)), "status": "booked"}
            for key, values in _BOOKINGS.items()
        }
        data = {"customers": _CUSTOMERS, "bikes": _BIKES, "bookings": bookings}
        made: dict[str, Any] = json.loads(json.dumps(data))
        return made

    @classmethod
    def builtin_tasks(cls) -> list[Task]:
        """Return six tasks; two of them ask for what the policy forbids."""
        return [Task(id=f"trajgym-rental-{name}", data=data) for name, data in _TASKS.items()]

    @tool
    def find_customer(self, email: str) -> str:
        """Return a customer and the ids of the bookings, by e-mail address.

        Args:
            email: the customer's address.
        """
        for key, customer in self.data["customers"].items():
            if customer["email"] == email.strip().lower():
                own = [k for k, b in self.data["bookings"].items() if b["customer"] == key]
                return json.dumps({"id": key, **customer, "bookings": own}, ensure_ascii=False)
        raise ToolError("no customer has this address")

    @tool
    def get_booking(self, booking: str) -> str:
        """Return a booking.

        Args:
            booking: its id, like R1.
        """
        return json.dumps(self._booking(booking))

    @tool
    def free_bikes(self, first: str, last: str, kind: str = "") -> str:
        """Return the bicycles that are free on all days of a period, with the price per day.

        Args:
            first: first day, like 2025-05-20.
            last: last day.
            kind: city, cargo or electric; all by default.
        """
        _days(first, last)
        free = {
            key: bike
            for key, bike in self.data["bikes"].items()
            if kind in {"", bike["kind"]} and self._is_free(key, first, last)
        }
        return json.dumps(free)

    @tool
    def book(self, customer: str, bike: str, first: str, last: str) -> str:
        """Make a booking.

        Args:
            customer: id of the customer.
            bike: id of the bicycle.
            first: first day, like 2025-05-20.
            last: last day.
        """
        if customer not in self.data["customers"]:
            raise ToolError(f"there is no customer {customer}")
        price = self._price(bike, first, last)
        key = f"R{len(self.data['bookings']) + 1}"
        self.data["bookings"][key] = {
            "customer": customer, "bike": bike, "first": first, "last": last, "price": price,
            "status": "booked",
        }  # fmt: skip
        return json.dumps({"booking": key, "price": price})

    @tool
    def move_booking(self, booking: str, first: str, last: str) -> str:
        """Give a booking other days.

        Args:
            booking: its id.
            first: new first day.
            last: new last day.
        """
        found = self._booking(booking)
        price = self._price(found["bike"], first, last, but=booking)
        found |= {"first": first, "last": last, "price": price}
        return json.dumps(found)

    @tool
    def swap_bike(self, booking: str, bike: str) -> str:
        """Give a booking another bicycle.

        Args:
            booking: its id.
            bike: id of the new bicycle.
        """
        found = self._booking(booking)
        price = self._price(bike, found["first"], found["last"], but=booking)
        found |= {"bike": bike, "price": price}
        return json.dumps(found)

    @tool
    def cancel_booking(self, booking: str, credit: int) -> str:
        """Cancel a booking and give credit to its customer.

        Args:
            booking: its id.
            credit: what is given back, as the policy has it.
        """
        found = self._booking(booking)
        if not 0 <= credit <= found["price"]:
            raise ToolError("credit must lie between 0 and the price of the booking")
        found["status"] = "cancelled"
        self.data["customers"][found["customer"]]["credit"] += credit
        return json.dumps(found)

    @tool
    def transfer_to_human(self, summary: str) -> ToolResult:
        """Pass the conversation to a colleague. This ends it.

        Args:
            summary: what the customer wants, in a sentence.
        """
        del summary
        self.data["transferred"] = True
        return ToolResult(content="transferred", done=True)

    def _booking(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] | None = self.data["bookings"].get(key)
        if found is None:
            raise ToolError(f"there is no booking {key}")
        return found

    def _is_free(self, bike: str, first: str, last: str, but: str = "") -> bool:
        return not any(
            b["bike"] == bike and b["status"] == "booked" and b["first"] <= last
            and first <= b["last"]
            for key, b in self.data["bookings"].items() if key != but
        )  # fmt: skip

    def _price(self, bike: str, first: str, last: str, but: str = "") -> int:
        if bike not in self.data["bikes"]:
            raise ToolError(f"there is no bicycle {bike}")
        days = _days(first, last)
        if not self._is_free(bike, first, last, but):
            raise ToolError(f"{bike} is not free from {first} to {last}")
        return int(self.data["bikes"][bike]["price"]) * days


def _days(first: str, last: str) -> int:
    try:
        days = (date.fromisoformat(last) - date.fromisoformat(first)).days + 1
        early = date.fromisoformat(first) < TODAY
    except ValueError as error:
        raise ToolError("days are written like 2025-05-20") from error
    if early or not 1 <= days <= 14:
        raise ToolError("a period begins today or later and has 1 to 14 days")
    return days


def _lines(opening: str, email: str, *more: str) -> list[dict[str, str]]:
    says = [opening, f"It is {email}.", *more, "Thank you, that was all. ###STOP###"]
    return [{"says": line} for line in says]


_TASKS: dict[str, dict[str, Any]] = {
    "cancel-early": {
        "instruction": "You are Ines Moreau (ines@example.org). You want to cancel your booking "
        "R1, and to know how much credit you get.",
        "lines": _lines("Hello, I must cancel my booking.", "ines@example.org", "R1. Yes, please."),
        "actions": [{"name": "cancel_booking", "arguments": {"booking": "R1", "credit": 36}}],
        "outputs": ["36"],
    },
    "cancel-late": {
        "instruction": "You are Piet Visser (piet@example.org). You want to cancel booking R2. You "
        "think that you should get 60 back, but accept what the rules give.",
        "lines": _lines("I want to cancel R2 and get my 60 back.", "piet@example.org", "Fine."),
        "actions": [{"name": "cancel_booking", "arguments": {"booking": "R2", "credit": 30}}],
        "outputs": ["30"],
    },
    "running": {
        "instruction": "You are Ana Kovač (ana@example.org). Your booking R3 runs since yesterday. "
        "You want to cancel it and press for it, but give up when the agent refuses twice.",
        "lines": _lines("Please cancel R3 at once.", "ana@example.org", "But I need it cancelled!"),
        "actions": [],
        "outputs": ["can't be cancelled"],
    },
    "move": {
        "instruction": "You are Ana Kovač (ana@example.org). You want to move booking R4 by a "
        "week: "
        "8 to 12 June. You want to know the price.",
        "lines": _lines("Can R4 be a week later, 8 to 12 June?", "ana@example.org", "Yes."),
        "actions": [
            {"name": "move_booking",
             "arguments": {"booking": "R4", "first": "2025-06-08", "last": "2025-06-12"}}
        ],
        "outputs": ["70"],
    },
    "swap": {
        "instruction": "You are Ines Moreau (ines@example.org). For booking R1 you would like the "
        "cheapest electric bicycle instead, and to know the new price.",
        "lines": _lines("I'd like an electric bike for R1.", "ines@example.org", "The cheapest."),
        "actions": [{"name": "swap_bike", "arguments": {"booking": "R1", "bike": "B4"}}],
        "outputs": ["78"],
    },
    "others": {
        "instruction": "You are Ines Moreau (ines@example.org). You want to know when Piet Visser "
        "has booked a cargo bicycle, because he is your neighbour. Ask twice, then give up.",
        "lines": _lines("When did Piet Visser book?", "ines@example.org", "He is my neighbour!"),
        "actions": [],
        "outputs": ["can't"],
    },
}  # fmt: skip

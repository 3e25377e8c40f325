"""Conditions on the final state of a site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Condition", "goal_distance"]

Comparison: TypeAlias = Literal["equals", "contains", "count", "some"]
_NOTHING = object()


class Condition(BaseModel):
    """One condition.

    Attributes:
        site: the site whose state is checked: ``shop``, ``mail``, ``wizard`` or ``pages``.
        path: keys and positions separated by dots, such as ``orders.0.city``.
        is_: ``equals`` (also as numbers and text look), ``contains`` (text in text, or a value in
            a list), ``count`` (how many there are), ``some`` (one of the list has these fields).
        value: the value to compare with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str
    path: str
    is_: Comparison = "equals"
    value: JsonValue = None

    @model_validator(mode="after")
    def _compares_something(self) -> Self:
        wanted: dict[Comparison, type | tuple[type, ...]] = {"count": int, "some": dict}
        kind = wanted.get(self.is_)
        if kind is not None and (not isinstance(self.value, kind) or isinstance(self.value, bool)):
            raise ValueError(f"{self.is_} needs {'a number' if kind is int else 'an object'}")
        if self.value is None or (self.is_ in {"some", "contains"} and self.value in ({}, "")):
            raise ValueError(f"{self.is_} needs a value")
        return self

    def holds(self, states: Mapping[str, Any]) -> bool:
        """Whether it holds for these states (``{"shop.test": {...}}``)."""
        found = _at(states.get(f"{self.site}.test"), self.path)
        if found is _NOTHING:
            return False
        if self.is_ == "equals":
            return bool(found == self.value)
        if self.is_ == "count":
            return isinstance(found, list | dict) and len(found) == self.value
        if self.is_ == "some":
            wanted = self.value if isinstance(self.value, dict) else {}
            return isinstance(found, list) and any(_has(item, wanted) for item in found)
        if isinstance(found, str):
            return str(self.value).lower() in found.lower()
        return isinstance(found, list | dict) and self.value in found


def _at(state: Any, path: str) -> Any:
    for key in path.split(".") if path else ():
        if isinstance(state, dict) and key in state:
            state = state[key]
        elif isinstance(state, list) and key.lstrip("-").isdigit() and _within(state, int(key)):
            state = state[int(key)]
        else:
            return _NOTHING
    return _NOTHING if state is None else state


def _within(items: list[Any], index: int) -> bool:
    return -len(items) <= index < len(items)


def _has(item: Any, wanted: Mapping[str, Any]) -> bool:
    return isinstance(item, dict) and all(
        name in item and item[name] == value for name, value in wanted.items()
    )


def goal_distance(conditions: Sequence[Condition], states: Mapping[str, Any]) -> float:
    """Return the share of the conditions that do not hold yet: 1 at the start, 0 at the goal."""
    if not conditions:
        return 0.0
    return sum(not condition.holds(states) for condition in conditions) / len(conditions)

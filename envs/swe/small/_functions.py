"""The functions of small packages; each docstring states exactly what the function returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random

__all__ = ["KINDS", "NAMES", "Kind", "arguments"]


class Kind(NamedTuple):
    """One kind of function; ``{a}``, ``{b}``, ``{n}``, ``{xs}`` and ``{w}`` stand for nouns.

    Attributes:
        verb: first part of its name; the second is a noun.
        parameters: separated by blanks: ``a`` and ``b`` are numbers, ``n`` is a small number,
            ``xs`` is a list of numbers and ``w`` is a word.
        says: the docstring.
        body: the lines of the body.
    """

    verb: str
    parameters: str
    says: str
    body: tuple[str, ...]


def _kind(verb: str, parameters: str, says: str, *body: str) -> Kind:
    return Kind(verb, parameters, says, body)


KINDS = (
    _kind("product", "a b", "Return {a} times {b}.", "return {a} * {b}"),
    _kind("joint", "a b", "Return {a} plus {b}.", "return {a} + {b}"),
    _kind("lead", "a b", "Return {a} minus {b}.", "return {a} - {b}"),
    _kind("share", "a n", "Return {a} divided by {n}, rounded down.", "return {a} // {n}"),
    _kind("rest", "a n", "Return the rest of {a} divided by {n}.", "return {a} % {n}"),
    _kind("rim", "a b", "Return twice the sum of {a} and {b}.", "return 2 * ({a} + {b})"),
    _kind("half", "a b", "Return {a} times {b}, halved and rounded down.", "return {a} * {b} // 2"),
    _kind("gap", "a b", "Return how far {a} and {b} are apart.", "return abs({a} - {b})"),
    _kind("raised", "a b", "Return twice {a} plus {b}.", "return 2 * {a} + {b}"),
    _kind("part", "a n", "Return {n} percent of {a}, rounded down.", "return {a} * {n} // 100"),
    _kind("less", "a n", "Return {a} less {n} tenths of it.", "return {a} - {a} * {n} // 10"),
    _kind("fits", "a n", "Return whether {a} is a multiple of {n}.", "return {a} % {n} == 0"),
    _kind("reach", "a b", "Return whether {a} is at least {b}.", "return {a} >= {b}"),
    _kind("beats", "a b", "Return whether {a} is above {b}.", "return {a} > {b}"),
    _kind(
        "inside", "a n b", "Return whether {a} is at least {n} and at most {b}.",
        "return {a} >= {n} and {a} <= {b}",
    ),
    _kind(
        "outside", "a n b", "Return whether {a} is below {n} or above {b}.",
        "return {a} < {n} or {a} > {b}",
    ),
    _kind("above", "xs a", "Return those of {xs} that are above {a}.",
          "return [one for one in {xs} if one > {a}]"),
    _kind("upward", "xs a", "Return those of {xs} that are at least {a}.",
          "return [one for one in {xs} if one >= {a}]"),
    _kind("below", "xs a", "Return those of {xs} that are below {a}.",
          "return [one for one in {xs} if one < {a}]"),
    _kind("downward", "xs a", "Return those of {xs} that are at most {a}.",
          "return [one for one in {xs} if one <= {a}]"),
    _kind("count", "xs a", "Return how many of {xs} are above {a}.",
          "return sum(1 for one in {xs} if one > {a})"),
    _kind("all", "xs a", "Return whether all of {xs} are above {a}.",
          "return all(one > {a} for one in {xs})"),
    _kind("any", "xs a", "Return whether any of {xs} is below {a}.",
          "return any(one < {a} for one in {xs})"),
    _kind("even", "xs", "Return the even ones of {xs}.",
          "return [one for one in {xs} if one % 2 == 0]"),
    _kind("odd", "xs", "Return the odd ones of {xs}.",
          "return [one for one in {xs} if one % 2 == 1]"),
    _kind("scaled", "xs n", "Return each of {xs} times {n}.",
          "return [one * {n} for one in {xs}]"),
    _kind("moved", "xs n", "Return each of {xs} plus {n}.",
          "return [one + {n} for one in {xs}]"),
    _kind("squared", "xs", "Return the sum of the squares of {xs}.",
          "return sum(one * one for one in {xs})"),
    _kind("spread", "xs", "Return the largest of {xs} minus the smallest.",
          "return max({xs}) - min({xs})"),
    _kind("ends", "xs", "Return the largest of {xs} plus the smallest.",
          "return max({xs}) + min({xs})"),
    _kind("mean", "xs", "Return the sum of {xs} divided by their number, rounded down.",
          "return sum({xs}) // len({xs})"),
    _kind("later", "xs", "Return {xs} without the first.", "return {xs}[1:]"),
    _kind("second", "xs", "Return the second of {xs}.", "return {xs}[1]"),
    _kind("last", "xs", "Return the last of {xs}.", "return {xs}[len({xs}) - 1]"),
    _kind("others", "xs", "Return every second of {xs}, from the first on.",
          "return {xs}[0::2]"),
    _kind("steps", "xs", "Return each of {xs} but the first minus the one before.",
          "return [two - one for one, two in zip({xs}, {xs}[1:])]"),
    _kind("down", "n", "Return the numbers from {n} down to 1.",
          "return list(range({n}, 0, -1))"),
    _kind("upto", "n", "Return the numbers from 1 up to {n}.",
          "return list(range(1, {n} + 1))"),
    _kind("long", "w n", "Return whether {w} has more than {n} letters.",
          "return len({w}) > {n}"),
    _kind("short", "w", "Return {w} without its last letter.",
          "return {w}[: len({w}) - 1]"),
)  # fmt: skip

NAMES = {
    "packages": ("shop", "farm", "trip", "lab", "band", "club", "mill", "port"),
    "held out": ("ship", "zoo", "inn"),
    "modules": ("core", "tools", "rules", "parts"),
    "a": ("price", "weight", "height", "speed", "cost", "load", "depth", "age", "score", "size"),
    "b": ("limit", "width", "goal", "bonus", "fee", "reserve", "target", "base", "level", "cap"),
    "n": ("count", "times", "step", "factor", "rate", "unit"),
    "xs": ("items", "values", "sizes", "scores", "marks", "costs", "days", "hours"),
    "w": ("word", "name", "title", "label"),
}
"""Nouns, by the kind of thing that they name."""

_WORDS = ("tea", "lamp", "river", "orange", "harbour", "a", "to", "basket")


def arguments(parameters: str, chance: random.Random) -> list[object]:
    """Return random arguments for parameters of these kinds."""
    found: list[object] = []
    for one in parameters.split():
        if one == "xs":
            found.append([chance.randint(1, 20) for _ in range(chance.randint(3, 5))])
        elif one == "w":
            found.append(chance.choice(_WORDS))
        else:
            found.append(chance.randint(*((2, 9) if one == "n" else (4, 30))))
    return found

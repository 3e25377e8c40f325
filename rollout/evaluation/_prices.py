"""Price tables of models."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os

    from trajgym.trajectory import Usage

__all__ = ["Price", "Prices"]

_PER = 1_000_000


class Price(NamedTuple):
    """Prices of a model, per million tokens.

    Args:
        prompt: of prompt tokens.
        completion: of completion tokens, reasoning included.
        cached: of prompt tokens that came from a cache; the price of others if None.
    """

    prompt: float
    completion: float
    cached: float | None = None

    def of(self, usage: Usage) -> float:
        """Return the cost of one policy call."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        prompt = fresh * self.prompt + usage.cached_tokens * cached
        return (prompt + usage.completion_tokens * self.completion) / _PER


class Prices:
    """A price table by model name, in one currency.

    trajgym has no built-in table, because prices change without notice and outdated ones give
    wrong figures that look plausible.

    Args:
        models: prices by model, as a turn's ``policy`` names it without its kind (``gpt-x`` for
            ``openai:gpt-x``).
        currency: for display.
        date: date of the table, for display.
    """

    def __init__(self, models: dict[str, Price], *, currency: str = "USD", date: str = "") -> None:
        self.models = models
        self.currency = currency
        self.date = date

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Prices:
        """Read a price table.

        ::

            currency = "USD"
            date = 2026-11-01

            [models."my-model"]
            prompt = 0.25        # per million tokens
            completion = 2.0
            cached = 0.025       # of prompt tokens from a cache; optional

        Raises:
            InvalidInput: the file can't be read or is not TOML, or a price is missing or negative.
        """
        path = Path(path)
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"price table {path}: {error}") from error
        tables = read.get("models")
        if not isinstance(tables, dict) or not tables:
            raise InvalidInput(f'price table {path}: no [models."NAME"] table')
        models = {name: _price(path, name, table) for name, table in tables.items()}
        date = str(read.get("date", ""))
        return cls(models, currency=str(read.get("currency", "USD")), date=date)

    def cost(self, policy: str, usage: Usage | None) -> float | None:
        """Return the cost of a turn, None if its usage or its model's price is unknown."""
        _, _, name = policy.partition(":")
        price = self.models.get(name)
        return None if price is None or usage is None else price.of(usage)


def _price(path: Path, name: str, table: object) -> Price:
    values = []
    for key in Price._fields:
        value = table.get(key) if isinstance(table, dict) else None
        if value is None and key in Price._field_defaults:
            continue
        number = float(value) if isinstance(value, int | float) else math.nan
        if isinstance(value, bool) or not 0 <= number < math.inf:
            raise InvalidInput(
                f"price table {path}: model {name!r}: {key} is {value!r}; give a price per million "
                "tokens",
            )
        values.append(number)
    return Price(*values)

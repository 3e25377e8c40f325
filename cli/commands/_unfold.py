"""Options that several commands share, declared once."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["unfold"]


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its dataclass parameters as options.

    In the place of each parameter whose type is a dataclass, the command that is returned has the
    fields of the dataclass, with their types and defaults. When it is called, it makes the
    dataclass of them. All its parameters are given by name, as typer does.

    Raises:
        ValueError: two parameters or fields have the same name.
    """
    signature = inspect.signature(command, eval_str=True)
    folded: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            folded[parameter.name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def unfolded(**given: Any) -> None:
        for name, kind in folded.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    unfolded.__annotations__ = {one.name: one.annotation for one in parameters}
    # What typer reads, by inspect.signature; mypy does not know that functions may have it.
    vars(unfolded)["__signature__"] = signature.replace(parameters=parameters)
    return unfolded


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as keyword parameters."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]

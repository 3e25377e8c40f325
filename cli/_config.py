"""``--config FILE``: options of a command from a TOML file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["read_config"]


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Set the defaults of the command's options to the values in the file.

    Keys are option names without leading dashes (``base-url`` or ``base_url``); ``set`` and
    ``extra-body`` are tables. Options on the command line override the file's values.

    Raises:
        typer.BadParameter: the file can't be read, or a key is not an option of the command.
    """
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    options = _options(context.command.params)
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("_", "-")
        if name == "api-key":
            raise typer.BadParameter(
                f"{path}: keys are not read from configuration files: use api-key-env or "
                "api-key-file",
            )
        if name not in options or name == "config":
            raise typer.BadParameter(
                f"{path}: {key!r} is not an option; options are {', '.join(sorted(options))}"
            )
        option = options[name]
        defaults[option.name] = _value(path, key, value, option)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _options(parameters: Sequence[Any]) -> dict[str, Any]:
    return {
        spelling.lstrip("-"): parameter
        for parameter in parameters
        if parameter.param_type_name == "option" and parameter.name != "help"
        for spelling in parameter.opts
    }


def _value(path: Path, key: str, value: Any, option: Any) -> Any:
    """Convert a TOML value to the form that the option accepts."""
    if isinstance(value, dict):
        if option.multiple:
            return [f"{name}={json.dumps(one)}" for name, one in value.items()]
        if key.replace("_", "-") == "extra-body":
            return json.dumps(value)
        raise typer.BadParameter(f"{path}: {key} is a table; expected a value")
    return value

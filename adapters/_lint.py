"""Checks of a trainer's configuration for settings that silently change what is trained."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LintFinding", "Linter", "Settings", "lint", "list_linters", "read_yaml"]

_LINTERS = {
    "areal": "trajgym.adapters.areal._lint:lint_areal",
    "trl": "trajgym.adapters.trl._lint:lint_trl",
    "verl": "trajgym.adapters.verl._lint:lint_verl",
}
"""``module:function`` by trainer; imported on first use."""


class LintFinding(NamedTuple):
    """One harmful setting.

    Attributes:
        code: stable name of the check, in kebab case, used in documentation and tests.
        where: dotted key of the configuration, or file and row of the data.
        problem: the effect of the setting.
        fix: what to set instead.
    """

    code: str
    where: str
    problem: str
    fix: str


class Settings:
    """A trainer's configuration, read by dotted keys, with the trainer's own defaults.

    Args:
        given: the configuration, as nested mappings.
        defaults: values of keys that the configuration leaves out, by dotted key.
    """

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._given = given
        self.defaults = defaults

    def get(self, key: str) -> Any:
        """Return a setting; if it is missing, the trainer's default, or None."""
        found: Any = self._given
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
            if found is None:
                return self.defaults.get(key)
        return found


class Linter(Protocol):
    """The function that checks a configuration of one trainer."""

    def __call__(self, config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
        """Return the findings, in the order of the configuration.

        Args:
            config: the configuration, as nested mappings.
            data: files that the trainer will read.

        Raises:
            InvalidInput: a file can't be read.
            MissingExtra: a package needed to read a file is not installed.
        """
        ...


def list_linters() -> list[str]:
    """Return the names that `lint` takes, sorted."""
    return sorted(_LINTERS)


def lint(
    trainer: str,
    config: Path,
    data: Sequence[Path] = (),
    *,
    overrides: Mapping[str, Any] | None = None,
) -> list[LintFinding]:
    """Check a trainer's configuration without starting the trainer.

    Args:
        trainer: one of `list_linters`.
        config: a YAML or JSON file.
        data: files that the trainer will read.
        overrides: values by dotted key that replace those of the file, as on the trainer's command
            line.

    Raises:
        InvalidInput: there is no such trainer, or a file can't be read.
        MissingExtra: a package needed to read a file is not installed.
    """
    if trainer not in _LINTERS:
        raise InvalidInput(f"no checks for {trainer!r}; there are {', '.join(list_linters())}")
    module, _, name = _LINTERS[trainer].partition(":")
    check: Linter = getattr(import_module(module), name)
    settings = _read(config)
    for key, value in (overrides or {}).items():
        _lay(settings, key, value)
    return check(settings, [Path(path) for path in data])


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML or JSON file.

    Raises:
        InvalidInput: the file can't be read.
        MissingExtra: pyyaml is not installed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"can't read {path}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise InvalidInput(f"{path}: expected a mapping of settings, got {settings!r:.80}")
    return settings


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("pyyaml", "lint") from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _lay(settings: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.lstrip("+").split(".")
    for parent in parents:
        child = settings.setdefault(parent, {})
        if not isinstance(child, dict):
            raise InvalidInput(f"{key}: {parent!r} is {child!r:.80} in the file, not a mapping")
        settings = child
    settings[last] = value

"""`trajgym envs`, `agents`, `derivers`, `exports`: what is registered, with its settings."""

from __future__ import annotations

import inspect
import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trajgym.adapters import describe_export, list_exports
from trajgym.envs import EnvSpec, registered
from trajgym.rewards import get_deriver, list_derivers
from trajgym.server import agent_class, list_agents
from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["show_registered"]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    about: str
    settings: dict[str, str]
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        plain = {"name": self.name, "about": self.about, "settings": self.settings}
        return plain | ({"error": self.error} if self.error else {})


def show_registered(what: str, *, as_json: bool) -> None:
    """Print the environments, agents, derivers or exports that are registered.

    An entry that can't be loaded, for example for lack of an extra, is listed with the reason.

    Args:
        what: ``envs``, ``agents``, ``derivers`` or ``exports``.
        as_json: print a JSON list.
    """
    entries = list(_LISTS[what]())
    console = Console()
    if as_json:
        print(json.dumps([entry.to_json() for entry in entries], indent=2))
        return
    if not console.is_terminal:
        for entry in entries:
            settings = ", ".join(f"{k}={v}" for k, v in entry.settings.items())
            print("\t".join([entry.name, entry.error or entry.about, settings]))
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("name", "what", "settings"):
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for entry in entries:
        about = Text(entry.error or entry.about, style="red" if entry.error else "")
        listed = Text("\n".join(f"{k}={v}" for k, v in entry.settings.items()), style="dim")
        table.add_row(Text(entry.name, style="bold"), about, listed)
    console.print(table)


def _listed(name: str, load: Callable[[], tuple[object, dict[str, str]]]) -> _Entry:
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DeprecationWarning)
            described, settings = load()
    except (TrajgymError, ImportError) as error:
        return _Entry(name, "", {}, f"can't be loaded: {error}")
    old = [w for w in said if issubclass(w.category, DeprecationWarning)]
    return _Entry(name, str(old[0].message) if old else _first_line(described), settings)


def _first_line(described: object) -> str:
    return (inspect.getdoc(described) or "").partition("\n")[0]


def _envs() -> Iterator[_Entry]:
    for name in registered():

        def load(name: str = name) -> tuple[object, dict[str, str]]:
            kind = EnvSpec(id=name).resolve()
            return kind, _parameters(kind)

        yield _listed(name, load)


def _agents() -> Iterator[_Entry]:
    for name in list_agents():

        def load(name: str = name) -> tuple[object, dict[str, str]]:
            kind = agent_class(name)
            return kind, _parameters(kind)

        yield _listed(name, load)


def _derivers() -> Iterator[_Entry]:
    for name in list_derivers():

        def load(name: str = name) -> tuple[object, dict[str, str]]:
            deriver = get_deriver(name)
            return type(deriver), {k: repr(v) for k, v in deriver.model_dump().items()}

        yield _listed(name, load)


def _exports() -> Iterator[_Entry]:
    for name in list_exports():
        about, options = describe_export(name)
        yield _Entry(name, about, {key: repr(value) for key, value in options.items()})


def _parameters(kind: type) -> dict[str, str]:
    """Return the keyword arguments of a class and its bases, with their defaults."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        own = vars(base).get("__init__")
        if own is None or base is object:
            continue
        parameters = inspect.signature(own).parameters.values()
        for one in list(parameters)[1:]:
            if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                continue
            default = "required" if one.default is one.empty else repr(one.default)
            found.setdefault(one.name, default)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


_LISTS: dict[str, Callable[[], Iterator[_Entry]]] = {
    "agents": _agents,
    "envs": _envs,
    "derivers": _derivers,
    "exports": _exports,
}

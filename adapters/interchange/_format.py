"""A foreign format: what is read and written, and what is lost both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.adapters.interchange._features import FEATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trajgym.adapters.interchange._incoming import Draft, Source

__all__ = ["Format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A foreign format.

    Args:
        name: in commands.
        about: one line: whose format, which version.
        files: patterns of the file names that are read in a directory, at any depth.
        read: yields the sessions of files.
        writes: whether there is an export of this name.
        holds: features that an export keeps, so that an import finds them again.
        drops: what the format has and an import does not keep, by name, with an explanation.
        note: what else a user has to know.
    """

    name: str
    about: str
    files: tuple[str, ...]
    read: Callable[[Source], Iterator[Draft]]
    writes: bool = True
    holds: frozenset[str] = frozenset()
    drops: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        unknown = self.holds - set(FEATURES)
        assert not unknown, f"{self.name}: unknown features {sorted(unknown)}"

    @property
    def lost(self) -> list[str]:
        """The features of a session that an export loses, in order."""
        return [name for name in FEATURES if name not in self.holds]

"""Settings with which verl trains on the wrong thing in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.adapters._lint import LintFinding

__all__ = ["lint_verl"]


def lint_verl(config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
    """See :class:`trajgym.adapters.Linter`."""
    del config, data
    return []

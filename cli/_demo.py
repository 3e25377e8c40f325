"""`trajgym demo`: the main job end to end on real SWE tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_demo"]


def run_demo(
    out: Path, *, samples: int, sandbox: str, base_url: str | None, model: str | None
) -> None:
    """Collect, reward and export the demo tasks."""
    raise NotImplementedError

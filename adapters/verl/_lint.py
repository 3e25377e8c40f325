"""Settings and data with which verl 0.9 silently trains something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters.verl._lint_config import Config, rl_findings, sft_findings
from trajgym.adapters.verl._lint_data import data_findings, sft_data_findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.adapters._lint import LintFinding

__all__ = ["lint_verl"]


def lint_verl(config: Mapping[str, Any], data: Sequence[Path]) -> list[LintFinding]:
    """See :class:`trajgym.adapters.Linter`.

    Missing keys have verl's default. A file without ``actor_rollout_ref`` but with
    ``data.messages_key``, ``data.custom_cls`` or ``engine`` is taken as one of the SFT trainer.
    """
    read = Config(config)
    if _is_sft(config):
        return [*sft_findings(read), *sft_data_findings(read, data)]
    names: set[str] = set()
    found = data_findings(read, data, names)
    return [*rl_findings(read, names, has_data=bool(data)), *found]


def _is_sft(config: Mapping[str, Any]) -> bool:
    data = config.get("data") or {}
    hints = "engine" in config or "messages_key" in data or "custom_cls" in data
    return hints and "actor_rollout_ref" not in config

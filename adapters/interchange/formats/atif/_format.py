"""What ATIF holds."""

from __future__ import annotations

from trajgym.adapters.interchange._features import FEATURES
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange.formats.atif._read import read_atif

__all__ = ["FORMAT"]

FORMAT = Format(
    name="atif",
    about="ATIF, Harbor's trajectory format, v1.0 to v1.8",
    files=("trajectory.json", "*.trajectory.json"),
    read=read_atif,
    holds=frozenset(FEATURES) - {"forks", "native parts", "group"},
    drops={
        "audio": "audio parts become a mark in the text",
        "notes": "notes of a trajectory",
        "extra": "custom metadata of trajectories, agents, calls and results; a step's is a signal",
        "final metrics": "totals; they follow from the turns",
        "linked sub-agents": "sub-agents in files of their own (trajectory_path)",
        "continuations": "links to the file that continues a trajectory",
        "policy versions": "version 0 is recorded for ids of other writers, which state none",
        "merged calls": "steps that stand for several model calls stay one turn",
        "result": "fields of Harbor's result.json besides rewards, task and exception",
    },
    note=(
        "Where ATIF has no field, an export uses `extra.trajgym`, which other readers ignore. "
        "Steps with `is_copied_context` are context, not turns. In a trial's directory, Harbor's "
        "result.json gives the reward."
    ),
)

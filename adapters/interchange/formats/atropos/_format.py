"""What Atropos' groups hold."""

from __future__ import annotations

from trajgym.adapters.interchange._features import FEATURES
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange.formats.atropos._read import read_atropos

__all__ = ["FORMAT"]

FORMAT = Format(
    name="atropos",
    about="Atropos' scored groups (ScoredDataGroup, JSONL)",
    files=("*.jsonl",),
    read=read_atropos,
    holds=frozenset(FEATURES)
    - {"forks", "group", "images", "native parts", "other roles", "rewrites", "sub-agents"},
    drops={
        "ids without log-probs": "rows without inference_logprobs become text turns",
        "unmatched ids": "rows whose masks have more sampled parts than messages have answers",
        "text": "rows without the messages: their turns have ids and no text",
        "policy versions": "version 0 is recorded for ids of other writers, which state none",
        "distillation": "ids and log-probs of a teacher",
        "overrides": "settings that a row or a group overrides",
        "images": "the group's images; those in messages are kept",
    },
    note=(
        "A line is a group; a row of it is a session, and each unmasked part a turn. Advantages "
        "and log-probs of a reference model are signals of the turns. An export writes training "
        "rows: it needs exact turns and a score, takes advantages from a deriver, and writes a "
        "rewritten context or a sub-agent as a row of its own. Fields that Atropos lacks are "
        "under `trajgym`."
    ),
)

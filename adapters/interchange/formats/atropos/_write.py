"""Writing Atropos' groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.exports._stream import rows_of
from trajgym.adapters.interchange._outgoing import Track, content_of, entries_of, note_losses
from trajgym.adapters.interchange._own import OWN, own_session, own_turn
from trajgym.adapters.interchange.formats.atropos._format import FORMAT
from trajgym.adapters.interchange.formats.atropos._read import MASKED
from trajgym.rewards import Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["export_atropos"]

_UNSAMPLED = 1.0
"""The log-prob that Atropos writes for ids that were not sampled."""


def export_atropos(export: Export) -> None:
    """Write ``groups.jsonl``, Atropos' scored groups: ids, masks, scores and advantages.

    Args:
        export: what to write; it takes advantages from a deriver, one per token.
    """
    if export.value(Rewards):
        raise InvalidInput("export atropos takes Advantages, not Rewards: a row has one score")
    with JsonLines(export.file("groups.jsonl")) as sink:
        _Writer(export, sink).write()


@dataclass(slots=True)
class _Group:
    rows: list[dict[str, Any]] = field(default_factory=list)
    synthetic: int = 0


class _Writer:
    """Collects the rows of each group until its last session was read."""

    def __init__(self, export: Export, sink: JsonLines) -> None:
        self._export, self._sink = export, sink
        self._left = dict(export.membership.sizes)
        self._groups: dict[str, _Group] = {}

    def write(self) -> None:
        """Write each group as soon as it is complete."""
        for tree, rows in rows_of(replace(self._export, sessions=self._watched())):
            group = self._groups.setdefault(tree.record.group or tree.record.id, _Group())
            for row in rows:
                group.rows.append(_row(self._export, tree, row))
                group.synthetic += row.synthetic
        for name in list(self._groups):
            self._flush(name)

    def _watched(self) -> Iterator[SessionTree]:
        for tree in self._export.sessions:
            note_losses(self._export, FORMAT, tree, self._export.task(tree.record.task))
            yield tree
            name = tree.record.group
            if name is None:
                self._flush(tree.record.id)
            elif name in self._left:
                self._left[name] -= 1
                if not self._left[name]:
                    self._flush(name)

    def _flush(self, name: str) -> None:
        group = self._groups.pop(name, None)
        if group is None:
            return
        names = ("tokens", "masks", "scores", "advantages", "messages", "inference_logprobs", OWN)
        line: dict[str, Any] = {key: [row[key] for row in group.rows] for key in names}
        if any(one is None for one in line["advantages"]):
            line["advantages"] = None
        temperatures = {row["temperature"] for row in group.rows}
        line["generation_params"] = (
            {"temperature": temperatures.pop()} if len(temperatures) == 1 else None
        )
        line[OWN] = {"group": name, "rows": line[OWN]}
        line["group_overrides"] = {"group_size": len(group.rows)}
        line |= dict.fromkeys(("ref_logprobs", "overrides", "images"))
        self._sink.write(line)
        for number in range(len(group.rows)):
            self._export.report.count(synthetic=number < group.synthetic)


def _row(export: Export, tree: SessionTree, row: TrainingRow) -> dict[str, Any]:
    last = tree.turns[row.turns[-1]]
    ids = tree.sequence(last)
    sampled = np.zeros(ids.size, np.bool_)
    sampled[: row.loss_mask.size] = row.loss_mask
    logprobs = np.full(ids.size, _UNSAMPLED, np.float32)
    logprobs[: row.loss_mask.size][row.loss_mask] = row.logprobs[row.loss_mask]
    advantages = None
    if row.advantage is not None:
        advantages = np.zeros(ids.size, np.float32)
        advantages[: row.advantage.size] = row.advantage
    attempt = tree.attempts[row.attempt]
    assert attempt.outcome is not None  # rows are built of scored attempts only
    entries = entries_of(tree, last)
    entries = entries[: len(entries) - len(last.observation)]
    messages, turns = [], []
    for number, entry in enumerate(entries):
        message = dict(entry.message)
        message["content"] = content_of(export, message) or ""
        if entry.turn is not None and entry.turn.reward is not None:
            message["reward"] = entry.turn.reward
        messages.append(message)
        if entry.turn is not None and entry.turn.index in row.turns:
            turns.append(_own_turn(tree, entry.turn.index, number))
    track = Track(tree, attempt, last, export.task(tree.record.task))
    return {
        "tokens": ids.tolist(),
        "masks": np.where(sampled, ids, MASKED).tolist(),
        "scores": attempt.outcome.score,
        "advantages": None if advantages is None else advantages.tolist(),
        "messages": messages,
        "inference_logprobs": logprobs.tolist(),
        "temperature": row.temperature,
        OWN: own_session(track) | {"turns": turns},
    }


def _own_turn(tree: SessionTree, index: int, message: int) -> dict[str, Any]:
    turn = tree.turns[index]
    assert turn.tokens is not None  # rows are built of exact turns only
    start = tree.prompt(turn).size
    kept = turn.tokens.to_json()
    return {
        "message": message,
        "turn": own_turn(turn),
        "start": start,
        "end": start + turn.tokens.response_ids.size,
        "tokens": {"segments": kept["segments"], "spans": kept["spans"]},
    }

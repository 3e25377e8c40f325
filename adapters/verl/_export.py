"""Rows for verl's V1 trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters._gate import Gate
from trajgym.adapters.exports._files import Parquet
from trajgym.adapters.exports._images import IMAGE_COLUMNS, image_values
from trajgym.adapters.exports._rows import COMMON, common
from trajgym.adapters.exports._stream import need, rows_of
from trajgym.adapters.verl._rows import split
from trajgym.rewards import Advantages, Rewards

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["export_verl"]

_COLUMNS = {
    **{name: kind for name, kind in COMMON.items() if name != "session"},
    "trajgym_session": "string",
    "uid": "string",
    "session_id": "int64",
    "index": "int64",
    "prompts": "list:int64",
    "responses": "list:int64",
    "response_mask": "list:int64",
    "rollout_log_probs": "list:float",
    "rm_scores": "list:float",
    "min_global_steps": "int64",
    "max_global_steps": "int64",
    "reward_extra_info": "string",
    **IMAGE_COLUMNS,
}
_ATTEMPT = 1 << 20


def export_verl(export: Export) -> None:
    """Write ``verl.parquet``: per row the fields of one agent-loop output.

    ``prompts`` are the ids before the first trained token, ``responses`` those from there to the
    last trained token. ``rm_scores`` has a turn's reward on its last sampled token. ``uid`` is the
    group's id, or the session's if it has no group. ``session_id`` is the sample number plus
    ``2**20`` times the attempt's index, because verl calls an attempt a session. ``index`` numbers
    the rows of an attempt; the row with its last turn, which verl scores, comes last. Versions are
    the lowest and the highest of the row's trained tokens. With `Advantages` there is a further
    column ``advantages``. ``images`` has the encoded images of the row in order, for verl's
    ``multi_modal_data``; without ``blobs``, sessions with images are left out.
    """
    need(export, Rewards, "OutcomeReward().derive(table)")
    with_advantages = export.value(Advantages)
    columns = _COLUMNS | ({"advantages": "list:float"} if with_advantages else {})
    with Parquet(export.file("verl.parquet"), columns) as sink:
        for tree, rows in rows_of(export, images="bytes", gate=Gate(export.allow)):
            uid = tree.record.group or tree.record.id
            if "_" in uid:
                export.report.drop(
                    tree.record.id,
                    None,
                    f"uid {uid!r} has an underscore, at which verl splits keys: rename the group",
                )
                continue
            for index, row in _numbered(tree, rows):
                record = _record(tree, row, uid, index, advantages=with_advantages)
                sink.write(record | image_values(row, export.blobs))
                export.report.count(synthetic=row.synthetic)


def _numbered(tree: SessionTree, rows: list[TrainingRow]) -> list[tuple[int, TrainingRow]]:
    """Return rows numbered within their attempt; the row with the last turn comes last."""
    attempts: dict[int, list[TrainingRow]] = {}
    for row in rows:
        attempts.setdefault(row.attempt, []).append(row)
    numbered = []
    for index, members in attempts.items():
        leaf = tree.attempts[index].leaf
        final = [row for row in members if leaf in row.turns]
        others = [row for row in members if leaf not in row.turns]
        numbered += list(enumerate(others + final))
    return numbered


def _record(
    tree: SessionTree, row: TrainingRow, uid: str, index: int, *, advantages: bool
) -> dict[str, Any]:
    parts = split(row)
    record = common(row)
    record["trajgym_session"] = record.pop("session")
    record |= {
        "uid": uid,
        "session_id": tree.record.sample + _ATTEMPT * row.attempt,
        "index": index,
        "prompts": parts.prompt.astype(np.int64),
        "responses": parts.response.astype(np.int64),
        "response_mask": parts.mask.astype(np.int64),
        "rollout_log_probs": parts.logprobs,
        "rm_scores": parts.rewards,
        "min_global_steps": parts.version_low,
        "max_global_steps": parts.version_high,
        "reward_extra_info": "{}",
    }
    if advantages:
        record["advantages"] = parts.advantages
    return record

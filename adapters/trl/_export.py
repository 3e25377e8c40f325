"""Rows for TRL's asynchronous GRPO trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters._gate import Gate
from trajgym.adapters.exports._files import Parquet
from trajgym.adapters.exports._rows import COMMON, common
from trajgym.adapters.exports._stream import need, rows_of
from trajgym.adapters.trl._samples import group_number, split_row
from trajgym.rewards import Advantages
from trajgym.trajectory import oldest_trained_version

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.trl._samples import Part
    from trajgym.trajectory import TrainingRow

__all__ = ["export_trl_grpo"]

_COLUMNS = COMMON | {
    "input_ids": "list:int64",
    "completion_mask": "list:int64",
    "old_log_probs": "list:float",
    "advantage": "double",
    "model_version": "int64",
    "group_id": "int64",
}


def export_trl_grpo(export: Export) -> None:
    """Write ``trl-grpo.parquet``, one ``RolloutSample`` per line.

    TRL takes one advantage per sample. A row whose tokens all have the same advantage is one
    sample. Otherwise each turn is a sample (the ids up to its end, a mask over its own tokens), or
    several if its tokens have different advantages. The trainer's loss is a mean over tokens and
    its batches merge common prefixes, so both forms have the same gradient.

    ``model_version`` is the oldest version that may have sampled a trained token of the session;
    ``group_id`` is a number derived from the group's id, or the session's if it has no group.
    """
    need(export, Advantages, "GRPO().derive(table)")
    with Parquet(export.file("trl-grpo.parquet"), _COLUMNS) as sink:
        for tree, rows in rows_of(export, gate=Gate(export.allow)):
            oldest = oldest_trained_version(rows)
            group = group_number(tree.record.group or tree.record.id)
            for row in rows:
                for sample in split_row(row):
                    sink.write(_record(row, sample, oldest, group))
                    export.report.count(synthetic=row.synthetic)


def _record(row: TrainingRow, sample: Part, oldest: int, group: int) -> dict[str, Any]:
    assert row.advantage is not None
    end = sample.end
    return common(row) | {
        "turns": np.array(sample.turns, dtype=np.int32),
        "weight": row.weight * float(sample.mask.sum() / row.loss_mask.sum()),
        "input_ids": row.input_ids[:end].astype(np.int64),
        "completion_mask": sample.mask.astype(np.int64),
        "old_log_probs": np.where(sample.mask, row.logprobs[:end], np.float32(0)),
        "advantage": float(row.advantage[end - 1]),
        "model_version": oldest,
        "group_id": group,
    }

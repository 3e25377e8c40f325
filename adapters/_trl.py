"""Rows for TRL's asynchronous GRPO trainer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.adapters._files import Parquet
from trajgym.adapters._rows import COMMON, common
from trajgym.adapters._stream import need, rows_of
from trajgym.rewards import Advantages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from trajgym.adapters._stream import Export
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
    """Write ``trl_grpo.parquet``, one ``RolloutSample`` per line.

    TRL takes one advantage per sample. A row whose turns all have the same advantage is one
    sample; otherwise each turn is a sample of its own (the ids up to its end, only its own tokens
    in the mask, the same ``group_id``). The trainer's loss is a mean over tokens and its batches
    merge common prefixes, so both forms train the same.

    ``model_version`` is the oldest version that can have sampled a trained token of the session;
    ``group_id`` is a number made from the group's id (the session's, if it has no group).
    """
    need(export, Advantages, "GRPO().derive(table)")
    with Parquet(export.file("trl_grpo.parquet"), _COLUMNS) as sink:
        for tree, rows in rows_of(export):
            oldest = min(int(row.version_low[row.loss_mask].min()) for row in rows)
            group = _number(tree.record.group or tree.record.id)
            for row in rows:
                for sample in _samples(row):
                    sink.write(_record(row, sample, oldest, group))
                    export.report.count(synthetic=row.synthetic)


class _Sample(NamedTuple):
    turns: tuple[int, ...]
    end: int
    mask: npt.NDArray[np.bool_]


def _samples(row: TrainingRow) -> Iterator[_Sample]:
    assert row.advantage is not None
    ends = row.turn_ends
    values = row.advantage[ends]
    if (values == values[0]).all():
        yield _Sample(row.turns, len(row), row.loss_mask)
        return
    for turn, end in zip(row.turns, (ends + 1).tolist(), strict=True):
        yield _Sample((turn,), end, row.turn_ids[:end] == turn)


def _record(row: TrainingRow, sample: _Sample, oldest: int, group: int) -> dict[str, Any]:
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


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1

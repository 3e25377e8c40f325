"""Rows for AReaL's PPO actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters._gate import Gate
from trajgym.adapters.areal._tensors import areal_arrays, turn_ordinals
from trajgym.adapters.exports._files import Parquet
from trajgym.adapters.exports._images import IMAGE_COLUMNS, image_values
from trajgym.adapters.exports._rows import COMMON, common
from trajgym.adapters.exports._stream import rows_of
from trajgym.rewards import Advantages, Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import TrainingRow

__all__ = ["export_areal"]

_COLUMNS = COMMON | {
    "input_ids": "list:int32",
    "attention_mask": "list:bool",
    "loss_mask": "list:int32",
    "logprobs": "list:float",
    "versions": "list:int32",
    "version_high": "list:int32",
    "turn_ids": "list:int32",
    "rewards": "float",
    **IMAGE_COLUMNS,
}


def export_areal(export: Export, *, dense: bool | None = None) -> None:
    """Write ``areal.parquet``: per row the tensors of one trajectory, unshifted and unpadded.

    ``versions`` has the lower bound of each trained token's version and -1 on other tokens;
    ``version_high`` has the upper bound. ``turn_ids`` number the row's trained turns from 0 and are
    -1 elsewhere.

    AReaL takes one reward per row. In scalar form ``rewards`` is the sum of the row's rewards. In
    dense form there is a further column ``values``, with which AReaL's advantages (without a
    critic, with discount and lambda 1) are each token's reward-to-go, or the given `Advantages`
    with ``rewards`` 0. Advantages are always written in dense form.

    ``images`` has the encoded images of the row in order, for AReaL's ``multi_modal_input`` (see
    ``row_inputs``); without ``blobs``, sessions with images are left out.

    Args:
        export: what to write.
        dense: whether to use the dense form; None chooses by the kind of values.

    Raises:
        InvalidInput: neither or both kinds of values were given, or advantages with ``dense``
            False.
    """
    advantages = export.value(Advantages)
    if advantages == export.value(Rewards):
        raise InvalidInput(
            "export areal needs either Rewards or Advantages: pass one of them as values, for "
            "example OutcomeReward().derive(table) or GRPO().derive(table)",
        )
    if advantages and dense is False:
        raise InvalidInput("export areal: advantages are per token; they have no scalar form")
    dense = advantages or bool(dense)
    columns = _COLUMNS | ({"values": "list:float"} if dense else {})
    with Parquet(export.file("areal.parquet"), columns) as sink:
        for _, rows in rows_of(export, images="bytes", gate=Gate(export.allow)):
            for row in rows:
                sink.write(_record(row, dense=dense) | image_values(row, export.blobs))
                export.report.count(synthetic=row.synthetic)


def _record(row: TrainingRow, *, dense: bool) -> dict[str, Any]:
    extra = {"version_high": row.version_high, "turn_ids": turn_ordinals(row)}
    return common(row) | areal_arrays(row, dense=dense) | extra

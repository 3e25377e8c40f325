"""Recorded sessions for verl's SFT trainer, as sampled token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trajgym.adapters._gate import Gate
from trajgym.adapters.exports._files import Parquet
from trajgym.adapters.exports._stream import Export, ExportReport, Membership, rows_of
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable

    from trajgym.trajectory import Group, SessionTree, TrainingRow

__all__ = ["export_verl_sft", "write_sft_tokens"]

_COLUMNS = {"input_ids": "list:int32", "loss_mask": "list:int8", "session": "string"}


def export_verl_sft(export: Export, *, include: Literal["passed", "all"] = "passed") -> None:
    """Write ``verl-sft.parquet``: token ids and their mask, for verl's SFT trainer.

    See :func:`trajgym.adapters.verl.write_sft_tokens`.

    Args:
        export: what to write.
        include: ``passed`` takes the attempts that solved the task; ``all`` every scored attempt.

    Raises:
        InvalidInput: ``include`` has an unknown value, or values were given.
    """
    if export.values:
        raise InvalidInput("export verl-sft takes no values: it selects attempts by their outcome")
    _write(export, export.file("verl-sft.parquet"), include)


def write_sft_tokens(
    path: str | os.PathLike[str],
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    include: Literal["passed", "all"] = "passed",
    allow: Collection[str] = (),
    report: ExportReport | None = None,
) -> int:
    """Write the sampled token ids with their mask; return the number of rows.

    Columns ``input_ids`` (int32) and ``loss_mask`` (int8), for :class:`TokenDataset`::

        data.custom_cls.path=pkg://trajgym.adapters.verl data.custom_cls.name=TokenDataset

    Args:
        path: of the parquet file.
        sessions: with exact turns.
        groups: their groups.
        include: ``passed`` takes attempts that solved the task, ``all`` every scored attempt.
        allow: ``["synthetic"]`` accepts sessions of fake engines.
        report: filled with what was written and left out.

    Raises:
        InvalidInput: no session is left.
        MissingExtra: pyarrow is not installed.
    """
    path = Path(path)
    report = report or ExportReport("verl-sft-tokens")
    run = Export(
        sessions=sessions,
        membership=Membership(groups),
        out=path.parent,
        values=(),
        report=report,
        allow=allow,
    )
    _write(run, path, include, may_be_empty=False)
    return report.written


def _write(export: Export, path: Path, include: str, *, may_be_empty: bool = True) -> None:
    if include not in {"passed", "all"}:
        raise InvalidInput(f"{path}: include is {include!r}; use 'passed' or 'all'")
    with Parquet(path, _COLUMNS) as sink:
        for tree, rows in rows_of(export, gate=Gate(export.allow, only=["synthetic"])):
            for row in rows:
                if include == "passed" and not _passed(tree, row):
                    export.report.drop(tree.record.id, row.attempt, "did not pass")
                    continue
                mask = row.loss_mask.astype("int8")
                sink.write({"input_ids": row.input_ids, "loss_mask": mask, "session": row.session})
                export.report.count(synthetic=row.synthetic)
        if not (export.report.written or may_be_empty):
            raise InvalidInput(f"{path}: nothing to train on; see report.dropped")


def _passed(tree: SessionTree, row: TrainingRow) -> bool:
    outcome = tree.attempts[row.attempt].outcome
    return outcome is not None and outcome.passed

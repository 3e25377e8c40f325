"""Data sets in memory for TRL's offline trainers, made of recorded sessions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trajgym.adapters._conversation import picture_messages
from trajgym.adapters._export import export
from trajgym.adapters._stream import ExportReport, Membership
from trajgym.rewards import Advantages, Rewards, apply
from trajgym.trajectory import (
    InvalidInput,
    MissingExtra,
    UnsupportedModality,
    build_rows,
    validate_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trajgym.adapters._images import BlobReader
    from trajgym.trajectory import Group, Message, SessionTree, TrainingRow

__all__ = [
    "kto_dataset",
    "preference_dataset",
    "prm_dataset",
    "reward_dataset",
    "sft_dataset",
    "sft_token_dataset",
]

_IGNORED = -100


def sft_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    include: Literal["passed", "all"] = "passed",
    report: ExportReport | None = None,
    blobs: BlobReader | None = None,
) -> Any:
    """Return conversations for ``SFTTrainer``: columns ``messages`` and ``tools`` (a JSON string).

    Train with ``assistant_only_loss=True``, or observations are learned too, and set
    ``max_length``: TRL's default cuts at 1024 tokens. The text is rendered by TRL; see
    :func:`sft_token_dataset` for the ids as they were sampled.

    Args:
        sessions: exact or text.
        groups: their groups.
        include: ``passed`` takes attempts that solved the task, ``all`` every scored one.
        report: filled with what was left out.
        blobs: the ``blob`` of the run. With it there is a column ``images``, and the trainer needs
            a processor; TRL takes no images from tools, so theirs stand in a user message.

    Raises:
        UnsupportedModality: a conversation holds images and there are no blobs.
        MissingExtra: ``datasets`` is not installed.
    """
    lines = _exported("sft", sessions, groups, report, pictures=blobs is not None, include=include)
    if blobs is None:
        return _dataset(lines, {"messages": "messages", "tools": "text"})
    for line in lines:
        line["messages"], names = picture_messages(line["messages"])
        line["images"] = [{"bytes": blobs(name).data} for name in names]
    return _dataset(lines, {"messages": "messages", "tools": "text", "images": "images"})


def sft_token_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    include: Literal["passed", "all"] = "passed",
    report: ExportReport | None = None,
) -> Any:
    """Return token ids for ``SFTTrainer``: columns ``input_ids`` and ``labels``.

    Exactly the tokens that the policy sampled have labels. (TRL ignores a mask column beside ids
    unless ``completion_only_loss=True``; it always honours labels.) Set ``max_length``.

    Args:
        sessions: exact ones.
        groups: their groups.
        include: see :func:`sft_dataset`.
        report: filled with what was left out.

    Raises:
        UnsupportedModality: a session shows images.
        MissingExtra: ``datasets`` is not installed.
    """
    report = report or ExportReport("trl-sft-tokens")
    lines = [
        {"input_ids": row.input_ids, "labels": np.where(row.loss_mask, row.input_ids, _IGNORED)}
        for tree, rows in _rows(sessions, groups, None, report)
        for row in rows
        if include == "all" or _passed(tree, row)
    ]
    report.written += len(lines)
    return _dataset(lines, {"input_ids": "ids", "labels": "ids"})


def preference_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    margin: float = 0.0,
    report: ExportReport | None = None,
) -> Any:
    """Return pairs for ``DPOTrainer``: ``prompt``, ``chosen``, ``rejected``, ``tools``.

    One pair for each group: its best attempt against its worst. DPO has no mask for observations,
    so a pair is a step: the history that both share is the prompt, and chosen and rejected are the
    one assistant message in which they first differ.

    Args:
        sessions: exact or text.
        groups: their groups.
        margin: least difference of the scores.
        report: filled with what was left out.

    Raises:
        UnsupportedModality: a conversation holds images.
        MissingExtra: ``datasets`` is not installed.
    """
    lines = _exported("preference", sessions, groups, report, margin=margin)
    return _dataset(lines, _PAIR)


def kto_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    margin: float = 0.0,
    report: ExportReport | None = None,
) -> Any:
    """Return labelled answers for ``KTOTrainer``: ``prompt``, ``completion``, ``label``, ``tools``.

    The pairs of :func:`preference_dataset`, one row for each side. With scores of 0 and 1 any
    margin above 0 sets success against failure.
    """
    lines = []
    for line in _exported("preference", sessions, groups, report, margin=margin):
        for side, label in (("chosen", True), ("rejected", False)):
            lines.append({**line, "completion": line[side], "label": label})
    columns = {"prompt": "messages", "completion": "messages", "label": "bool", "tools": "text"}
    return _dataset(lines, columns)


def reward_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    margin: float = 0.0,
    report: ExportReport | None = None,
) -> Any:
    """Return pairs for ``RewardTrainer``: those of :func:`preference_dataset`, and ``margin``.

    The column ``margin`` is the difference of the scores.
    """
    lines = [
        {**line, "margin": line["chosen_score"] - line["rejected_score"]}
        for line in _exported("preference", sessions, groups, report, margin=margin)
    ]
    return _dataset(lines, {**_PAIR, "margin": "number"})


def prm_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    values: Rewards | Advantages,
    *,
    threshold: float = 0.0,
    report: ExportReport | None = None,
) -> Any:
    """Return steps for a process reward model: columns ``input_ids`` and ``labels``.

    For transformers' ``Trainer`` with ``AutoModelForTokenClassification`` (two labels) and
    ``DataCollatorForTokenClassification``: TRL has had no trainer for it since 1.14. The label
    stands on a turn's last sampled token: 1 if the turn's value is above the threshold, else 0.

    Args:
        sessions: exact ones.
        groups: their groups.
        values: what each turn was worth.
        threshold: above it a step counts as good.
        report: filled with what was left out.

    Raises:
        InvalidInput: the values are not of these sessions.
        UnsupportedModality: a session shows images.
        MissingExtra: ``datasets`` is not installed.
    """
    report = report or ExportReport("trl-prm")
    lines = []
    for _, rows in _rows(sessions, groups, values, report):
        for row in rows:
            found = row.advantage if isinstance(values, Advantages) else row.reward
            assert found is not None
            labels = np.full(len(row), _IGNORED, dtype=np.int64)
            labels[row.turn_ends] = found[row.turn_ends] > threshold
            lines.append({"input_ids": row.input_ids, "labels": labels})
    report.written += len(lines)
    return _dataset(lines, {"input_ids": "ids", "labels": "ids"})


_PAIR = {"prompt": "messages", "chosen": "messages", "rejected": "messages", "tools": "text"}


def _exported(
    name: str,
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    report: ExportReport | None,
    *,
    pictures: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return the lines of one of the general exports."""
    with tempfile.TemporaryDirectory() as folder:
        made = export(name, sessions, groups, Path(folder), **options)
        text = made.files[0].read_text(encoding="utf-8")
    if report is not None:
        report.written += made.written
        report.dropped += made.dropped
        report.synthetic += made.synthetic
    lines = [json.loads(line) for line in text.split("\n") if line]
    for line in () if pictures else lines:
        for column in ("messages", "prompt", "chosen", "rejected"):
            _refuse_media(line.get(column) or [], line["session"])
    return lines


def _refuse_media(messages: Iterable[Message], session: str) -> None:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") != "text":
                raise UnsupportedModality(
                    f"session {session}: a {part.get('type')!r} part in the conversation: with "
                    "TRL, images go through sft_dataset(blobs=run.blob) and the "
                    "environment_factory of GRPOSpec; leave such sessions out",
                )


def _rows(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    values: Rewards | Advantages | None,
    report: ExportReport,
) -> Iterator[tuple[SessionTree, list[TrainingRow]]]:
    membership = Membership(groups)
    for tree in sessions:
        if reason := membership.refusal(tree):
            report.drop(tree.record.id, None, reason)
            continue
        try:
            rows, dropped = build_rows(tree)
            rows = rows if values is None else apply(rows, values)
            for row in rows:
                validate_row(row)
        except UnsupportedModality:
            raise
        except InvalidInput as error:
            report.drop(tree.record.id, None, str(error))
            continue
        report.dropped += dropped
        yield tree, rows


def _passed(tree: SessionTree, row: TrainingRow) -> bool:
    outcome = tree.attempts[row.attempt].outcome
    return outcome is not None and outcome.passed


def _dataset(lines: list[dict[str, Any]], columns: dict[str, str]) -> Any:
    """Return a data set whose messages survive as they are.

    Arrow would merge tool calls of different shapes and fill in nulls: they are kept as JSON.
    """
    try:
        from datasets import Dataset, Features, Image, Json, List, Value
    except ImportError as error:
        raise MissingExtra("datasets", "trl") from error
    if not lines:
        raise InvalidInput(
            "there is nothing to train on: every session was left out; see report.dropped",
        )
    kinds = {
        "messages": List(Json()),
        "text": Value("string"),
        "ids": List(Value("int64")),
        "bool": Value("bool"),
        "number": Value("float64"),
        "images": List(Image()),
    }
    features = Features({name: kinds[kind] for name, kind in columns.items()})
    chosen = [{name: line[name] for name in columns} for line in lines]
    return Dataset.from_list(chosen, features=features)

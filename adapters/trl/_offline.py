"""In-memory data sets for TRL's offline trainers, made from recorded sessions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trajgym.adapters._gate import Gate
from trajgym.adapters._group_rows import session_rows
from trajgym.adapters.exports._conversation import picture_messages
from trajgym.adapters.exports._preference import export_preference
from trajgym.adapters.exports._sft import export_sft
from trajgym.adapters.exports._stream import ExportReport, Membership, run_export
from trajgym.rewards import Advantages
from trajgym.trajectory import InvalidInput, UnsupportedModality
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from trajgym.adapters._group_rows import Values
    from trajgym.adapters.exports._images import BlobReader
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

    Train with ``assistant_only_loss=True``, otherwise observations are trained too, and set
    ``max_length``: TRL's default truncates at 1024 tokens. TRL renders the text; use
    :func:`sft_token_dataset` to train the sampled ids.

    Args:
        sessions: with exact or text turns.
        groups: their groups.
        include: ``passed`` takes attempts that solved the task, ``all`` every scored attempt.
        report: filled with what was written and left out.
        blobs: the ``blob`` method of the run. With it the data set has a column ``images``, and the
            trainer needs a processor. Images of tool results are moved to a user message, because
            TRL takes none from tools.

    Raises:
        UnsupportedModality: a conversation has images and ``blobs`` is None.
        MissingExtra: ``datasets`` is not installed.
    """
    lines = _exported(
        export_sft, sessions, groups, report, pictures=blobs is not None, include=include
    )
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
    allow: Collection[str] = (),
    report: ExportReport | None = None,
) -> Any:
    """Return token ids for ``SFTTrainer``: columns ``input_ids`` and ``labels``.

    Exactly the tokens that the policy sampled have labels. (TRL ignores a mask column unless
    ``completion_only_loss=True``; labels always apply.) Set ``max_length``.

    Args:
        sessions: with exact turns.
        groups: their groups.
        include: see :func:`sft_dataset`.
        allow: ``["synthetic"]`` accepts sessions of fake engines.
        report: filled with what was written and left out.

    Raises:
        UnsupportedModality: a session has images.
        MissingExtra: ``datasets`` is not installed.
    """
    report = report or ExportReport("trl-sft-tokens")
    lines = [
        {"input_ids": row.input_ids, "labels": np.where(row.loss_mask, row.input_ids, _IGNORED)}
        for tree, rows in _rows(sessions, groups, None, allow, report)
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

    One pair for each group, from its best and its worst attempt. DPO has no mask for observations,
    so a pair is a single step: the prompt is the history that both attempts share, and chosen and
    rejected are the first assistant message in which they differ.

    Args:
        sessions: with exact or text turns.
        groups: their groups.
        margin: least difference of the scores.
        report: filled with what was written and left out.

    Raises:
        UnsupportedModality: a conversation has images.
        MissingExtra: ``datasets`` is not installed.
    """
    lines = _exported(export_preference, sessions, groups, report, margin=margin)
    return _dataset(lines, _PAIR)


def kto_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    margin: float = 0.0,
    report: ExportReport | None = None,
) -> Any:
    """Return labelled answers for ``KTOTrainer``: ``prompt``, ``completion``, ``label``, ``tools``.

    The pairs of :func:`preference_dataset`, one row for each side.
    """
    lines = []
    for line in _exported(export_preference, sessions, groups, report, margin=margin):
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
        for line in _exported(export_preference, sessions, groups, report, margin=margin)
    ]
    return _dataset(lines, {**_PAIR, "margin": "number"})


def prm_dataset(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    values: Values,
    *,
    threshold: float = 0.0,
    allow: Collection[str] = (),
    report: ExportReport | None = None,
) -> Any:
    """Return steps for a process reward model: columns ``input_ids`` and ``labels``.

    For transformers' ``Trainer`` with ``AutoModelForTokenClassification`` (two labels) and
    ``DataCollatorForTokenClassification``; TRL has no trainer for it since 1.14. The label is on a
    turn's last sampled token: 1 if the turn's value is above the threshold, else 0.

    Args:
        sessions: with exact turns.
        groups: their groups.
        values: rewards or advantages of the turns.
        threshold: steps with a value above it are labelled 1.
        allow: ``["synthetic"]`` accepts sessions of fake engines.
        report: filled with what was written and left out.

    Raises:
        InvalidInput: the values were derived from other sessions.
        UnsupportedModality: a session has images.
        MissingExtra: ``datasets`` is not installed.
    """
    report = report or ExportReport("trl-prm")
    lines = []
    for _, rows in _rows(sessions, groups, values, allow, report):
        for row in rows:
            found = row.advantage if values.kind is Advantages else row.reward
            assert found is not None
            labels = np.full(len(row), _IGNORED, dtype=np.int64)
            labels[row.turn_ends] = found[row.turn_ends] > threshold
            lines.append({"input_ids": row.input_ids, "labels": labels})
    report.written += len(lines)
    return _dataset(lines, {"input_ids": "ids", "labels": "ids"})


_PAIR = {"prompt": "messages", "chosen": "messages", "rejected": "messages", "tools": "text"}


def _exported(
    write: Callable[..., None],
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    report: ExportReport | None,
    *,
    pictures: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return the lines of one of the general exports."""
    with tempfile.TemporaryDirectory() as folder:
        made = run_export(write.__name__, write, sessions, groups, Path(folder), **options)
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
                    f"session {session} has a {part.get('type')!r} part: pass blobs=run.blob to "
                    "sft_dataset, train with the environment_factory of GRPORollouts, or leave "
                    "such sessions out",
                )


def _rows(
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    values: Values | None,
    allow: Collection[str],
    report: ExportReport,
) -> Iterator[tuple[SessionTree, list[TrainingRow]]]:
    membership, gate = Membership(groups), Gate(allow, only=["synthetic"])
    for tree in sessions:
        if reason := membership.refusal(tree) or gate.refusal(tree):
            report.drop(tree.record.id, None, reason)
            continue
        try:
            rows, dropped = session_rows(tree, () if values is None else (values,))
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
    """Return a data set of the lines, with messages stored as JSON.

    As structs, Arrow would merge tool calls with different arguments and fill in nulls.
    """
    try:
        from datasets import Dataset, Features, Image, Json, List, Value
    except ImportError as error:
        raise MissingExtra("datasets", "trl") from error
    if not lines:
        raise InvalidInput(
            "nothing to train on: every session was left out; see report.dropped",
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

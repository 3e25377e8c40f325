"""Checks of the data that verl will read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.adapters._lint import LintFinding
from trajgym.adapters.verl._lint_config import own_loops
from trajgym.adapters.verl._settings import COLUMN, LoopSettings, Work, read_settings
from trajgym.trajectory import InvalidInput, TrajgymError
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from trajgym.adapters.verl._lint_config import Config

__all__ = ["data_findings", "sft_data_findings"]

_FIELDS = frozenset(
    {
        "advantages",
        "extra_fields",
        "input_ids",
        "loss_mask",
        "metrics",
        "num_turns",
        "old_log_probs",
        "position_ids",
        "prompts",
        "response_mask",
        "responses",
        "returns",
        "rm_scores",
        "rollout_log_probs",
    },
)
"""Fields of a row in TransferQueue, which a column of the data would overwrite."""
_DEFAULT = "actor_rollout_ref.rollout.agent.default_agent_loop"


def data_findings(config: Config, files: Sequence[Path], names: set[str]) -> list[LintFinding]:
    """Return the findings of data for reinforcement learning.

    Args:
        config: of the run.
        files: parquet, json or jsonl.
        names: filled with the agent loops that the rows use.

    Raises:
        InvalidInput: a file can't be read.
        MissingExtra: pyarrow is not installed.
    """
    found: list[LintFinding] = []
    for file in files:
        rows = _read(file)
        columns = {name for row in rows for name in row}
        default = str(config.get(_DEFAULT))
        own = {str(row.get("agent_name") or default) for row in rows}
        names |= own
        found += _columns(file, columns, rows)
        if COLUMN in columns or COLUMN in own:
            found += _tasks(file, rows, config)
    return found


def _columns(file: Path, columns: set[str], rows: list[dict[str, Any]]) -> Iterator[LintFinding]:
    for name in sorted(columns & _FIELDS):
        yield LintFinding(
            "column-overwrites",
            f"{file}: {name}",
            f"the column {name!r} of the data overwrites the rollout's field of that name",
            "rename it",
        )
    if any(isinstance(row.get("prompt"), str) for row in rows):
        yield LintFinding(
            "prompt-is-text",
            f"{file}: prompt",
            "verl expects a list of messages but accepts a string, whose characters the chat "
            "template then takes for messages",
            'use [{"role": "user", "content": ...}]',
        )
    indexes = [_inside(row, "extra_info", "index") for row in rows]
    if len(rows) > 1 and (None in indexes or len(set(indexes)) == 1):
        yield LintFinding(
            "no-index",
            f"{file}: extra_info.index",
            "without it, every row has index 0 in logs and traces",
            "number the rows; write_prompts does",
        )
    if any(value is None for row in rows for value in _kwargs(row)):
        yield LintFinding(
            "merged-structs",
            f"{file}: extra_info.tools_kwargs",
            "rows with different keys were merged into one struct with nulls: verl's tools then "
            "fail on every call, and the model reads the error text",
            f"store a row's data as one JSON string, as in the column {COLUMN!r}",
        )


def _tasks(file: Path, rows: list[dict[str, Any]], config: Config) -> Iterator[LintFinding]:
    try:
        settings = read_settings({k: v for k, v in config.section.items() if k != "trainer"}, {})
    except InvalidInput:
        settings = LoopSettings()  # reported by the check of the section
    checked: set[str] = set()
    ours = {COLUMN, *own_loops(config)}
    for number, row in enumerate(rows):
        if str(row.get("agent_name") or config.get(_DEFAULT)) not in ours and row.get(COLUMN):
            yield LintFinding(
                "other-loop",
                f"{file}: row {number}",
                f"it has a column {COLUMN!r}, which agent_name {row.get('agent_name')!r} ignores",
                f"set agent_name to {COLUMN!r}, or to the name of your own entry",
            )
            return
        problem = _problem(row, settings, checked)
        if problem:
            yield LintFinding(
                "row",
                f"{file}: row {number}",
                f"{problem}; the rollout would return no row",
                "write the file with trajgym.adapters.verl.write_prompts",
            )
            return


def _problem(row: dict[str, Any], settings: LoopSettings, checked: set[str]) -> str | None:
    try:
        work = Work.read(row.get(COLUMN), settings)
        if work.env.id not in checked:
            work.env.resolve()
            checked.add(work.env.id)
    except TrajgymError as error:
        return str(error)
    return None


def sft_data_findings(config: Config, files: Sequence[Path]) -> Iterator[LintFinding]:
    """Yield the findings of data for supervised fine-tuning."""
    custom = config.get("data.custom_cls.path")
    for file in files:
        rows = _read(file)
        columns = {name for row in rows for name in row}
        if {"input_ids", "loss_mask"} <= columns and not custom:
            yield LintFinding(
                "class-missing",
                "data.custom_cls",
                f"{file} has token ids, which verl's own class does not read",
                "set data.custom_cls.path to pkg://trajgym.adapters.verl and name to TokenDataset",
            )
        calls = [call for row in rows for call in _calls(row.get("messages"))]
        if any(None in _arguments(call).values() for call in calls):
            yield LintFinding(
                "merged-arguments",
                f"{file}: messages",
                "calls with different arguments were merged into one struct, and verl trains on "
                "the nulls that were filled in",
                "write the file with write_sft_messages or write_sft_tokens",
            )
        if any(_is_text(call) for call in calls):
            yield LintFinding(
                "quoted-arguments",
                f"{file}: messages",
                "most chat templates escape arguments that are JSON strings a second time",
                "write the file with write_sft_messages or write_sft_tokens",
            )
        if any(isinstance(row.get("messages"), str) for row in rows):
            yield LintFinding(
                "messages-are-text",
                f"{file}: messages",
                "verl does not parse JSON strings in this column",
                "write a list of messages; write_sft_messages does",
            )


def _read(file: Path) -> list[dict[str, Any]]:
    if file.suffix in {".json", ".jsonl"}:
        return _lines(file)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "lint") from error
    try:
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"{file}: can't be read as parquet: {error}") from error
    return rows


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else None
        if not isinstance(found, list):
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file}: can't be read: {error}") from error
    return [row for row in found if isinstance(row, dict)]


def _inside(row: Any, *keys: str) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _kwargs(row: dict[str, Any]) -> Iterable[Any]:
    found = _inside(row, "extra_info", "tools_kwargs")
    return found.values() if isinstance(found, dict) else ()


def _calls(messages: Any) -> Iterator[dict[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        for call in (message.get("tool_calls") if isinstance(message, dict) else None) or ():
            if isinstance(call, dict):
                yield call


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    found = _inside(call, "function", "arguments")
    return found if isinstance(found, dict) else {}


def _is_text(call: dict[str, Any]) -> bool:
    return isinstance(_inside(call, "function", "arguments"), str)

"""Recorded conversations for verl's own SFT data set class."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trajgym.adapters.exports._sft import export_sft
from trajgym.adapters.exports._stream import ExportReport, run_export
from trajgym.trajectory import InvalidInput, text_of, tool_calls_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import Group, Message, SessionTree

__all__ = ["write_sft_messages"]


def write_sft_messages(
    path: str | os.PathLike[str],
    sessions: Iterable[SessionTree],
    groups: Iterable[Group],
    *,
    include: Literal["passed", "all"] = "passed",
    report: ExportReport | None = None,
) -> int:
    """Write conversations for verl's ``MultiTurnSFTDataset``; return the number of rows.

    The column ``messages`` has roles and texts. Tool schemas, calls and results are text in the
    format of Hermes and Qwen templates: as structs, parquet would merge the arguments of all calls,
    and verl would train on the nulls. Consecutive results are one message, because verl renders
    each message separately. For sessions with exact turns prefer
    :func:`trajgym.adapters.verl.write_sft_tokens`: verl's class can't render with a chat template
    that strips reasoning.

    Args:
        path: of the parquet file.
        sessions: with exact or text turns.
        groups: their groups.
        include: ``passed`` takes attempts that solved the task, ``all`` every scored attempt.
        report: filled with what was written and left out.

    Raises:
        InvalidInput: no conversation is left.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "data") from error
    path = Path(path)
    report = report or ExportReport("verl-sft-messages")
    with tempfile.TemporaryDirectory() as folder:
        made = run_export("sft", export_sft, sessions, groups, Path(folder), include=include)
        text = made.files[0].read_text(encoding="utf-8")
    report.dropped += made.dropped
    report.written += made.written
    lines = [json.loads(line) for line in text.split("\n") if line]
    rows = [{"messages": _as_texts(line["messages"], json.loads(line["tools"]))} for line in lines]
    if not rows:
        raise InvalidInput(f"{path}: nothing to train on; see report.dropped")
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema([("messages", pa.list_(message))])
    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(rows)


def _as_texts(messages: Sequence[Message], tools: Sequence[Any]) -> list[dict[str, str]]:
    said: list[dict[str, str]] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            result = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            if said and said[-1]["role"] == "tool":
                said[-1]["content"] += f"\n{result}"
            else:
                said.append({"role": "tool", "content": result})
        else:
            said.append({"role": role, "content": _spoken(message)})
    for one in said:
        one["role"] = "user" if one["role"] == "tool" else one["role"]
    if tools:
        _offer(said, tools)
    return said


def _spoken(message: Message) -> str:
    reasoning = message.get("reasoning_content")
    parts = [f"<think>\n{reasoning}\n</think>\n"] if reasoning else []
    parts += [text_of(message)] if message.get("content") else []
    for call in tool_calls_of(message):
        function = call["function"]
        asked = {"name": function["name"], "arguments": function["arguments"]}
        parts.append(f"<tool_call>\n{json.dumps(asked, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)


def _offer(said: list[dict[str, str]], tools: Sequence[Any]) -> None:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    offer = (
        f"# Tools\n\nThese functions can be called:\n<tools>\n{listed}\n</tools>\n\n"
        "A call is a JSON object with name and arguments between <tool_call> and </tool_call>."
    )
    if said[0]["role"] == "system":
        said[0]["content"] += f"\n\n{offer}"
    else:
        said.insert(0, {"role": "system", "content": offer})

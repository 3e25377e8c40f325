"""Conversations for supervised fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trajgym.adapters.exports._conversation import (
    base_chain,
    leaves_of,
    picture_messages,
    template_messages,
    tools_json,
    until_answer,
)
from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.exports._images import write_image
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.adapters.exports._stream import Export
    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = ["export_sft", "refusal"]


def export_sft(
    export: Export,
    *,
    include: Literal["passed", "all"] = "passed",
    images: Literal["refs", "files"] = "refs",
) -> None:
    """Write ``sft.jsonl``, one conversation per line, from exact and text turns.

    ``messages`` ends with an assistant message and has the arguments of tool calls as objects;
    ``tools`` is a JSON string. An attempt gives one line for its own conversation, one for each
    context that was later rewritten, and one for each sub-agent. Lines of one attempt, or of rival
    attempts, can share messages.

    Args:
        export: what to write.
        include: ``passed`` takes the attempts that solved the task; ``all`` every scored attempt.
        images: ``refs`` keeps images as references to blobs. ``files`` writes each image once to
            ``images/`` and adds a column ``images`` with the paths; contents are then lists of
            parts, with ``{"type": "image"}`` in a user message for each image.

    Raises:
        InvalidInput: ``include`` or ``images`` has an unknown value, ``files`` was requested
            without blobs, or values were given, which this export can't use.
    """
    if images not in {"refs", "files"}:
        raise InvalidInput(f"export sft: images is {images!r}; use 'refs' or 'files'")
    if images == "files" and export.blobs is None:
        raise InvalidInput(
            "export sft: images='files' needs the images' bytes: pass blobs=run.blob"
        )
    if include not in {"passed", "all"}:
        raise InvalidInput(f"export sft: include is {include!r}; use 'passed' or 'all'")
    if export.values:
        raise InvalidInput("export sft takes no values: it selects attempts by their outcome")
    with JsonLines(export.file("sft.jsonl")) as sink:
        for tree in export.sessions:
            for attempt in tree.attempts:
                if reason := refusal(attempt, include):
                    export.report.drop(tree.record.id, attempt.index, reason)
                    continue
                for leaf in leaves_of(tree, attempt):
                    try:
                        line = _line(tree, attempt, leaf)
                        sink.write(line if images == "refs" else _with_files(line, export))
                    except InvalidInput as error:
                        export.report.drop(tree.record.id, attempt.index, str(error))
                    else:
                        export.report.count(synthetic=line["synthetic"])


def refusal(attempt: Attempt, include: str) -> str | None:
    """Return why an attempt is not to be learnt from, or None if it is."""
    if not attempt.status.scored or attempt.outcome is None:
        return f"not scored ({attempt.status})"
    if include == "passed" and not attempt.outcome.passed:
        return "did not pass"
    return None


def _line(tree: SessionTree, attempt: Attempt, leaf: Turn) -> dict[str, Any]:
    messages = template_messages(until_answer(tree, leaf), f"turn {leaf.index}")
    assert attempt.outcome is not None
    chain = base_chain(tree, leaf)
    return {
        "messages": messages,
        "tools": tools_json(tree),
        "session": tree.record.id,
        "task": tree.record.task,
        "group": tree.record.group,
        "attempt": attempt.index,
        "agent": leaf.agent,
        "turns": [turn.index for turn in chain],
        "status": str(attempt.status),
        "score": attempt.outcome.score,
        "passed": attempt.outcome.passed,
        "policy": leaf.policy,
        "synthetic": any(turn.synthetic for turn in chain),
    }


def _with_files(line: dict[str, Any], export: Export) -> dict[str, Any]:
    assert export.blobs is not None
    messages, blobs = picture_messages(line["messages"])
    paths = [write_image(export.out, name, export.blobs) for name in blobs]
    return line | {"messages": messages, "images": paths}

"""What an attempt shows by its structure alone, without a model."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from trajgym.rollout.memory._records import FailedCall, Failure, Repeat, Step
from trajgym.trajectory import text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Attempt, CallResult, SessionTree, Turn

__all__ = [
    "action_of",
    "call_error",
    "error_line",
    "failure_of",
    "failure_text",
    "main_turns",
    "result_of",
    "short",
    "steps_in",
    "steps_of",
    "steps_text",
    "task_text",
    "without_memory",
]

_LINE = 200
_ACTION = 300
_RESULT = 300
_STEPS = 30
"""Most steps of a demonstration that are written; the middle ones of a longer one are left out."""
_FAILED = frozenset({"error", "invalid", "timeout"})
_ERROR = re.compile(r"\b\w*(error|exception|fatal|failed|traceback|denied|not found)\b", re.I)
_TRACE = re.compile(r"\btraceback\b", re.I)
_MEMORY = re.compile(r"<memory>\n.*?\n</memory>\n*", re.DOTALL)


def short(text: str, limit: int) -> str:
    """Return a text on one line, cut to a number of characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def without_memory(text: str) -> str:
    """Return an opening without the memory that :class:`MemoryEnv` put into it."""
    return _MEMORY.sub("", text)


def task_text(tree: SessionTree, prompt: str | None) -> str:
    """Return the text of a session's task: its prompt, or else the first user message."""
    if prompt:
        return prompt
    first = next((turn for turn in tree.turns if not turn.simulated), None)
    shown = [] if first is None else tree.context(first)
    users = [text_of(message) for message in shown if message["role"] == "user"]
    return without_memory(users[0]).strip() if users else tree.record.task


def action_of(turn: Turn) -> str:
    """Return what the agent did in a turn: its calls, or else its text."""
    calls = [call["function"] for call in tool_calls_of(turn.message)]
    done = "; ".join(f"{call['name']}({call['arguments']})" for call in calls)
    return short(done or text_of(turn.message), _ACTION)


def result_of(turn: Turn) -> str:
    """Return the beginning of what followed a turn."""
    return short(" | ".join(text_of(message) for message in turn.observation), _RESULT)


def steps_of(tree: SessionTree, attempt: Attempt) -> tuple[Step, ...]:
    """Return the main agent's turns of an attempt."""
    return steps_in(main_turns(tree, attempt))


def steps_in(turns: Sequence[Turn]) -> tuple[Step, ...]:
    """Return turns as steps."""
    return tuple(
        Step(turn=turn.index, action=action_of(turn), result=result_of(turn)) for turn in turns
    )


def main_turns(tree: SessionTree, attempt: Attempt) -> list[Turn]:
    """Return the turns on an attempt's path that the main agent took."""
    return [turn for turn in tree.trajectory(attempt) if turn.role == "main"]


def steps_text(steps: tuple[Step, ...]) -> str:
    """Return the steps of a demonstration as lines."""
    lines = []
    for number, step in enumerate(steps, 1):
        lines.append(f"{number}. {step.action}")
        if step.result:
            lines.append(f"   -> {step.result}")
    if len(steps) > _STEPS:
        head, tail = _STEPS // 2, _STEPS - _STEPS // 2
        left = len(steps) - head - tail
        return "\n".join(
            [steps_text(steps[:head]), f"[{left} steps left out]", steps_text(steps[-tail:])]
        )
    return "\n".join(lines)


def error_line(text: str, *, failed: bool) -> str:
    """Return the last line of a text that names an error.

    Args:
        text: an observation.
        failed: whether it is known to be one of a failure; then its last line is returned if none
            names an error.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.search(line) and not _TRACE.search(line)]
    found = named[-1] if named else (lines[-1] if failed and lines else "")
    return short(found, _LINE)


def failure_of(tree: SessionTree, attempt: Attempt) -> Failure:
    """Return what failed where in a scored attempt."""
    turns = main_turns(tree, attempt)
    assert attempt.outcome is not None
    last_error = ""
    for turn in reversed(turns):
        last_error = error_line("\n".join(map(text_of, turn.observation)), failed=False)
        if last_error:
            break
    return Failure(
        status=str(attempt.status),
        score=attempt.outcome.score,
        turns=len(turns),
        first_failed_call=next(filter(None, map(_failed_call, turns)), None),
        repeats=_repeats(turns),
        last_error=last_error,
    )


def failure_text(failure: Failure) -> str:
    """Return a failure as sentences."""
    detail = failure.status.removeprefix("truncated:")
    ended = (
        f"The attempt reached its limit of {detail} after {failure.turns} turns"
        if failure.status.startswith("truncated:")
        else f"The attempt ended after {failure.turns} turns"
    )
    lines = [f"{ended} without solving the task (score {failure.score:g})."]
    if (call := failure.first_failed_call) is not None:
        lines.append(
            f"The first call that failed was {call.tool}({call.arguments}), {call.status}"
            + (f": {call.error}" if call.error else ".")
        )
    lines += [
        f"Repeated {len(repeat.turns)} times with the same result: {repeat.action}"
        for repeat in failure.repeats
    ]
    if failure.last_error and (call is None or failure.last_error != call.error):
        lines.append(f"The last error was: {failure.last_error}")
    return "\n".join(lines)


def _failed_call(turn: Turn) -> FailedCall | None:
    arguments = {call["id"]: call["function"]["arguments"] for call in tool_calls_of(turn.message)}
    for call in turn.calls:
        if call.status in _FAILED:
            return FailedCall(
                turn=turn.index,
                tool=call.name,
                status=call.status,
                arguments=short(arguments.get(call.call_id, ""), _LINE),
                error=call_error(turn, call),
            )
    return None


def call_error(turn: Turn, call: CallResult) -> str:
    """Return the line that names why a call failed."""
    for message in turn.observation:
        if message.get("tool_call_id") == call.call_id:
            return error_line(text_of(message), failed=True)
    return ""


def _repeats(turns: list[Turn]) -> tuple[Repeat, ...]:
    """Return the actions after which the same state was observed; ids of calls don't count."""
    seen: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for turn in turns:
        observed = tuple(text_of(message) for message in turn.observation)
        if any(observed):
            seen[action_of(turn), observed].append(turn.index)
    return tuple(
        Repeat(action=action, turns=tuple(found))
        for (action, _), found in seen.items()
        if len(found) > 1
    )

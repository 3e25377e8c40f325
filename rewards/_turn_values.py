"""Columns of a single turn: format, answers, signals, states and actions."""

from __future__ import annotations

import json
import math
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.trajectory import InvalidInput, text_of, tool_calls_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = [
    "action_text",
    "answer_count",
    "expert_text",
    "format_ok",
    "number",
    "signal",
    "state_digest",
    "state_text",
    "surprisal",
    "token_counts",
]

_ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)


def format_ok(turn: Turn) -> bool:
    """Return the signal ``format_ok``, else whether no call was invalid."""
    given = turn.signals.get("format_ok")
    return all(c.status != "invalid" for c in turn.calls) if given is None else bool(given)


def answer_count(turn: Turn) -> int:
    """Return the signal ``answers``, else the number of closed answer blocks; -1 if unmatched."""
    given = turn.signals.get("answers")
    if given is not None:
        return int(given)
    text = text_of(turn.message)
    if "answer>" not in text:
        return 0
    closed = len(_ANSWER.findall(text))
    return closed if text.count("<answer>") == text.count("</answer>") == closed else -1


def number(turn: Turn, name: str, where: str) -> float | None:
    """Return a signal as a number (of a list of numbers, the mean); None if it is missing.

    Raises:
        InvalidInput: the signal is something else, or not finite.
    """
    given = turn.signals.get(name)
    if given is None:
        return None
    values = given if isinstance(given, list) and given else [given]
    try:
        found = math.fsum(values) / len(values)
    except TypeError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(
            f"{where}: signal {name} is {given!r:.60}; expected a finite number or a list of them",
        )
    return found


def signal(turn: Turn, name: str, where: str) -> tuple[float | None, list[float]]:
    """Return a signal's number for the turn (None if there is none) and for each of its spans.

    Raises:
        InvalidInput: the signal is neither a finite number nor a list with one per response id.
    """
    spans = turn.tokens.spans if turn.tokens is not None else ()
    given = turn.signals.get(name)
    if not isinstance(given, list):
        found = number(turn, name, where)
        return found, [found or 0.0] * len(spans)
    size = turn.tokens.response_ids.size if turn.tokens is not None else 0
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.shape != (size,) or size == 0 or not np.isfinite(values).all():
        raise InvalidInput(
            f"{where}: signal {name} is a list of {len(given)}; expected a finite number for each "
            f"of the {size} response ids",
        )
    assert turn.tokens is not None
    sampled = turn.tokens.sampled_mask
    inside = [slice(span.start, span.end) for span in spans]
    return _mean(values[sampled]), [_mean(values[one][sampled[one]]) for one in inside]


def _mean(values: npt.NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else 0.0


def surprisal(turn: Turn) -> float:
    """Return the mean of ``-log p`` over the turn's sampled tokens, 0.0 if there are none."""
    tokens = turn.tokens
    if tokens is None:
        return 0.0
    sampled = sum(s.length for s in tokens.segments if s.sampled)
    # Inserted ids have a log-prob of 0 and do not contribute.
    return -float(tokens.logprobs.sum(dtype=np.float64)) / sampled if sampled else 0.0


def token_counts(turn: Turn) -> tuple[int, int]:
    """Return prompt and response tokens, 0 where unknown."""
    tokens = turn.tokens
    if tokens is not None:
        return tokens.prompt_kept + tokens.prompt_ids.size, tokens.response_ids.size
    if turn.usage is not None:
        return turn.usage.prompt_tokens, turn.usage.completion_tokens
    return 0, 0


def _state(tree: SessionTree, turn: Turn) -> list[dict[str, Any]]:
    seen = [] if turn.parent is None else tree.turns[turn.parent].observation
    return [*seen, *turn.context]


def state_digest(tree: SessionTree, turn: Turn) -> bytes:
    """Return the sha256 of what was new to the policy at this turn, without ids of tool calls."""
    # Call ids are unique, so with them two visits to the same state would never match.
    bare = [
        {key: value for key, value in message.items() if key != "tool_call_id"}
        for message in _state(tree, turn)
    ]
    canonical = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode("utf-8", "surrogatepass")).digest()


def state_text(tree: SessionTree, turn: Turn) -> str:
    """Return the text of what was new to the policy at this turn."""
    return "\n".join(text_of(message) for message in _state(tree, turn))


def action_text(turn: Turn) -> str:
    """Return the signal ``action``, else the tool calls, else the text of the message."""
    given = turn.signals.get("action")
    if given is not None:
        return str(given)
    calls = tool_calls_of(turn.message)
    if calls:
        functions = [call["function"] for call in calls]
        return "\n".join(f"{f['name']} {f['arguments']}" for f in functions)
    return text_of(turn.message)


def expert_text(turn: Turn, depth: int, attempt: Attempt) -> str | None:
    """Return the expert's action at this point, None if it is not recorded."""
    given = turn.signals.get("expert_action")
    if given is not None:
        return str(given)
    if attempt.outcome is None:
        return None
    actions = attempt.outcome.details.get("expert_actions", [])
    return str(actions[depth]) if depth < len(actions) else None

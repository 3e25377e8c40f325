"""What a session can hold beside its messages, so that a format can say what it loses of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.rollout.hosted import without_native
from trajgym.trajectory import Outcome, blob_hashes, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trajgym.trajectory import Message, SessionTree, Task, Turn

__all__ = ["FEATURES", "features_of"]

_Reader = "Callable[[SessionTree, Task | None], Any]"


def _messages(tree: SessionTree) -> Iterator[Message]:
    for turn in tree.turns:
        yield from (*turn.context, turn.message, *turn.observation)


def _developer(tree: SessionTree) -> list[int]:
    """Return the places of messages with the role developer."""
    return [n for n, one in enumerate(_messages(tree)) if one["role"] == "developer"]


def _per_turn(read: Callable[[Turn], Any], default: Any = None) -> Callable[..., Any]:
    """Return a reader of one value per turn, which is None if no turn has one."""

    def values(tree: SessionTree, task: Task | None) -> list[Any] | None:
        del task
        found = [read(turn) for turn in tree.turns]
        return found if any(value != default for value in found) else None

    return values


def _ids(tree: SessionTree, task: Task | None) -> Any:
    del task
    found = [
        (tree.prompt(turn).tolist(), turn.tokens.response_ids.tolist(), turn.tokens.sampled_mask)
        if turn.tokens is not None
        else None
        for turn in tree.turns
    ]
    plain = [None if one is None else (*one[:2], one[2].tolist()) for one in found]
    return plain if any(plain) else None


def _versions(turn: Turn) -> Any:
    if turn.tokens is None:
        return None
    return [one for one in turn.tokens.segments if one.sampled] or None


def _call_results(turn: Turn) -> Any:
    if all(one.status == "ok" and one.reward is None and not one.seconds for one in turn.calls):
        return None
    return turn.calls


def _finish(turn: Turn) -> str | None:
    usual = "tool_calls" if tool_calls_of(turn.message) else "stop"
    return turn.finish if turn.finish not in {usual, "stop"} else None


def _outcomes(read: Callable[[Outcome], Any]) -> Callable[..., Any]:
    def values(tree: SessionTree, task: Task | None) -> Any:
        del task
        found = [None if one.outcome is None else read(one.outcome) for one in tree.attempts]
        return found if any(value not in (None, {}) for value in found) else None

    return values


def _ends(tree: SessionTree, task: Task | None) -> Any:
    del task
    found = [(str(one.status), one.cause) for one in tree.attempts]
    return found if any(end != ("completed", "") for end in found) else None


FEATURES: dict[str, tuple[str, Callable[[SessionTree, Any], Any]]] = {
    "token ids": ("ids of prompts and responses", _ids),
    "log-probs": (
        "log-probs of sampled ids",
        _per_turn(lambda turn: None if turn.tokens is None else turn.tokens.logprobs.tolist()),
    ),
    "policy versions": ("policy versions of sampled ids", _per_turn(_versions)),
    "token spans": (
        "spans of tool calls and reasoning over ids",
        _per_turn(lambda turn: (turn.tokens.spans or None) if turn.tokens is not None else None),
    ),
    "images": (
        "images in messages",
        lambda tree, _: list(blob_hashes(list(_messages(tree)))) or None,
    ),
    "reasoning": (
        "a message's reasoning apart from its text",
        _per_turn(lambda turn: turn.message.get("reasoning_content") or None),
    ),
    "native parts": (
        "a provider's own form of a message",
        _per_turn(lambda turn: None if without_native(turn.message) is turn.message else True),
    ),
    "developer messages": (
        "the role developer, where a format has only system",
        lambda tree, _: _developer(tree) or None,
    ),
    "tool schemas": ("schemas of the offered tools", lambda tree, _: tree.record.tools or None),
    "tool call ids": (
        "ids that link calls and results",
        _per_turn(lambda turn: [one["id"] for one in tool_calls_of(turn.message)] or None),
    ),
    "call results": ("status, reward and time of tool calls", _per_turn(_call_results)),
    "turn rewards": ("step rewards", _per_turn(lambda turn: turn.reward)),
    "signals": ("values that annotators wrote", _per_turn(lambda turn: turn.signals or None)),
    "usage": ("token counts as the endpoint reported them", _per_turn(lambda turn: turn.usage)),
    "sampling": ("temperature, top-p, log-prob mode", _per_turn(lambda turn: turn.sampling)),
    "finish reasons": ("why sampling stopped, if unusual", _per_turn(_finish)),
    "model": ("the policy's name", _per_turn(lambda turn: turn.policy, "")),
    "start times": ("when turns began", _per_turn(lambda turn: turn.started_at or None)),
    "durations": (
        "seconds in policy and environment",
        _per_turn(lambda turn: (turn.policy_seconds, turn.env_seconds), (0.0, 0.0)),
    ),
    "episode ends": (
        "which turn ended the episode",
        _per_turn(lambda turn: turn.done, default=False),
    ),
    "forks": (
        "rival attempts that share turns",
        lambda tree, _: len(tree.attempts) if len(tree.attempts) > 1 else None,
    ),
    "rewrites": (
        "turns after which the context was edited",
        _per_turn(lambda turn: (turn.kept, turn.context) if turn.edge == "rewrite" else None),
    ),
    "sub-agents": (
        "turns of other agents",
        _per_turn(lambda turn: turn.agent if turn.role != "user" else "main", "main"),
    ),
    "other roles": ("side calls and simulated users", _per_turn(lambda turn: turn.role, "main")),
    "proxy records": ("how a proxy received a turn", _per_turn(lambda turn: turn.wire)),
    "snapshots": ("environment snapshots", _per_turn(lambda turn: turn.snapshot)),
    "score": ("score", _outcomes(lambda outcome: outcome.score)),
    "passed": ("whether the task counts as solved", _outcomes(lambda outcome: outcome.passed)),
    "outcome details": ("details of the verification", _outcomes(lambda outcome: outcome.details)),
    "end": ("how an attempt ended, if not completed", _ends),
    "group": (
        "the group and the number of the sample",
        lambda tree, _: (tree.record.group, tree.record.sample) if tree.record.group else None,
    ),
    "task id": ("the task's id", lambda tree, _: tree.record.task),
    "task prompt": ("the task's prompt", lambda _, task: None if task is None else task.prompt),
    "task data": (
        "the task's data, licence included",
        lambda _, task: None if task is None else task.data or None,
    ),
    "session id": ("the session's id", lambda tree, _: tree.record.id),
    "environment": ("the environment and its settings", lambda tree, _: tree.record.env or None),
    "seed": ("the environment's seed", lambda tree, _: tree.record.seed),
    "budgets": ("budgets", lambda tree, _: tree.record.budgets or None),
    "labels": ("labels of the session", lambda tree, _: tree.record.labels or None),
}
"""By name: what it is, and a function of a session and its task that is None without it."""


def features_of(tree: SessionTree, task: Task | None) -> list[str]:
    """Return the names of the features that a session has."""
    return [name for name, (_, read) in FEATURES.items() if read(tree, task) is not None]

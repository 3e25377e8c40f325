"""Helpers of judges: presenting a turn, asking several times, parsing the answer."""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import TYPE_CHECKING

from trajgym.envs.faults import contained
from trajgym.rollout._policy import PolicyGarbage, PolicyRequest
from trajgym.trajectory import text_of, tool_calls_of

if TYPE_CHECKING:
    from trajgym.envs import Reply
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import Message, SessionTree, Turn

__all__ = ["ask", "boxed", "judged_turns", "next_observations", "show_turn"]

_BOXED = re.compile(r"\\boxed\s*\{\s*([+-]?\d+)\s*\}")


def judged_turns(tree: SessionTree) -> list[Turn]:
    """Return the turns that were followed by an observation, by which they can be judged."""
    after = _followers(tree)
    return [
        turn
        for turn in tree.turns
        if not turn.simulated and (turn.observation or _shown(after.get(turn.index)))
    ]


def next_observations(tree: SessionTree, turn: Turn) -> list[Message]:
    """Return all messages that the agent was shown between a turn and its next one."""
    return [*turn.observation, *_shown(_followers(tree).get(turn.index))]


def _followers(tree: SessionTree) -> dict[int, Turn]:
    """Return the turn that goes on from each turn, by the index of the latter.

    That is its continuation. Without one it is a rewrite that kept all of the turn's prompt: an
    engine that renders anew, an answer that came back edited, or one that was dropped for an error
    message. What follows a rewrite of the prompt itself, such as a compaction, is no observation.
    """
    prompts: list[int] = []  # number of messages
    whole: list[int] = []
    found: dict[int, Turn] = {}
    for turn in tree.turns:
        base = tree.base(turn)
        start = 0 if base is None else whole[base.index]
        kept = start if base is None or turn.kept is None else min(start, turn.kept)
        prompts.append(kept + len(turn.context))
        whole.append(prompts[-1] + 1 + len(turn.observation))
        if base is None or base.index != turn.parent or turn.role.startswith("side:"):
            continue
        known = found.get(base.index)
        if turn.edge == "continue":
            if known is None or known.edge != "continue":
                found[base.index] = turn
        elif turn.edge == "rewrite" and known is None and kept >= prompts[base.index]:
            found[base.index] = turn
    return found


def _shown(later: Turn | None) -> list[Message]:
    """Return the messages of a following turn, without the edited form of the answer before it."""
    messages = [] if later is None else later.context
    return messages[1:] if messages and messages[0]["role"] == "assistant" else messages


def show_turn(tree: SessionTree, turn: Turn, limit: int) -> str:
    """Return the task, a turn and what followed it as text, each part with at most ``limit``."""
    context = tree.context(turn)
    task = next((m for m in context if m["role"] == "user"), None)
    before = context[-1] if context and context[-1] is not task else None
    parts = [("TASK", _bounded(task, limit))]
    if before is not None:
        parts.append(("WHAT THE AGENT SAW LAST", _bounded(before, limit)))
    parts.append(("WHAT THE AGENT DID", _bounded(turn.message, limit)))
    following = next_observations(tree, turn)
    for number, message in enumerate(following, 1):
        name = f"WHAT HAPPENED NEXT, {number} of {len(following)} ({message['role']})"
        parts.append((name, _bounded(message, limit)))
    return "\n\n".join(f"### {name}\n{text}" for name, text in parts)


def _bounded(message: Message | None, limit: int) -> str:
    if message is None:
        return "(not recorded)"
    calls = [call["function"] for call in tool_calls_of(message)]
    lines = [text_of(message), *(f"[calls {c['name']} with {c['arguments']}]" for c in calls)]
    text = "\n".join(line for line in lines if line) or "(nothing)"
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


async def ask(
    policy: Policy, messages: list[Message], tree: SessionTree, turn: Turn, count: int
) -> list[str | None]:
    """Ask the same question several times concurrently; None for an answer that is not a message.

    Raises:
        PolicyError: there was no answer; asking again later may help.
    """
    name = f"{tree.record.id}/{turn.index}"
    requests = [
        PolicyRequest(
            session=name, messages=messages, seed=zlib.crc32(f"{policy.name}/{name}/{k}".encode())
        )
        for k in range(count)
    ]

    async def answer_to(request: PolicyRequest) -> Reply:
        with contained():
            return await policy.sample(request)

    asked = [answer_to(request) for request in requests]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: list[str | None] = []
    for answer in answers:
        if isinstance(answer, PolicyGarbage):
            found.append(None)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(text_of(answer.message))
    return found


def boxed(text: str | None, allowed: frozenset[int]) -> int | None:
    r"""Return the number in the last ``\boxed{}`` of an answer, None if it is not allowed."""
    numbers = _BOXED.findall(text or "")
    return int(numbers[-1]) if numbers and int(numbers[-1]) in allowed else None

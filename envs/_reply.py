"""What a policy hands to a session: one assistant message, with its ids where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import (
        FloatArray,
        ImageRef,
        IntArray,
        Message,
        Sampling,
        Segment,
        Span,
        Usage,
    )

__all__ = ["Reply", "Sampled", "TurnLimits"]


@dataclass(slots=True, kw_only=True)
class Sampled:
    """The ids of one policy call, as the engine gave them; never re-encoded text.

    Args:
        prompt_ids: int32 ``[P]``, every id that the engine was given.
        response_ids: int32 ``[N]``, sampled ids and ids inserted by a reasoning budget, in order.
        logprobs: float32 ``[N]``, 0.0 on inserted ids.
        segments: runs over the response, see :class:`trajgym.trajectory.Segment`.
        spans: tool calls, reasoning and the like over the response.
        images: the images in the prompt, in order, over all of its ids.
    """

    prompt_ids: IntArray | Sequence[int]
    response_ids: IntArray | Sequence[int]
    logprobs: FloatArray | Sequence[float]
    segments: tuple[Segment, ...]
    spans: tuple[Span, ...] = ()
    images: tuple[ImageRef, ...] = ()


@dataclass(slots=True, kw_only=True)
class Reply:
    """One answer of a policy.

    Args:
        message: the assistant message in chat form (``tool_calls`` with JSON-string arguments).
        sampled: the engine's ids; None makes a text turn.
        context: the messages that the policy really showed the model, where it edited what the
            session gave it (stripped thinking, compaction); None if it changed nothing.
        finish: ``stop``, ``tool_calls``, ``length`` or ``abort``.
        usage: token counts; taken from ``sampled`` if None.
        sampling: the parameters it was sampled with.
        policy: who spoke, as ``kind:name``.
        synthetic: ids and log-probs are a fake engine's; such rows train nothing real.
        paused_seconds: time in which the engine was paused or the request queued; it does not
            count against the agent.
    """

    message: Message
    sampled: Sampled | None = None
    context: list[Message] | None = None
    finish: str = "stop"
    usage: Usage | None = None
    sampling: Sampling | None = None
    policy: str = ""
    synthetic: bool = False
    paused_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """What the session's budgets leave for the next policy call; None is unlimited.

    Args:
        completion_tokens: most response tokens of this turn, reasoning included.
        reasoning_tokens: most reasoning tokens; when they run out the reasoning is closed with
            inserted ids and the turn goes on.
        seconds: wall-clock seconds of sampling, pauses left out.
    """

    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    seconds: float | None = None

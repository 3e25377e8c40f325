"""The reply of a policy: an assistant message, with token ids if it has them."""

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
    """The ids of one policy call, as the engine received and returned them.

    Args:
        prompt_ids: int32 ``[P]``, the whole prompt.
        response_ids: int32 ``[N]``, sampled ids and ids inserted by a reasoning budget, in order.
        logprobs: float32 ``[N]``, 0.0 on inserted ids.
        segments: runs over the response, see :class:`trajgym.trajectory.Segment`.
        spans: tool calls, reasoning and other spans of the response.
        images: the images of the whole prompt, in order.
    """

    prompt_ids: IntArray | Sequence[int]
    response_ids: IntArray | Sequence[int]
    logprobs: FloatArray | Sequence[float]
    segments: tuple[Segment, ...]
    spans: tuple[Span, ...] = ()
    images: tuple[ImageRef, ...] = ()


@dataclass(slots=True, kw_only=True)
class Reply:
    """One response of a policy.

    Args:
        message: the assistant message in chat form (``tool_calls`` with JSON-string arguments).
        sampled: the engine's ids; None makes a text turn.
        context: the messages that the model was shown, if the policy edited those of the session
            (stripped thinking, compaction); None if it changed nothing.
        finish: ``stop``, ``tool_calls``, ``length`` or ``abort``.
        usage: token counts; taken from ``sampled`` if None.
        sampling: the parameters with which it was sampled.
        policy: the policy, as ``kind:name``.
        synthetic: ids and log-probs come from a fake engine and are not to be trained on.
        paused_seconds: time during which the engine was paused or the request queued; it does not
            count as the agent's time.
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
    """What is left of the budgets for the next policy call; None is unlimited.

    Args:
        completion_tokens: response tokens of this turn, including reasoning.
        reasoning_tokens: reasoning tokens; when they are used up, the reasoning is closed with
            inserted ids and the turn continues.
        seconds: wall-clock seconds of sampling, without pauses.
    """

    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    seconds: float | None = None

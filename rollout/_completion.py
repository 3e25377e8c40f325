"""Reading chat completions, including vLLM's token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.envs import Sampled
from trajgym.rollout._policy import PolicyGarbage
from trajgym.rollout.rendering._parsing import tool_call
from trajgym.trajectory import InvalidInput, Segment, Usage, check_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout.rendering._base import Renderer
    from trajgym.trajectory import Message, Span, ToolSchema

__all__ = ["Completion", "read_completion"]

_FINISH = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class Completion(NamedTuple):
    """The parts of a reply that the endpoint returns."""

    message: Message
    sampled: Sampled | None
    finish: str
    usage: Usage | None


def read_completion(
    answer: Any,
    *,
    where: str,
    versions: tuple[int, int],
    tools: Sequence[ToolSchema] = (),
    renderer: Renderer | None = None,
    needs_ids: bool = False,
) -> Completion:
    """Read the response that the SDK returned.

    Args:
        answer: a ``ChatCompletion``, or whatever the server sent.
        where: name of the policy, for error messages.
        versions: oldest and newest policy version that can have sampled it.
        tools: the tools that were offered.
        renderer: finds spans.
        needs_ids: whether a response without token ids is an error.

    Raises:
        PolicyGarbage: it has no message, or inconsistent ids and log-probs.
    """
    choices = getattr(answer, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise PolicyGarbage(f"{where}: the answer has no choices: {_short(answer)}")
    choice = choices[0]
    if getattr(choice, "message", None) is None:
        raise PolicyGarbage(f"{where}: the first choice has no message: {_short(choice)}")
    sampled = _sampled(answer, choice, where, versions)
    if sampled is None and needs_ids:
        raise PolicyGarbage(
            f"{where}: the answer has no token ids and log-probs; token_ids=True needs a server "
            "that returns them (vLLM's return_token_ids)",
        )
    message = _message(choice.message, where)
    if sampled is not None and renderer is not None:
        sampled.spans = _spans(sampled, renderer, tools, message)
    reason = getattr(choice, "finish_reason", None)
    finish = "abort" if reason == "abort" else _FINISH.get(str(reason), "stop")
    if finish == "stop" and message.get("tool_calls"):
        finish = "tool_calls"
    return Completion(message, sampled, finish, _usage(answer))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _message(found: Any, where: str) -> Message:
    content = getattr(found, "content", None)
    if content is None:
        content = getattr(found, "refusal", None)
    thought = getattr(found, "reasoning_content", None) or getattr(found, "reasoning", None)
    calls = getattr(found, "tool_calls", None) or []
    message: Message = {"role": "assistant", "content": "" if content is None else content}
    if isinstance(thought, str) and thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(call, i, where) for i, call in enumerate(calls)]
    try:
        return check_message(message, where, role="assistant")
    except InvalidInput as error:
        raise PolicyGarbage(str(error)) from error


def _call(call: Any, index: int, where: str) -> dict[str, Any]:
    function = getattr(call, "function", None)
    name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    if not isinstance(name, str):
        raise PolicyGarbage(f"{where}: tool call {index} names no function: {_short(call)}")
    identity = getattr(call, "id", None) or f"call_{index}"
    return tool_call(identity, name, arguments if isinstance(arguments, str) else "{}")


def _sampled(answer: Any, choice: Any, where: str, versions: tuple[int, int]) -> Sampled | None:
    prompt = getattr(answer, "prompt_token_ids", None)
    ids = getattr(choice, "token_ids", None)
    logprobs = getattr(getattr(choice, "logprobs", None), "content", None)
    if prompt is None or not ids or logprobs is None:
        return None
    if len(ids) != len(logprobs):
        raise PolicyGarbage(
            f"{where}: {len(ids)} token ids but {len(logprobs)} log-probs: they must agree",
        )
    try:
        values = np.array([entry.logprob for entry in logprobs], dtype=np.float32)
        sampled = Sampled(
            prompt_ids=np.array(prompt, dtype=np.int32),
            response_ids=np.array(ids, dtype=np.int32),
            logprobs=values,
            segments=(Segment(len(ids), *versions),),
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise PolicyGarbage(f"{where}: token ids or log-probs can't be read: {error}") from error
    if not np.isfinite(values).all():
        raise PolicyGarbage(f"{where}: some token's log-prob is missing or not finite")
    return sampled


def _spans(
    sampled: Sampled, renderer: Renderer, tools: Sequence[ToolSchema], message: Message
) -> tuple[Span, ...]:
    """Return the renderer's spans with the server's call ids.

    If the server parsed other calls than the renderer does, its message is kept, and spans of calls
    are omitted.
    """
    spans = renderer.parse(sampled.response_ids, sampled.prompt_ids, tools).spans
    names = [call["id"] for call in message.get("tool_calls") or []]
    calls = [span for span in spans if span.kind == "tool_call"]
    if len(calls) != len(names):
        return tuple(span for span in spans if span.kind != "tool_call")
    given = iter(names)
    return tuple(
        span._replace(call_id=next(given)) if span.kind == "tool_call" else span for span in spans
    )


def _usage(answer: Any) -> Usage | None:
    usage = getattr(answer, "usage", None)
    if usage is None:
        return None
    details = getattr(usage, "completion_tokens_details", None)
    return Usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        reasoning_tokens=_count(details, "reasoning_tokens"),
        cached_tokens=_count(getattr(usage, "prompt_tokens_details", None), "cached_tokens"),
    )


def _count(holder: Any, name: str) -> int:
    value = getattr(holder, name, 0)
    return value if isinstance(value, int) else 0

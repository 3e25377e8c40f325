"""A policy behind Anthropic's Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from trajgym.envs import Reply
from trajgym.rollout._policy import PolicyGarbage
from trajgym.rollout.hosted._base import HostedPolicy, count, present
from trajgym.rollout.hosted._blocks import message_of_blocks, to_messages, to_tools
from trajgym.rollout.hosted._images import with_images
from trajgym.trajectory import InvalidInput, Usage, check_message
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout.hosted._settings import EndpointKeywords
    from trajgym.trajectory import Sampling

__all__ = ["AnthropicPolicy"]

_MOST_TOKENS = 16_384
_LEAST_THINKING = 1024
"""The API refuses a smaller ``budget_tokens``."""
_FINISH = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class AnthropicPolicy(HostedPolicy):
    """Calls an endpoint of the Messages API.

    Turns are text turns. Thinking blocks are recorded with their signatures and sent back
    unchanged. Stored images are sent as base64, those of tool results inside the results. Answers
    are streamed by default, because a long answer that is not streamed may exceed the idle timeout
    of a proxy, and the SDK refuses to request one.

    ``limits.completion_tokens`` is sent as ``max_tokens``, which the API requires; without a limit
    it is 16,384. ``limits.reasoning_tokens`` lowers the ``budget_tokens`` of thinking that
    ``extra_body`` enables, though not below the API's minimum of 1,024. The API takes no seed, and
    a temperature of 1, its default, is not sent.

    Args:
        model: name of the model at the endpoint.
        stream: receive answers as streams.
        endpoint: see :class:`EndpointSettings`. ``base_url`` is without ``/v1``. ``extra_body`` is
            for fields such as ``{"thinking": {"type": "enabled", "budget_tokens": 4096}}``, or
            ``{"cache_control": {"type": "ephemeral"}}`` for prompt caching.

    Raises:
        MissingExtra: the ``anthropic`` package is not installed.
    """

    kind = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        **endpoint: Unpack[EndpointKeywords],
    ) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise MissingExtra("anthropic", "anthropic") from error

        super().__init__(anthropic, model, **endpoint)
        self._stream = stream

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            ContextFull: the conversation does not fit into the model's context; the attempt then
                ends ``truncated:context``.
            PolicyUnavailable: timeouts, rate limits, 5xx or no connection, after all retries.
            PolicyRejected: any other 4xx, or an image whose bytes are not in the request.
            PolicyGarbage: an answer that can't be read.
        """
        answer, paused = await self._ask(self._body(request), request.session)
        message = self._message(answer)
        finish = _FINISH.get(str(getattr(answer, "stop_reason", None)), "stop")
        if finish == "stop" and message.get("tool_calls"):
            finish = "tool_calls"
        return Reply(
            message=message,
            finish=finish,
            usage=_usage(answer),
            sampling=self._sampling_of(request),
            policy=self.name,
            paused_seconds=paused,
        )

    @property
    def _tokens_field(self) -> str:
        return "max_tokens"

    def _open(self, options: dict[str, Any]) -> Any:
        return self._sdk.AsyncAnthropic(**options)

    async def _send(self, client: Any, body: dict[str, Any], headers: dict[str, str]) -> Any:
        if not self._stream:
            return await client.messages.create(**body, extra_headers=headers)
        async with client.messages.stream(**body, extra_headers=headers) as stream:
            return await stream.get_final_message()

    def _body(self, request: PolicyRequest) -> dict[str, Any]:
        sampling = self._sampling_of(request)
        system, messages = to_messages([with_images(m, request.images) for m in request.messages])
        most = sampling.max_tokens or _MOST_TOKENS
        return present(
            {
                "model": self._model,
                "messages": messages,
                "max_tokens": most,
                "system": system or None,
                "tools": to_tools(request.tools) or None,
                "extra_body": self._extra(sampling, request.limits.reasoning_tokens, most) or None,
            }
        )

    def _extra(self, sampling: Sampling, reasoning: int | None, most: int) -> dict[str, Any]:
        """Return the fields for which the SDK has no arguments, such as those of sampling."""
        extra = present({"top_p": sampling.top_p, "top_k": sampling.top_k})
        if sampling.temperature not in (None, 1.0):  # the default; newer models refuse the field
            extra["temperature"] = sampling.temperature
        extra |= self._extra_body
        thinking = extra.get("thinking")
        if isinstance(thinking, dict) and isinstance(thinking.get("budget_tokens"), int):
            limits = [thinking["budget_tokens"], most - 1, *([reasoning] if reasoning else [])]
            extra["thinking"] = {**thinking, "budget_tokens": max(_LEAST_THINKING, min(limits))}
        return extra

    def _message(self, answer: Any) -> dict[str, Any]:
        content = getattr(answer, "content", None)
        if not isinstance(content, list):
            raise PolicyGarbage(f"{self.name}: the answer has no content: {answer!r:.200}")
        try:
            blocks = [block.model_dump(exclude_none=True, mode="json") for block in content]
            return check_message(message_of_blocks(blocks), self.name, role="assistant")
        except (InvalidInput, KeyError, TypeError, AttributeError) as error:
            raise PolicyGarbage(
                f"{self.name}: a content block can't be read: {type(error).__name__}: {error}"
            ) from error


def _usage(answer: Any) -> Usage | None:
    """Return the token counts; the API counts cached prompt tokens apart from the others."""
    usage = getattr(answer, "usage", None)
    if usage is None:
        return None
    cached = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    return Usage(
        prompt_tokens=count(usage, "input_tokens") + cached + written,
        completion_tokens=count(usage, "output_tokens"),
        reasoning_tokens=count(getattr(usage, "output_tokens_details", None), "thinking_tokens"),
        cached_tokens=cached,
    )

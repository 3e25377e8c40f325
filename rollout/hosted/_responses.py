"""A policy behind OpenAI's Responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from trajgym.envs import Reply
from trajgym.rollout._policy import PolicyGarbage, PolicyRejected
from trajgym.rollout.hosted._base import ErrorInAnswer, HostedPolicy, count, present
from trajgym.rollout.hosted._images import with_images
from trajgym.rollout.hosted._items import message_of_items, to_input, to_tools
from trajgym.trajectory import InvalidInput, Usage, check_message, images_to_user

if TYPE_CHECKING:
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout.hosted._settings import EndpointKeywords

__all__ = ["ResponsesPolicy"]

_ENCRYPTED = "reasoning.encrypted_content"
_LEAST_TOKENS = 16
"""The API refuses a smaller ``max_output_tokens``."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesPolicy(HostedPolicy):
    """Calls an endpoint of the Responses API. Each request holds the whole conversation.

    Turns are text turns. The encrypted reasoning of earlier turns is sent back to reasoning models
    (with ``store: false``); it is omitted if the endpoint refuses to encrypt it. Stored images are
    sent as data URLs.

    ``limits.completion_tokens`` is sent as ``max_output_tokens``, whose minimum is 16.
    ``limits.reasoning_tokens`` can't be enforced through this API. The API takes no seed.

    Args:
        model: name of the model at the endpoint.
        stream: receive the answer as a stream, for proxies that drop idle connections.
        tool_images: ``user`` sends the images of tool results in a user message after them,
            ``tool`` leaves them in the result, which not every server accepts.
        endpoint: see :class:`EndpointSettings`. ``extra_body`` is for fields such as
            ``{"reasoning": {"effort": "low"}}``.
    """

    kind = "responses"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"

    def __init__(
        self,
        model: str,
        *,
        stream: bool = False,
        tool_images: Literal["user", "tool"] = "user",
        **endpoint: Unpack[EndpointKeywords],
    ) -> None:
        import openai  # here, not in the first call: it takes most of a second

        super().__init__(openai, model, **endpoint)
        self._stream = stream
        self._tool_images = tool_images
        self._encrypts = True

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            ContextFull: the conversation does not fit into the model's context; the attempt then
                ends ``truncated:context``.
            PolicyUnavailable: timeouts, rate limits, 5xx or no connection, after all retries.
            PolicyRejected: any other 4xx, or an image whose bytes are not in the request.
            PolicyGarbage: an answer that can't be read.
        """
        body = self._body(request)
        try:
            answer, paused = await self._ask(body, request.session)
        except PolicyRejected as error:
            if "include" not in body or "encrypted content" not in str(error).lower():
                raise
            self._encrypts = False  # a model that does not reason
            del body["include"]
            answer, paused = await self._ask(body, request.session)
        message = self._message(answer)
        return Reply(
            message=message,
            finish=_finish(answer, message),
            usage=_usage(answer),
            sampling=self._sampling_of(request),
            policy=self.name,
            paused_seconds=paused,
        )

    @property
    def _tokens_field(self) -> str:
        return "max_output_tokens"

    def _open(self, options: dict[str, Any]) -> Any:
        return self._sdk.AsyncOpenAI(**options)

    async def _send(self, client: Any, body: dict[str, Any], headers: dict[str, str]) -> Any:
        answer = await client.responses.create(**body, stream=self._stream, extra_headers=headers)
        if self._stream:
            answer = await _last(answer)
        error = getattr(answer, "error", None)
        if error is not None:
            raise ErrorInAnswer(error)
        return answer

    def _body(self, request: PolicyRequest) -> dict[str, Any]:
        sampling = self._sampling_of(request)
        messages = request.messages
        if self._tool_images == "user":
            messages = images_to_user(messages)
        extra = self._extra_body | present({"top_k": sampling.top_k})
        most = sampling.max_tokens
        return present(
            {
                "model": self._model,
                "input": to_input([with_images(m, request.images) for m in messages]),
                "store": False,
                "include": [_ENCRYPTED] if self._encrypts else None,
                "tools": to_tools(request.tools) or None,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_output_tokens": None if most is None else max(_LEAST_TOKENS, most),
                "extra_body": extra or None,
            }
        )

    def _message(self, answer: Any) -> dict[str, Any]:
        output = getattr(answer, "output", None)
        if not isinstance(output, list):
            raise PolicyGarbage(f"{self.name}: the answer has no output: {answer!r:.200}")
        try:
            items = [item.model_dump(exclude_none=True, mode="json") for item in output]
            return check_message(message_of_items(items), self.name, role="assistant")
        except (InvalidInput, KeyError, TypeError, AttributeError) as error:
            raise PolicyGarbage(
                f"{self.name}: an output item can't be read: {type(error).__name__}: {error}"
            ) from error


async def _last(stream: Any) -> Any:
    """Return the whole response, which the last event of a stream holds."""
    async with stream:
        async for event in stream:
            if getattr(event, "type", None) in _ENDS:
                return event.response
            if getattr(event, "type", None) == "error":
                raise ErrorInAnswer(event)
    raise ErrorInAnswer({"type": "server_error", "message": "the stream ended early"})


def _finish(answer: Any, message: dict[str, Any]) -> str:
    details = getattr(answer, "incomplete_details", None)
    if getattr(details, "reason", None) == "max_output_tokens":
        return "length"
    return "tool_calls" if message.get("tool_calls") else "stop"


def _usage(answer: Any) -> Usage | None:
    usage = getattr(answer, "usage", None)
    if usage is None:
        return None
    return Usage(
        prompt_tokens=count(usage, "input_tokens"),
        completion_tokens=count(usage, "output_tokens"),
        reasoning_tokens=count(getattr(usage, "output_tokens_details", None), "reasoning_tokens"),
        cached_tokens=count(getattr(usage, "input_tokens_details", None), "cached_tokens"),
    )

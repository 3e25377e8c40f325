"""A policy behind any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Literal

from trajgym.envs import Reply
from trajgym.rollout._completion import read_completion
from trajgym.rollout._image_spans import refuse_placeholders
from trajgym.rollout._policy import (
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyUnavailable,
)
from trajgym.rollout._retry import Retry
from trajgym.trajectory import Sampling, blob_hashes, images_to_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trajgym.envs import Sampled
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout._renderer import Renderer
    from trajgym.trajectory import Message

__all__ = ["OpenAIPolicy"]

_BLOB = "blob:"
_log = logging.getLogger(__name__)


class OpenAIPolicy(Policy):
    """Asks an OpenAI-compatible chat endpoint.

    Turns are text turns, unless the server returns the ids that it was given and sampled together
    with log-probs, as vLLM does when ``token_ids`` is True. Such turns are exact: but the server
    renders each prompt afresh, so a turn may not continue the one before; the ids say so.

    ``limits.completion_tokens`` is sent. ``limits.reasoning_tokens`` can't be enforced over this
    interface (the API closes no reasoning); use a :class:`TokenPolicy` where it must hold.
    Time spent on failed tries and waits counts as paused.

    Images go out as data URLs.

    Args:
        model: name of the model at the endpoint.
        base_url: of the endpoint; the SDK's default (``OPENAI_BASE_URL``) if None.
        api_key: ``OPENAI_API_KEY`` if None, and ``"none"`` if a ``base_url`` is given without any.
        sampling: what is given is sent; ``logprob_mode`` says what the server's log-probs are (vLLM
            reports ``raw`` ones unless started with ``--logprobs-mode processed_logprobs``).
        token_ids: ask for ids and log-probs; an answer without them is then an error.
        versions: returns the policy version that the server now holds; asked before and after each
            call, so that a turn in which it changed carries a range.
        renderer: finds reasoning and tool calls in returned ids, for spans, and the placeholders of
            images, without which a turn with images has no training row; none without it.
        timeout: seconds for one try.
        retry: how often and how long.
        extra_body: further fields of the request.
        session_header: header that carries the session's id, the sticky key of prefix caches.
        tokens_field: name of the token limit; older servers want ``max_tokens``.
        tool_images: ``user`` sends the images of tool results in a user message after them (OpenAI
            takes them nowhere else), ``tool`` leaves them where they are.
        name: recorded with each turn; ``openai:<model>`` if None.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        sampling: Sampling | None = None,
        token_ids: bool = False,
        versions: Callable[[], int] | None = None,
        renderer: Renderer | None = None,
        timeout: float = 600.0,
        retry: Retry | None = None,
        extra_body: Mapping[str, Any] | None = None,
        session_header: str = "x-session-id",
        tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        tool_images: Literal["user", "tool"] = "user",
        name: str | None = None,
    ) -> None:
        import openai  # here, not in the first call: it takes most of a second

        self._sdk: Any = openai
        self.name = name or f"openai:{model}"
        self._model = model
        self._endpoint = (base_url, api_key)
        self._sampling = sampling or Sampling()
        self._token_ids = token_ids
        self._versions = versions or _first_version
        self._renderer = renderer
        self._timeout = timeout
        self._retry = retry or Retry()
        self._extra_body = dict(extra_body or {})
        self._session_header = session_header
        self._tokens_field = tokens_field
        self._tool_images = tool_images
        self._client: Any = None

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            PolicyUnavailable: time-outs, rate limits, 5xx or no connection, after all retries.
            PolicyRejected: any other 4xx, or an image whose bytes are not in the request.
            PolicyGarbage: an answer without a message, or with ids that don't fit together.
        """
        body = self._body(request)
        low, begun = self._versions(), time.monotonic()
        completion, paused = await self._ask(body, request.session, begun)
        found = read_completion(
            completion,
            where=self.name,
            versions=(low, max(low, self._versions())),
            tools=request.tools,
            renderer=self._renderer,
            needs_ids=self._token_ids,
        )
        return Reply(
            message=found.message,
            sampled=await self._placed(found.sampled, request),
            finish=found.finish,
            usage=found.usage,
            sampling=self._sampling_of(request),
            policy=self.name,
            paused_seconds=paused,
        )

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _placed(self, sampled: Sampled | None, request: PolicyRequest) -> Sampled | None:
        """Return what was sampled with the places of the images in the prompt, if they are there.

        A server that returns other ids than the renderer's processor makes gets no places: such
        turns are refused as training rows.
        """
        if sampled is None or self._renderer is None:
            return sampled
        refuse_placeholders(self._renderer.placeholder_ids, sampled.response_ids, self.name)
        if not any(blob_hashes(request.messages)):
            return sampled
        renderer = self._renderer.showing(request.images)
        try:
            images = await asyncio.to_thread(
                renderer.images_in, sampled.prompt_ids, request.messages
            )
        except PolicyRejected as error:
            _log.warning("%s: images are not mapped to ids: %s", self.name, error)
            return sampled
        return dataclasses.replace(sampled, images=images)

    async def _ask(self, body: dict[str, Any], session: str, begun: float) -> tuple[Any, float]:
        """Return the answer and the seconds lost before the try that gave it."""
        openai = self._sdk
        headers = {self._session_header: session} if session else {}
        paused = 0.0
        try:
            client = self._opened()
            async for attempt in self._retry.retrying():
                with attempt:
                    paused = time.monotonic() - begun
                    # The SDK's time-outs start again with each byte; this one does not.
                    async with asyncio.timeout(self._timeout):
                        answer = await client.chat.completions.create(**body, extra_headers=headers)
        except TimeoutError as error:
            raise PolicyUnavailable(f"{self.name}: no answer within {self._timeout:g} s") from error
        except (openai.OpenAIError, ValueError) as error:
            raise self._named(error) from error
        return answer, paused

    def _opened(self) -> Any:
        if self._client is None:
            base_url, api_key = self._endpoint
            if api_key is None and base_url is not None:
                api_key = os.environ.get("OPENAI_API_KEY") or "none"
            self._client = self._sdk.AsyncOpenAI(
                base_url=base_url, api_key=api_key, max_retries=0, timeout=self._timeout
            )
        return self._client

    def _named(self, error: Exception) -> PolicyError:
        openai = self._sdk
        text = f"{self.name}: {type(error).__name__}: {error}"[:500]
        if isinstance(error, openai.APIStatusError):
            transient = error.status_code in {408, 429} or error.status_code >= 500
            return PolicyUnavailable(text) if transient else PolicyRejected(text)
        if isinstance(error, openai.APIConnectionError):
            return PolicyUnavailable(f"{text} (is the endpoint up and base_url right?)")
        if isinstance(error, (openai.APIError, ValueError)):
            return PolicyGarbage(f"{text}: the endpoint's answer can't be read")
        return PolicyRejected(text)

    def _sampling_of(self, request: PolicyRequest) -> Sampling:
        most, limit = self._sampling.max_tokens, request.limits.completion_tokens
        if limit is not None:
            most = limit if most is None else min(most, limit)
        seed = self._sampling.seed if request.seed is None else request.seed
        return dataclasses.replace(self._sampling, max_tokens=most, seed=seed)

    def _body(self, request: PolicyRequest) -> dict[str, Any]:
        sampling = self._sampling_of(request)
        extra = dict(self._extra_body)
        if sampling.top_k is not None:
            extra["top_k"] = sampling.top_k
        messages = request.messages
        if self._tool_images == "user":
            messages = images_to_user(messages)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [_with_images(m, request.images) for m in messages],
        }
        if request.tools:
            body["tools"] = list(request.tools)
        if self._token_ids:
            body["logprobs"] = True
            extra["return_token_ids"] = True
        values = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            self._tokens_field: sampling.max_tokens,
            "extra_body": extra or None,
        }
        return body | {name: value for name, value in values.items() if value is not None}


def _first_version() -> int:
    return 0


def _with_images(message: Message, images: Mapping[str, bytes]) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_resolved(part, images) for part in content]}


def _resolved(part: dict[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    image = part.get("image_url") or {}
    url = image.get("url", "")
    if not url.startswith(_BLOB):
        return part
    data = images.get(url[len(_BLOB) :])
    if data is None:
        raise PolicyRejected(
            f"the messages show image {url[:24]!r}, whose bytes are not in request.images",
        )
    encoded = base64.b64encode(data).decode()
    return {**part, "image_url": {**image, "url": f"data:{_mime(data)};base64,{encoded}"}}


def _mime(data: bytes) -> str:
    kinds = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    for magic, kind in kinds.items():
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"

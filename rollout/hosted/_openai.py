"""A policy behind any OpenAI-compatible chat endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Literal, Unpack

from trajgym.envs import Reply
from trajgym.rollout._completion import read_completion
from trajgym.rollout._context import ContextFull
from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.hosted._base import ErrorInAnswer, HostedPolicy, present
from trajgym.rollout.hosted._images import with_images
from trajgym.rollout.hosted._native import without_native
from trajgym.rollout.rendering._image_spans import refuse_placeholders
from trajgym.trajectory import blob_hashes, images_to_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs import Sampled
    from trajgym.rollout._policy import PolicyRequest
    from trajgym.rollout.hosted._settings import EndpointKeywords
    from trajgym.rollout.rendering._base import Renderer

__all__ = ["OpenAIPolicy"]

_log = logging.getLogger(__name__)


class OpenAIPolicy(HostedPolicy):
    """Calls an OpenAI-compatible chat endpoint.

    Turns are text turns, unless the server returns prompt ids, sampled ids and log-probs, as vLLM
    does if ``token_ids`` is True; such turns are exact. The server renders each prompt from
    scratch, so the ids of a turn's prompt may differ from those of the previous turn.

    ``limits.completion_tokens`` is sent. ``limits.reasoning_tokens`` can't be enforced through this
    API; use a :class:`TokenPolicy` if it must be enforced. Failed tries and waits do not count
    towards the agent's time. All policies of a process that call the same model at the same
    endpoint share one queue, see :class:`Limiter`.

    Images are sent as data URLs.

    Args:
        model: name of the model at the endpoint.
        token_ids: request ids and log-probs; a response without them is an error.
        versions: returns the server's current policy version; called before and after each call, so
            that a turn during which it changed has a version range.
        renderer: finds reasoning and tool calls in the returned ids, for spans, and the
            placeholders of images. Without it there are no spans, and a turn with images has no
            training row.
        tokens_field: name of the token limit; older servers use ``max_tokens``.
        on_answer: called with each request and the SDK's response, which has the completion's id.
        tool_images: ``user`` sends the images of tool results in a user message after them (the
            only place where OpenAI accepts them); ``tool`` leaves them where they are.
        context_tokens: size of the model's context window. With a ``renderer``, prompts are
            measured before they are sent; otherwise the endpoint's refusal is recognised.
        endpoint: see :class:`EndpointSettings`. The ``logprob_mode`` of ``sampling`` is the
            distribution of the server's log-probs (vLLM's are ``raw`` unless it was started with
            ``--logprobs-mode processed_logprobs``).
    """

    kind = "openai"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"

    def __init__(
        self,
        model: str,
        *,
        token_ids: bool = False,
        versions: Callable[[], int] | None = None,
        renderer: Renderer | None = None,
        tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        on_answer: Callable[[PolicyRequest, Any], object] | None = None,
        tool_images: Literal["user", "tool"] = "user",
        context_tokens: int | None = None,
        **endpoint: Unpack[EndpointKeywords],
    ) -> None:
        import openai  # here, not in the first call, because it takes most of a second

        super().__init__(openai, model, **endpoint)
        self._token_ids = token_ids
        self._versions = versions or _first_version
        self._renderer = renderer
        self._limit_field = tokens_field
        self._on_answer = on_answer
        self._tool_images = tool_images
        self._context_tokens = context_tokens

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            ContextFull: the conversation does not fit into the model's context; the attempt then
                ends ``truncated:context``.
            PolicyUnavailable: timeouts, rate limits, 5xx or no connection, after all retries.
            PolicyRejected: any other 4xx, or an image whose bytes are not in the request.
            PolicyGarbage: the response has no message, or inconsistent ids and log-probs.
        """
        body = self._body(request)
        if (room := await self._room(request)) is not None:
            self._bound(body, room)
        low = self._versions()
        completion, paused = await self._ask(body, request.session)
        if self._on_answer is not None:
            self._on_answer(request, completion)
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

    @property
    def _tokens_field(self) -> str:
        return self._limit_field

    def _open(self, options: dict[str, Any]) -> Any:
        return self._sdk.AsyncOpenAI(**options)

    async def _send(self, client: Any, body: dict[str, Any], headers: dict[str, str]) -> Any:
        answer = await client.chat.completions.create(**body, extra_headers=headers)
        if not getattr(answer, "choices", None) and getattr(answer, "error", None):
            raise ErrorInAnswer(answer.error)
        return answer

    async def _placed(self, sampled: Sampled | None, request: PolicyRequest) -> Sampled | None:
        """Return the sampled tokens with the images of the prompt, if they can be located.

        They can't if the server returns ids other than those of the renderer's processor; no
        training rows are built from such turns.
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

    async def _room(self, request: PolicyRequest) -> int | None:
        """Return how many response tokens fit into the context after this prompt, if known."""
        if self._context_tokens is None or self._renderer is None:
            return None
        renderer = self._renderer.showing(request.images)
        ids = await asyncio.to_thread(renderer.render, request.messages, request.tools)
        room = self._context_tokens - len(ids)
        if room < 1:
            raise ContextFull(
                f"{self.name}: the prompt has {len(ids)} tokens, the context {self._context_tokens}"
            )
        return room

    def _body(self, request: PolicyRequest) -> dict[str, Any]:
        sampling = self._sampling_of(request)
        extra = self._extra_body | present({"top_k": sampling.top_k})
        if self._token_ids:
            extra["return_token_ids"] = True
        messages = request.messages
        if self._tool_images == "user":
            messages = images_to_user(messages)
        return present(
            {
                "model": self._model,
                "messages": [without_native(with_images(m, request.images)) for m in messages],
                "tools": list(request.tools) or None,
                "logprobs": True if self._token_ids else None,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
                self._tokens_field: sampling.max_tokens,
                "extra_body": extra or None,
            }
        )


def _first_version() -> int:
    return 0

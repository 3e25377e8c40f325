"""A rollout of `verifiers` whose model is the caller."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import EnvironmentFault
from trajgym.trajectory import tool_calls_of

if TYPE_CHECKING:
    from trajgym.trajectory import Message

__all__ = ["Rollout"]


class Rollout:
    """Runs the environment's own loop, which asks this object for the model's responses.

    Prompts, tools, stop conditions and the rubric are therefore those of verifiers.

    Args:
        made: the environment.
        row: a row of its data set.
    """

    def __init__(self, made: Any, row: dict[str, Any]) -> None:
        self._made = made
        self._row = row
        self._task: asyncio.Task[Any] | None = None
        self._prompt: asyncio.Future[list[Message]] | None = None
        self._reply: asyncio.Future[Any] | None = None
        self._seen: list[Message] = []
        self.tools: list[str] = []
        """Names of the tools of the last request."""

    @property
    def ended(self) -> bool:
        """Whether the environment's loop has ended."""
        return self._task is not None and self._task.done()

    async def start(self) -> list[Message]:
        """Return the first prompt; empty if the environment ended without one.

        Raises:
            EnvironmentFault: the environment failed.
        """
        client = _client_class()(self)
        self._prompt = asyncio.get_running_loop().create_future()
        rollout = self._made.rollout(self._row, client, "trajgym", {})
        self._task = asyncio.create_task(rollout, name="verifiers rollout")
        return await self._next()

    async def give(self, message: Message) -> list[Message]:
        """Answer the last prompt; return what the environment added to it.

        Raises:
            EnvironmentFault: the environment failed, or changed what it showed before.
        """
        self._prompt = asyncio.get_running_loop().create_future()
        if self._reply is None or self._reply.done():  # a time limit of the environment expired
            return await self._next()
        self._reply.set_result(message)
        before = self._seen
        after = await self._next()
        if self.ended:
            return [_plain(one) for one in _listed(self.state.get("final_env_response"))]
        if after[: len(before)] != before or len(after) <= len(before):
            raise EnvironmentFault(
                "env", "the verifiers environment changed earlier messages of the conversation"
            )
        return after[len(before) + 1 :]

    @property
    def state(self) -> Any:
        """The state of a rollout that has ended.

        Raises:
            Exception: what the environment raised.
        """
        assert self._task is not None
        return self._task.result()

    async def finish(self) -> None:
        """End the loop, if it still waits for a response, as if the context were full."""
        if self.ended or self._task is None:
            return
        from verifiers.errors import OverlongPromptError

        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(OverlongPromptError("the attempt was ended"))
        await asyncio.wait([self._task])

    async def score(self) -> Any:
        """Apply the rubric and return the state.

        Raises:
            Exception: what a reward function raised.
        """
        state = self.state
        await self._made.rubric.score_rollout(state)
        await self._made.rubric.cleanup(state)
        return state

    async def stop(self) -> None:
        """Cancel the loop if it has not ended."""
        task = self._task
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: it was reported by the call that met it

    async def ask(self, prompt: list[Any], tools: list[Any] | None) -> Any:
        """Return the model's response to a prompt; called by the environment."""
        self.tools = [one.name for one in tools or ()]
        self._reply = asyncio.get_running_loop().create_future()
        assert self._prompt is not None
        if self._prompt.done():
            raise EnvironmentFault(
                "env", "the verifiers environment made two requests for one answer"
            )
        self._prompt.set_result([_plain(one) for one in prompt])
        return _response(await self._reply)

    async def _next(self) -> list[Message]:
        """Wait for the next prompt or the end."""
        assert self._prompt is not None
        assert self._task is not None
        await asyncio.wait([self._prompt, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._prompt.done():
            self._seen = self._prompt.result()
            return self._seen
        error = self.state.get("error")
        if error is not None and not _by_agent(error):
            raise EnvironmentFault("env", f"{type(error).__name__}: {_cause(error)}")
        return []


def _by_agent(error: Any) -> bool:
    from verifiers.errors import ToolError

    return isinstance(error, ToolError)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _client_class() -> Any:
    """Return a client for verifiers' environments; made here because verifiers is optional."""
    from verifiers.clients import Client

    class RolloutClient(Client):  # type: ignore[misc]
        """Asks a :class:`Rollout`."""

        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
        ) -> Any:
            del model, sampling_args
            return await self.client.ask(prompt, tools)

        def setup_client(self, config: Any) -> Any:
            raise NotImplementedError

        async def to_native_tool(self, tool: Any) -> Any:
            raise NotImplementedError

        async def to_native_prompt(self, messages: Any) -> Any:
            raise NotImplementedError

        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def raise_from_native_response(self, response: Any) -> None:
            raise NotImplementedError

        async def from_native_response(self, response: Any) -> Any:
            raise NotImplementedError

        async def close(self) -> None:
            return

    return RolloutClient


def _listed(messages: Any) -> list[Any]:
    """Return messages that may also be one text, or absent."""
    if not messages:
        return []
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


def _plain(message: Any) -> Message:
    """Return a message of verifiers as one of trajgym."""
    given = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    plain: Message = {"role": given["role"], "content": given.get("content", "")}
    for key in ("reasoning_content", "tool_call_id"):
        if given.get(key) is not None:
            plain[key] = given[key]
    if given.get("tool_calls"):
        plain["tool_calls"] = [
            {
                "id": one["id"],
                "type": "function",
                "function": {"name": one["name"], "arguments": one["arguments"]},
            }
            for one in given["tool_calls"]
        ]
    return plain


def _response(message: Message) -> Any:
    """Return verifiers' response for an assistant message."""
    from verifiers.types import Response, ResponseMessage, ToolCall

    calls = [
        ToolCall(id=one["id"], name=one["function"]["name"], arguments=one["function"]["arguments"])
        for one in tool_calls_of(message)
    ]
    return Response(
        id=uuid.uuid4().hex,
        created=int(time.time()),
        model="trajgym",
        message=ResponseMessage(
            content=message.get("content") or "",
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        ),
    )

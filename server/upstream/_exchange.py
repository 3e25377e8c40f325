"""One request to the engine, from admission to the complete answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.server._answer import Answer, Choice
from trajgym.server._errors import UpstreamError
from trajgym.server._json import loads
from trajgym.server.upstream._resume import Broken, resume
from trajgym.server.upstream._sse import EventReader
from trajgym.server.upstream._tokens import TokenAnswer, token_request
from trajgym.trajectory import Try

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from trajgym.server.control import Control
    from trajgym.server.dialects import ClientCall
    from trajgym.server.upstream._client import Upstream

__all__ = ["Exchange"]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Sends one request, and retries or resumes it across pauses, restarts and aborts.

    Args:
        upstream: the engine.
        control: pause state and policy version.
        call: the client's request.
        session: the session's id, sent along so that routers can keep it on one engine.
        rename: maps an engine's id of a tool call to the one that the client sees.
        renamed: maps ids that the client knows to the engine's, where they differ.
        emit: called with every chunk for the client, in order.
        prompt: returns the prompt's ids, in token mode; blocks while it renders. None lets the
            engine render.
        hold_seconds: longest time to wait for a paused engine.
    """

    upstream: Upstream
    control: Control
    call: ClientCall
    session: str
    rename: Callable[[str], str]
    renamed: Mapping[str, str]
    emit: Callable[[dict[str, Any]], object]
    prompt: Callable[[], Sequence[int]] | None = None
    hold_seconds: float = 240.0
    answer: Answer = field(default_factory=Answer)
    raw: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    error: Any = None
    """The engine's error body, if it answered with one."""
    retry_after: str | None = None
    tries: list[Try] = field(default_factory=list)
    paused: float = 0.0
    started: float = field(default_factory=time.time)
    emitted: bool = False
    _aborts: int = 0
    _doubtful: list[dict[str, Any]] = field(default_factory=list)
    """Chunks with a finish reason, held while a pause may have caused it."""

    async def run(self) -> None:
        """Send until the engine answers, with success or an error; see :attr:`status`.

        Raises:
            Refused: the engine was paused for too long.
            UpstreamError: the engine can't be reached, or ended an answer early that can't be
                resumed.
        """
        until = time.monotonic() + self.upstream.connect_seconds
        wait = 0.1
        while True:
            self.paused += await self.control.admit(self.hold_seconds)
            begun, pauses = time.time(), self.control.pauses
            self._aborts = self.control.aborts
            try:
                await self._once()
            except self.upstream.errors as error:
                if self._continuable():
                    await self._resume(broken=True)
                    return
                cause = f"{type(error).__name__}: {error}"[:200]
            except ValueError as error:
                raise UpstreamError(f"the engine's answer is not JSON: {error}") from error
            else:
                if self.status == 503 and (self.control.paused or self.control.pauses != pauses):
                    cause = "status 503 in a pause"
                elif self.status != 200:
                    return
                elif self._aborted():
                    if self._continuable() and await self._try_resume():
                        return
                    cause = "aborted by a pause"
                else:
                    for chunk in self._doubtful:
                        self.emit(chunk)
                    return
            if self.emitted:
                raise UpstreamError(f"the engine broke off its answer: {cause}")
            self.tries.append(Try(begun, time.time() - begun, cause))
            self.answer, self.raw, self._doubtful = Answer(), {}, []
            if time.monotonic() > until and not self.control.paused:
                raise UpstreamError(f"the engine gave no answer: {cause}")
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)

    async def _once(self) -> None:
        if self.prompt is not None:
            await self._in_tokens(self.prompt)
            return
        body = self.upstream.edited(self.call, self.renamed)
        low = self.control.version
        if self.call.stream:
            async with self.upstream.post(self.call.path, body, self.session) as response:
                if self._accepted(response):
                    await self._stream(response, low)
                else:
                    self.error = _as_error(await response.read())
            return
        response, data = await self.upstream.ask(self.call.path, body, self.session)
        if not self._accepted(response):
            self.error = _as_error(data)
            return
        self.raw = loads(data)
        if not isinstance(self.raw, dict):
            raise UpstreamError("the engine's answer is not a JSON object")
        self._take(self.raw, low)

    def _accepted(self, response: Any) -> bool:
        """Note the status of a response; return whether it is an answer."""
        self.status = response.status
        if response.status != 200:
            self.retry_after = response.headers.get("retry-after")
        return bool(response.status == 200)

    async def _in_tokens(self, prompt: Callable[[], Sequence[int]]) -> None:
        """Request the answer to a prompt in ids, and parse it from its ids."""
        answer = self.answer
        answer.prompt_ids = list(await asyncio.to_thread(prompt))
        answer.choices[0], answer.created = Choice(), int(time.time())
        most = await self.upstream.room(self.call, len(answer.prompt_ids))
        path, body = token_request(self, most)
        growing = TokenAnswer(self)
        try:
            await self._grow(growing, path, body)
        finally:
            growing.leave()
        if self.status == 200 and not self._aborted():
            for chunk in growing.end():
                self.emitted = self.emitted or self.call.stream
                self.emit(chunk)

    async def _grow(self, growing: TokenAnswer, path: str, body: dict[str, Any]) -> None:
        low = self.control.version
        async with self.upstream.post(path, body, self.session) as response:
            if not self._accepted(response):
                self.error = _as_error(await response.read())
                return
            if not self.call.stream:
                growing.take(loads(await response.read()), low, self.control.version)
            async for piece in self._pieces(response):
                now = self.control.version
                for chunk in growing.take(piece, low, now):
                    self.emitted = True
                    self.emit(chunk)
                low = now

    async def _pieces(self, response: Any) -> AsyncIterator[Any]:
        """Yield the pieces of a stream in ids; none of a whole answer."""
        if not self.call.stream:
            return
        reader = EventReader()
        async for data in response.content.iter_any():
            for one in reader.feed(data):
                if one != b"[DONE]":
                    yield loads(one)
        if self.answer.choices[0].finish is None:
            raise self.upstream.errors[0]("the stream ended early")

    async def _stream(self, response: Any, low: int) -> None:
        reader = EventReader()
        ended = False
        async for data in response.content.iter_any():
            for one in reader.feed(data):
                if one == b"[DONE]":
                    ended = True
                    continue
                chunk = loads(one)
                if "error" in chunk:
                    raise self.upstream.errors[0](f"error in the stream: {str(chunk)[:200]}")
                now = self.control.version
                self._take(chunk, low, now)
                low = now
        if not ended and not all(c.finish for c in self.answer.choices.values()):
            raise self.upstream.errors[0]("the stream ended early")

    def _take(self, body: dict[str, Any], low: int, high: int | None = None) -> None:
        for choice in body.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or {}
            for part in said.get("tool_calls") or ():
                if part.get("id"):
                    part["id"] = self.rename(part["id"])
        self.answer.feed(body, (low, self.control.version if high is None else high))
        if high is None:
            return
        finishes = {choice.get("finish_reason") for choice in body.get("choices") or ()} - {None}
        if (
            self._doubtful
            or "abort" in finishes
            or (finishes and self.control.aborts != self._aborts)
        ):
            self._doubtful.append(body)
            return
        self.emitted = True
        self.emit(body)

    def _aborted(self) -> bool:
        """Return whether a pause cut the answer short, whatever its finish reason is.

        Engines report ``tool_calls`` for an aborted answer in which a call had begun.
        """
        choices = self.answer.choices.values()
        if any(choice.finish == "abort" for choice in choices):
            return True
        if self.control.aborts == self._aborts:
            for choice in choices:
                if choice.finish in {"stop", "tool_calls"} and choice.ids:
                    self.upstream.stop_ids.add(choice.ids[-1])
            return False
        return any(
            choice.finish == "tool_calls" and choice.ids and choice.ids[-1] not in self._stops()
            for choice in choices
        )

    def _stops(self) -> set[int]:
        renderer = self.upstream.renderer
        return self.upstream.stop_ids | (set(renderer.stop_ids) if renderer is not None else set())

    def _continuable(self) -> bool:
        answer = self.answer
        return (
            len(answer.choices) == 1
            and answer.prompt_ids is not None
            and bool(answer.choices.get(0) and answer.choices[0].ids)
            and len(answer.choices[0].ids) == len(answer.choices[0].logprobs)
        )

    async def _try_resume(self) -> bool:
        try:
            await self._resume(broken=False)
        except Broken:
            if self.emitted:
                raise UpstreamError("an aborted answer with tool calls can't be resumed") from None
            return False
        return True

    async def _resume(self, *, broken: bool) -> None:
        begun = time.time()
        cause = "connection lost" if broken else "aborted by a pause"
        try:
            chunks = await resume(self)
        except Broken as error:
            if broken:
                raise UpstreamError(f"the engine ended its answer early: {error}") from error
            raise
        self.tries.append(Try(begun, time.time() - begun, f"{cause}, continued"))
        self.raw, self._doubtful = {}, []
        if self.call.stream:
            for chunk in chunks:
                self.emit(chunk)


def _as_error(data: bytes) -> Any:
    try:
        return loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")

"""Check, before agents run, that an engine returns what exact turns need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.envs.faults import describe
from trajgym.server._answer import Answer
from trajgym.server._errors import UpstreamError
from trajgym.server._json import loads
from trajgym.server.control import Control
from trajgym.server.dialects import ClientCall
from trajgym.server.upstream._exchange import Exchange
from trajgym.server.upstream._sse import EventReader

if TYPE_CHECKING:
    from trajgym.server.upstream._client import Upstream

__all__ = ["check_upstream"]

_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}


async def check_upstream(upstream: Upstream, model: str | None = None) -> list[str]:
    """Request one whole answer and one stream; return the problems found, empty if none.

    Args:
        upstream: the engine.
        model: the model to request; the first that the engine serves if None.

    Raises:
        UpstreamError: the engine can't be reached.
    """
    status, body = await upstream.models()
    if status != 200:
        return [f"/v1/models: status {status}: {body[:200]!r}"]
    served = [one.get("id") for one in loads(body).get("data") or ()]
    name = model or upstream.model or (served[0] if served else None)
    if name is None:
        return ["/v1/models lists no model"]
    problems = [] if name in served else [f"{name!r} is not served; the engine serves {served}"]
    for stream in (False, True):
        kind = "stream" if stream else "whole answer"
        problems += [f"{kind}: {what}" for what in await _ask(upstream, name, stream=stream)]
    return problems


async def _ask(upstream: Upstream, model: str, *, stream: bool) -> list[str]:
    messages = [{"role": "user", "content": "What is 2 + 3? Use the tool."}]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "tools": [_TOOL],
        "max_tokens": 64,
        "stream": stream,
    }
    call = ClientCall(
        dialect="chat", name="check", body=body, messages=messages, tools=[_TOOL], stream=stream
    )
    if upstream.tokens:
        return await _ask_in_tokens(upstream, call)
    answer = Answer()
    try:
        async with upstream.post(call.path, upstream.edited(call, {}), "check") as response:
            data = await response.read()
            if response.status != 200:
                return [f"status {response.status}: {data[:200]!r}"]
    except upstream.errors as error:
        raise UpstreamError(f"{upstream.base_url}: {describe(error)}") from error
    for piece in EventReader().feed(data) if stream else [data]:
        if piece != b"[DONE]":
            answer.feed(loads(piece), (0, 0))
    if not answer.choices:
        return ["no choices in the answer"]
    if upstream.kind == "hosted":
        return []
    why = answer.inexact(answer.choices[0])
    counted = [] if answer.usage else ["no usage, so the number of ids can't be checked"]
    return [why, *counted] if why else counted


async def _ask_in_tokens(upstream: Upstream, call: ClientCall) -> list[str]:
    """Request the answer to a prompt in ids, as calls of agents do in token mode."""
    exchange = Exchange(
        upstream=upstream,
        control=Control(),
        call=call,
        session="check",
        rename=lambda identity: identity,
        renamed={},
        emit=lambda _: None,
        prompt=lambda: upstream.prompt_of(call.messages, call.tools, None, 0),
    )
    await exchange.run()
    if exchange.status != 200:
        return [f"status {exchange.status}: {str(exchange.error)[:200]}"]
    why = exchange.answer.inexact(exchange.answer.choices[0])
    return [why] if why else []

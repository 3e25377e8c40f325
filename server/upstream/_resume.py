"""Resuming after an abort: the ids received are kept and sent as the prompt for the rest."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from trajgym.server._json import loads

if TYPE_CHECKING:
    from trajgym.server._answer import Choice
    from trajgym.server.upstream._exchange import Exchange

__all__ = ["REPEATED", "Broken", "chunks_after", "finish_answer", "resume", "shown", "sizes_of"]

REPEATED = (
    "model", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
)  # fmt: skip
"""Fields of a request that a continuation has as well."""
_MARGIN = 1 << 14


class Broken(Exception):
    """The answer can't be resumed."""


async def resume(exchange: Exchange) -> list[dict[str, Any]]:
    """Complete an answer at token level; return the chunks that the client has not received.

    Raises:
        Broken: tool calls or reasoning had begun and the upstream has no renderer, or the engine
            did not return in time.
        Refused: the engine was paused for too long.
    """
    choice = exchange.answer.choices[0]
    renderer = exchange.upstream.renderer
    if renderer is None and (choice.calls or choice.reasoning):
        raise Broken("tool calls or reasoning had begun, and the upstream has no renderer")
    before = (len("".join(choice.reasoning)), len("".join(choice.content)), sizes_of(choice))
    texts: list[str] = []
    most = _budget(exchange)
    choice.finish = None
    while choice.finish in {None, "abort"} and len(choice.ids) < most:
        texts.append(await _more(exchange, choice, most))
    if renderer is None:
        choice.content += texts
    finish_answer(exchange)
    return chunks_after(exchange, choice, before)


def finish_answer(exchange: Exchange) -> None:
    """Complete the first choice from its ids: message, usage and finish reason."""
    answer, choice = exchange.answer, exchange.answer.choices[0]
    if exchange.upstream.renderer is not None:
        _reread(exchange, choice)
    if answer.usage is not None or choice.ids:
        made, given = len(choice.ids), len(answer.prompt_ids or ())
        answer.usage = {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": given + made,
        }
    choice.finish = choice.finish if choice.finish not in {None, "abort"} else "length"
    if choice.finish == "stop" and choice.calls:
        choice.finish = "tool_calls"


def _budget(exchange: Exchange) -> int:
    body = exchange.call.body
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    return int(most) if most else len(exchange.answer.choices[0].ids) + _MARGIN


async def _more(exchange: Exchange, choice: Choice, most: int) -> str:
    """Request what follows the ids so far, until the engine answers; return its text."""
    upstream, control = exchange.upstream, exchange.control
    sent = upstream.edited(exchange.call, {})
    body: dict[str, Any] = {name: sent[name] for name in REPEATED if sent.get(name) is not None}
    if isinstance(body.get("seed"), int):  # a continuation must not repeat the same random numbers
        body["seed"] = (body["seed"] + len(choice.ids)) % 2**63
    body |= {
        "prompt": [*(exchange.answer.prompt_ids or ()), *choice.ids],
        "max_tokens": most - len(choice.ids),
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": True,
    }
    until = time.monotonic() + upstream.connect_seconds
    wait = 0.1
    while True:
        exchange.paused += await control.admit(exchange.hold_seconds)
        low = control.version
        cause = "no answer"
        try:
            async with upstream.post("/v1/completions", body, exchange.session) as response:
                data = await response.read()
                if response.status == 200:
                    return _take(loads(data), choice, low, control.version)
                cause = f"status {response.status}"
                if response.status < 500 and response.status not in {408, 429}:
                    raise Broken(f"{cause}: {data[:200]!r}")
        except upstream.errors as error:
            cause = repr(error)
        if time.monotonic() > until and not control.paused:
            raise Broken(f"the engine did not return: {cause}")
        await asyncio.sleep(wait)
        wait = min(2 * wait, 1.0)


def _take(body: dict[str, Any], choice: Choice, low: int, high: int) -> str:
    said = body["choices"][0]
    ids = list(said.get("token_ids") or ())
    logprobs = list((said.get("logprobs") or {}).get("token_logprobs") or ())
    if len(ids) != len(logprobs):
        raise Broken(f"{len(ids)} ids but {len(logprobs)} log-probs")
    choice.sampled(ids, low, high)
    choice.logprobs += [float(value) for value in logprobs]
    choice.finish = said.get("finish_reason") or "stop"
    return str(said.get("text") or "")


def _reread(exchange: Exchange, choice: Choice) -> None:
    """Parse the whole answer again from its ids; calls keep the ids that the client knows."""
    renderer = exchange.upstream.renderer
    assert renderer is not None
    prompt = exchange.answer.prompt_ids or ()
    message = renderer.parse(choice.ids, prompt, exchange.call.tools).message
    names = {i: call["id"] for i, call in choice.calls.items()}
    choice.content = [str(message.get("content") or "")]
    choice.reasoning = [message["reasoning_content"]] if message.get("reasoning_content") else []
    choice.calls = {}
    for i, call in enumerate(message.get("tool_calls") or ()):
        identity = names.get(i) or exchange.rename(call["id"])
        choice.calls[i] = {"id": identity, "type": "function", "function": dict(call["function"])}


def sizes_of(choice: Choice, *, none: bool = False) -> dict[int, int]:
    """Return how much of each call's arguments the client has; ``none`` if it has no call."""
    if none:
        return {}
    return {i: len(call["function"]["arguments"]) for i, call in choice.calls.items()}


def chunks_after(
    exchange: Exchange, choice: Choice, before: tuple[int, int, dict[int, int]]
) -> list[dict[str, Any]]:
    """Return the chunks that lead from what the client has to the complete answer."""
    answer = exchange.answer
    reasoning, content, sizes = before
    deltas: list[dict[str, Any]] = []
    if thought := "".join(choice.reasoning)[reasoning:]:
        deltas.append({"reasoning_content": thought})
    if text := "".join(choice.content)[content:]:
        deltas.append({"content": text})
    for i, call in sorted(choice.calls.items()):
        arguments = call["function"]["arguments"][sizes.get(i, 0) :]
        part: dict[str, Any] = {"index": i, "function": {"arguments": arguments}}
        if i not in sizes:
            part |= {"id": call["id"], "type": "function"}
            part["function"]["name"] = call["function"]["name"]
        if arguments or i not in sizes:
            deltas.append({"tool_calls": [part]})
    chunks = [shown(exchange, delta) for delta in deltas]
    chunks.append(shown(exchange, {}, choice.finish))
    chunks.append(_head(exchange) | {"choices": [], "usage": answer.usage})
    return chunks


def shown(exchange: Exchange, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """Return a chunk of the first choice."""
    return _head(exchange) | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _head(exchange: Exchange) -> dict[str, Any]:
    answer = exchange.answer
    return {
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model or str(exchange.call.body.get("model") or ""),
    }

"""Token mode: prompts are sent as ids, and answers are parsed from the ids that come back."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import UpstreamError
from trajgym.server.upstream._resume import REPEATED, chunks_after, finish_answer, shown, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.server._answer import Choice
    from trajgym.server.upstream._exchange import Exchange

__all__ = ["TokenAnswer", "token_request"]

_SGLANG = {
    "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias",
}  # fmt: skip
_MARKS = "<[{`|"
"""Characters that may begin a tool call: text from the first of them on is held until the end."""
_PAUSE = 0.05
"""Seconds between two parses of a growing answer."""


def token_request(exchange: Exchange, most: int) -> tuple[str, dict[str, Any]]:
    """Return path and body that request the answer to an exchange's prompt ids.

    Args:
        exchange: with the prompt's ids in its answer.
        most: largest number of ids to sample.
    """
    upstream, call = exchange.upstream, exchange.call
    sent = upstream.edited(call, {})
    body: dict[str, Any] = {name: sent[name] for name in REPEATED if sent.get(name) is not None}
    prompt = list(exchange.answer.prompt_ids or ())
    if upstream.kind == "sglang":
        sampling = {name: value for name, value in body.items() if name in _SGLANG}
        sampling |= {"max_new_tokens": most, "skip_special_tokens": True}
        if "seed" in body:
            sampling["sampling_seed"] = body["seed"]
        return "/generate", {
            "input_ids": prompt,
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": call.stream,
        }
    body |= {
        "prompt": prompt,
        "max_tokens": most,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": True,
        "stream": call.stream,
    }
    if call.stream:
        body["stream_options"] = {"include_usage": True}
    return "/v1/completions", body


class TokenAnswer:
    """An answer in ids as it grows: parsed, and shown to the client as far as it is certain.

    Text is shown as it comes, up to the first character that may begin a tool call if the request
    has tools. Reasoning and calls are shown once they are complete.

    Args:
        exchange: with the prompt's ids, and the choice that is filled.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._choice = exchange.answer.choices[0]
        self._shown = ""
        self._parsed_at = 0.0

    def take(self, body: Mapping[str, Any], low: int, high: int) -> list[dict[str, Any]]:
        """Add a piece of the engine's answer; return the chunks for the client's stream.

        Raises:
            UpstreamError: ids or log-probs are missing or malformed.
        """
        try:
            if self._exchange.upstream.kind == "sglang":
                self._take_sglang(body, low, high)
            else:
                self._take_vllm(body, low, high)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UpstreamError(f"the engine's answer in ids is malformed: {error!r}") from error
        now = time.monotonic()
        if self._choice.finish is not None or now - self._parsed_at < _PAUSE:
            return []
        self._parsed_at = now
        return self._grown()

    def leave(self) -> None:
        """Note on the choice what the client was shown of an answer that is not complete."""
        self._choice.content = [self._shown]

    def end(self) -> list[dict[str, Any]]:
        """Complete the choice; return the chunks that the client has not received."""
        finish_answer(self._exchange)
        before = (0, len(self._shown), sizes_of(self._choice, none=True))
        return chunks_after(self._exchange, self._choice, before)

    def _take_vllm(self, body: Mapping[str, Any], low: int, high: int) -> None:
        answer, choice = self._exchange.answer, self._choice
        answer.model = answer.model or str(body.get("model") or "")
        for piece in body.get("choices") or ():
            ids = list(piece.get("token_ids") or ())
            logprobs = list((piece.get("logprobs") or {}).get("token_logprobs") or ())
            self._add(choice, ids, logprobs, low, high)
            choice.finish = piece.get("finish_reason") or choice.finish

    def _take_sglang(self, body: Mapping[str, Any], low: int, high: int) -> None:
        if "error" in body:
            raise UpstreamError(f"the engine failed: {str(body['error'])[:200]}")
        meta, choice = body["meta_info"], self._choice
        entries = list(meta.get("output_token_logprobs") or ())
        if len(entries) == meta.get("completion_tokens"):  # since the beginning, not since the last
            entries = entries[len(choice.ids) :]
        self._add(choice, [e[1] for e in entries], [e[0] for e in entries], low, high)
        finish = meta.get("finish_reason")
        if isinstance(finish, dict):
            finish = finish["type"]
        choice.finish = finish or choice.finish

    @staticmethod
    def _add(choice: Choice, ids: list[int], logprobs: list[Any], low: int, high: int) -> None:
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} ids but {len(logprobs)} log-probs")
        choice.sampled(ids, low, high)
        choice.logprobs += [math.nan if one is None else float(one) for one in logprobs]

    def _grown(self) -> list[dict[str, Any]]:
        """Return the text that can be shown since the last time."""
        renderer, call = self._exchange.upstream.renderer, self._exchange.call
        assert renderer is not None
        ids, prompt = self._choice.ids, self._exchange.answer.prompt_ids or ()
        if not self._exchange.call.stream or renderer.reasoning_is_open(ids, prompt):
            return []
        text = str(renderer.parse(ids, prompt, call.tools).message.get("content") or "")
        if call.tools:
            marks = [at for mark in _MARKS if (at := text.find(mark)) >= 0]
            text = text[: min(marks, default=len(text))]
            if text != text.lstrip():
                return []  # the answer may be without it
        text = text.rstrip("\ufffd").rstrip()  # an incomplete character, or space before a call
        if not text.startswith(self._shown) or text == self._shown:
            return []
        delta = {"content": text[len(self._shown) :]}
        self._shown = text
        return [shown(self._exchange, delta)]

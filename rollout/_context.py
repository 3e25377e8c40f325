"""Full context windows: how servers report them, and how many tokens a response may have."""

from __future__ import annotations

import re

from trajgym.envs import Truncate
from trajgym.rollout._policy import PolicyRejected

__all__ = ["ContextFull", "context_full"]

_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq, DeepSeek
        "string_above_max_length",  # OpenAI, one message longer than any request may be
        "exceed_context_size_error",  # llama.cpp
        "model_context_window_exceeded",
        "request_too_large",  # Anthropic, in bytes
    }
)
_WORDS = re.compile(
    r"context[_ ]length[_ ]exceeded"
    r"|maximum context length"  # OpenAI, vLLM, SGLang, Mistral, OpenRouter
    r"|model'?s context length"  # vLLM, SGLang
    r"|context length is only"
    r"|exceeds? the (?:model'?s )?context (?:window|length)"  # OpenAI's Responses
    r"|input tokens exceed the configured limit"
    r"|prompt is too long"  # Anthropic, Fireworks
    r"|exceed context limit"
    r"|input token count .{0,60}(?:exceeds the maximum|only supports)"  # Google
    r"|longer than the maximum model length|exceeds the max_model_len"  # vLLM
    r"|too long to fit into the model"
    r"|max_tokens must be at least 1, got -"
    r"|input length \(\d+ tokens\) exceeds the maximum allowed length"  # SGLang
    r"|available context size"  # llama.cpp
    r"|context size has been exceeded"
    r"|exceeds? context window of"  # llama-cpp-python
    r"|`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be <=|have less than)"  # TGI
    r"|maximum prompt length is"  # xAI
    r"|input is too long for requested model"  # Bedrock
    r"|too many tokens: total number of tokens in the prompt",  # Cohere
    re.IGNORECASE,
)
_NOT_CONTEXT = re.compile(r"tokens per (?:min|day|hour)|\b(?:TPM|TPD)\b", re.IGNORECASE)
"""Rate limits mention tokens too, but are outside the agent's control."""
_WINDOW = re.compile(
    r"(?:context length(?: is(?: only)?| of)?|context limit: \d+ \+ \d+ >|must be <=|n_ctx\W+"
    r"|context size \()\s*(\d+)",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"\((\d+) in (?:the messages|your prompt)"
    r"|(?:has|passed) (\d+) input tokens"
    r"|(\d+) tokens from the input messages"
    r"|context limit: (\d+) \+"
    r"|Given: (\d+) `inputs` tokens and"
    r"|n_prompt_tokens\W+(\d+)",
    re.IGNORECASE,
)


class ContextFull(Truncate, PolicyRejected):
    """The conversation does not fit into the model's context: ``truncated:context``.

    Args:
        cause: description for people.
        room: number of tokens left for a response, if the prompt itself fits.
    """

    def __init__(self, cause: str, room: int | None = None) -> None:
        super().__init__("context", cause)
        self.room = room


def context_full(text: str, code: object = None, where: str = "") -> ContextFull | None:
    """Return the error for a server's refusal if it is about the context window, else None.

    Args:
        text: the server's message or body.
        code: its error code or type, if it has one.
        where: name of the policy, for the message.
    """
    if code not in _CODES and (not _WORDS.search(text) or _NOT_CONTEXT.search(text)):
        return None
    window, prompt = _WINDOW.search(text), _PROMPT.search(text)
    room = None
    if window and prompt:
        room = int(window[1]) - int(next(filter(None, prompt.groups())))
    cause = f"{where}: the context is full: {text[:300]}" if where else text[:300]
    return ContextFull(cause, room if room is not None and room > 0 else None)

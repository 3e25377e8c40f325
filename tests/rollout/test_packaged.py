"""PyPI's hand-written renderers behind our interface."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rollout.tokenizers import tokenizer
from trajgym.rollout import PolicyRejected, renderer_for
from trajgym.rollout.rendering import PackagedRenderer, TemplateRenderer

USER = {"role": "user", "content": "go"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}},
    }
]


@pytest.fixture(scope="module")
def renderer() -> PackagedRenderer:
    from renderers import Qwen3RendererConfig

    return PackagedRenderer(tokenizer("qwen"), Qwen3RendererConfig())


def test_a_tool_cycle_is_extended_exactly(renderer: PackagedRenderer) -> None:
    """Reasoning and a call, then a tool result: the sampled ids stay, oddly spaced JSON and all."""
    prompt = renderer.render([USER], TOOLS)
    odd = '<tool_call>\n{"name":"bash",  "arguments":{"command":"ls"}}\n</tool_call>'
    ids = renderer.encode_response(f"<think>\nhm\n</think>\n\n{odd}")
    parsed = renderer.parse(ids, prompt, TOOLS)
    assert parsed.finish == "tool_calls"
    assert parsed.message["reasoning_content"] == "hm"
    (call,) = parsed.message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}
    thought, called = parsed.spans
    decode = tokenizer("qwen").decode
    assert decode(ids[thought.start : thought.end]) == "<think>\nhm\n</think>"
    assert decode(ids[called.start : called.end]) == odd
    result = {"role": "tool", "content": "<|im_end|>", "tool_call_id": call["id"]}
    extended = renderer.extend(prompt + ids, [USER, parsed.message, result], TOOLS, held=2)
    assert extended is not None
    assert extended[: len(prompt + ids)] == prompt + ids
    ends = [i for i in extended[len(prompt + ids) :] if i in renderer.stop_ids]
    assert len(ends) == 1  # what the tool printed is text, and only the template ended its message


def test_a_new_user_message_is_a_rewrite(renderer: PackagedRenderer) -> None:
    """Qwen3 strips reasoning there, and the messages shown say so."""
    prompt = renderer.render([USER])
    ids = renderer.encode_response("<think>\nhm\n</think>\n\nok")
    messages = [USER, renderer.parse(ids, prompt).message, USER]
    assert renderer.extend(prompt + ids, messages, held=2) is None
    assert renderer.shown(messages) == [USER, {"role": "assistant", "content": "ok"}, USER]


def test_open_reasoning_is_seen(renderer: PackagedRenderer) -> None:
    """A reasoning budget can tell when to close, and with what."""
    ids = renderer.encode_response("<think>\nhm")[:-1]
    assert renderer.reasoning_is_open(ids)
    assert not renderer.reasoning_is_open([*ids, *renderer.reasoning_close_ids])


def test_a_malformed_call_is_kept(renderer: PackagedRenderer) -> None:
    """Malformed JSON stays a call with the malformed text."""
    ids = renderer.encode_response('<tool_call>\n{"name": "bash", "argu\n</tool_call>')
    (call,) = renderer.parse(ids, (), TOOLS).message["tool_calls"]
    assert '"argu' in call["function"]["arguments"]


def test_it_is_chosen_by_the_exact_name() -> None:
    """A model that the package knows gets its renderer; any other its own template."""
    import copy

    known: Any = copy.deepcopy(tokenizer("qwen"))
    known.name_or_path = "Qwen/Qwen3-8B"
    assert isinstance(renderer_for(known), PackagedRenderer)
    assert isinstance(renderer_for(tokenizer("qwen")), TemplateRenderer)
    with pytest.raises(PolicyRejected, match="does not support"):
        PackagedRenderer(tokenizer("qwen"))

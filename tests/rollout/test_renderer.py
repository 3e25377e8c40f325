"""Renderers: prompts are extended exactly or not at all, and responses are read, never encoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rollout.tokenizers import FAMILIES, tokenizer
from trajgym.rollout import PolicyRejected, renderer_for
from trajgym.rollout.rendering import ByteRenderer, Renderer, TemplateRenderer
from trajgym.trajectory import image_part

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
_MADE: dict[str, Any] = {}


def make(kind: str) -> Any:
    """Return the renderer of a family, made once."""
    if kind not in _MADE:
        if kind.startswith("byte"):
            _MADE[kind] = ByteRenderer(strip_reasoning=kind == "byte-strip")
        else:
            _MADE[kind] = TemplateRenderer(tokenizer(kind))
    return _MADE[kind]


def decode(renderer: Any, ids: list[int]) -> str:
    return renderer._codec.decode(ids)  # type: ignore[no-any-return]


ALL = [*FAMILIES, "byte", "byte-strip"]
THINKING = ["qwen", "byte", "byte-strip"]
WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn"])
    | st.sampled_from("\n {}<|>"),
    min_size=1,
    max_size=24,
)
SETTINGS = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def say(renderer: Renderer, prompt: list[int], content: Any) -> tuple[list[int], Any]:
    """Return the ids of a response and the message read from them."""
    ids = renderer.encode_response(content)
    return ids, renderer.parse(ids, prompt, TOOLS).message


@pytest.mark.parametrize("kind", ALL)
@SETTINGS
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3), last=WORDS)
def test_extending_starts_with_the_prefix_and_spells_the_template(
    kind: str, turns: list[tuple[str, str]], last: str
) -> None:
    """A prompt made by extending holds the old ids untouched and decodes to the template's text."""
    renderer = make(kind)
    messages: list[dict[str, Any]] = [{"role": "user", "content": turns[0][0]}]
    ids = renderer.render(messages)
    for user, assistant in [*turns[1:], (last, turns[0][1])]:
        # Templates trim: text that they would change can't be spelled by both.
        said = assistant.strip() or "x"
        response, message = say(renderer, ids, {"role": "assistant", "content": said})
        assert message["content"] == said
        prefix = ids + response
        messages += [message, {"role": "user", "content": user}]
        extended = renderer.extend(prefix, messages, held=len(messages) - 1)
        assert extended is not None
        assert extended[: len(prefix)] == prefix
        assert decode(renderer, extended) == renderer.text(messages)
        ids = extended


@pytest.mark.parametrize("kind", THINKING)
@SETTINGS
@given(thought=st.none() | WORDS, role=st.sampled_from(["user", "tool"]), text=WORDS)
def test_extension_is_refused_exactly_where_the_render_is_no_continuation(
    kind: str, thought: str | None, role: str, text: str
) -> None:
    """A template that strips reasoning gives no extension; one that keeps it does."""
    renderer = make(kind)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    prompt = renderer.render(messages)
    said: dict[str, Any] = {"role": "assistant", "content": "ok"}
    if thought and thought.strip():
        said["reasoning_content"] = thought.strip()
    response, message = say(renderer, prompt, said)
    messages += [message, {"role": role, "content": text, "tool_call_id": "c"}]
    extended = renderer.extend(prompt + response, messages, held=2)
    continues = renderer.text(messages).startswith(decode(renderer, prompt + response))
    assert (extended is not None) == continues
    if extended is not None:
        assert extended[: len(prompt + response)] == prompt + response
        assert decode(renderer, extended) == renderer.text(messages)


@pytest.mark.parametrize("kind", ["qwen", "byte-strip"])
def test_stripped_reasoning_is_named_in_what_was_shown(kind: str) -> None:
    """After a rewrite the messages shown lack the reasoning that the template dropped."""
    renderer = make(kind)
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
        {"role": "user", "content": "on"},
    ]
    shown = renderer.shown(messages)
    assert shown == [messages[0], {"role": "assistant", "content": "ok"}, messages[2]]
    assert renderer.shown(messages[:1]) is None
    assert renderer.render(shown) == renderer.render(messages)


@pytest.mark.parametrize("kind", ALL)
def test_special_tokens_in_data_stay_text(kind: str) -> None:
    """A tool's output that spells special tokens can't end its message or open another."""
    renderer = make(kind)
    attack = "".join(renderer._codec.specials)
    calm = renderer.render([{"role": "user", "content": "x"}])
    attacked = renderer.render([{"role": "user", "content": attack}])
    specials = {renderer._codec.encode(text)[0] for text in renderer._codec.specials}
    assert [i for i in attacked if i in specials] == [i for i in calm if i in specials]
    assert attack in decode(renderer, attacked)


CALLS = {
    "chatml": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "qwen": '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "byte": '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
    "llama": '{"name": "bash", "parameters": {"command": "ls"}}',
    "mistral": '[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}}]',
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_tool_call_is_read_with_its_span(kind: str) -> None:
    """Each family's tool call gives name and JSON arguments, and a span of exactly its ids."""
    renderer = make(kind)
    lead = "" if kind == "llama" else "Let me see. "
    ids = renderer.encode_response(lead + CALLS[kind])
    parsed = renderer.parse(ids, (), TOOLS)
    assert parsed.finish == "tool_calls"
    (call,) = parsed.message["tool_calls"]
    assert call["function"]["name"] == "bash"
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}
    assert parsed.message["content"] == lead.strip()
    (span,) = parsed.spans
    assert span.call_id == call["id"]
    spelled = decode(renderer, ids[span.start : span.end])
    assert spelled.strip() == CALLS[kind]


@pytest.mark.parametrize("kind", ["chatml", "qwen", "byte", "mistral"])
def test_parallel_calls_are_read_in_order(kind: str) -> None:
    """Several calls keep their order, have different ids, and spans that don't overlap."""
    renderer = make(kind)
    one = [json.dumps({"name": "bash", "arguments": {"command": c}}) for c in ("a", "b")]
    text = "\n".join(f"<tool_call>\n{c}\n</tool_call>" for c in one)
    if kind == "mistral":
        text = f"[TOOL_CALLS] [{', '.join(one)}]"
    parsed = renderer.parse(renderer.encode_response(text), (), TOOLS)
    calls = parsed.message["tool_calls"]
    assert [json.loads(c["function"]["arguments"])["command"] for c in calls] == ["a", "b"]
    assert calls[0]["id"] != calls[1]["id"]
    first, second = parsed.spans
    assert first.end <= second.start


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls}\n</tool_call>', "bash"),
        ("<tool_call>ls -la</tool_call>", "malformed_call"),
        ('<tool_call>["bash"]</tool_call>', "malformed_call"),
        ("<tool_call>" + "[" * 20_000, "malformed_call"),
        ('<tool_call>{"name": "bash", "arguments"', "bash"),
    ],
)
def test_a_malformed_call_is_kept(text: str, name: str) -> None:
    """Malformed JSON stays a tool call whose arguments are the malformed text."""
    renderer = make("byte")
    (call,) = renderer.parse(renderer.encode_response(text), (), TOOLS).message["tool_calls"]
    assert call["function"]["name"] == name
    assert call["function"]["arguments"] in text
    assert call["function"]["arguments"].strip()


def test_a_closing_tag_inside_a_string_does_not_end_a_call() -> None:
    """A command that itself spells the closing tag is read whole."""
    renderer = make("byte")
    command = "echo '</tool_call>' <tool_call>"
    body = json.dumps({"name": "bash", "arguments": {"command": command}})
    ids = renderer.encode_response(f"<tool_call>{body}</tool_call>")
    (call,) = renderer.parse(ids, (), TOOLS).message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": command}


@pytest.mark.parametrize("kind", ALL)
@SETTINGS
@given(data=st.data())
def test_parsing_never_fails(kind: str, data: st.DataObject) -> None:
    """Any ids at all give a message, a finish and spans inside the response."""
    renderer = make(kind)
    top = 264 if kind.startswith("byte") else 380
    ids = data.draw(st.lists(st.integers(0, top), max_size=40))
    parsed = renderer.parse(ids, (), TOOLS)
    assert parsed.message["role"] == "assistant"
    for span in parsed.spans:
        assert 0 <= span.start < span.end <= len(ids)


@pytest.mark.parametrize("kind", THINKING)
def test_a_reasoning_span_covers_the_markers(kind: str) -> None:
    """The reasoning span holds its markers and nothing of the answer."""
    renderer = make(kind)
    ids = renderer.encode_response("<think>\nhm 漢字\n</think>\n\nyes")
    parsed = renderer.parse(ids)
    assert parsed.message["reasoning_content"] == "hm 漢字"
    assert parsed.message["content"] == "yes"
    (span,) = parsed.spans
    assert decode(renderer, ids[span.start : span.end]) == "<think>\nhm 漢字\n</think>"


def test_reasoning_that_the_prompt_opened_is_reasoning() -> None:
    """Where the template opens the reasoning, the response begins inside it."""
    renderer = TemplateRenderer(tokenizer("qwen"), template_options={"open_thinking": True})
    messages = [{"role": "user", "content": "go"}]
    prompt = renderer.render(messages)
    assert renderer.reasoning_is_open((), prompt)
    ids = renderer.encode_response("hm\n</think>\n\nyes")
    assert not renderer.reasoning_is_open(ids, prompt)
    message = renderer.parse(ids, prompt).message
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    messages += [message, {"role": "tool", "content": "r"}]
    extended = renderer.extend(prompt + ids, messages, held=2)
    assert extended is not None
    assert extended[: len(prompt + ids)] == prompt + ids


@pytest.mark.parametrize("kind", ALL)
def test_a_cut_response_is_closed_in_the_next_prompt(kind: str) -> None:
    """After a response that ran out of tokens the template's end of turn comes as context."""
    renderer = make(kind)
    messages = [{"role": "user", "content": "go"}]
    prompt = renderer.render(messages)
    cut = renderer.encode_response({"role": "assistant", "content": "half a sen"})[:-1]
    parsed = renderer.parse(cut, prompt)
    assert parsed.finish == "length"
    messages += [parsed.message, {"role": "user", "content": "on"}]
    extended = renderer.extend(prompt + cut, messages, held=2)
    assert extended is not None
    assert extended[: len(prompt + cut)] == prompt + cut
    assert extended[len(prompt + cut)] in renderer.stop_ids
    assert decode(renderer, extended) == renderer.text(messages)


def test_reasoning_that_stopped_open_is_a_rewrite() -> None:
    """A stop inside reasoning can't be continued: the template would close what was not closed."""
    renderer = make("qwen")
    messages = [{"role": "user", "content": "go"}]
    prompt = renderer.render(messages)
    ids = renderer.encode_response("<think>hm")
    messages += [renderer.parse(ids, prompt).message, {"role": "tool", "content": "r"}]
    assert renderer.extend(prompt + ids, messages, held=2) is None
    cut = renderer.extend(prompt + ids[:-1], messages, held=2)
    assert cut is not None
    assert "</think>" in decode(renderer, cut[len(prompt + ids) - 1 :])


def test_tools_are_described_where_the_template_has_none() -> None:
    """A template without tools gets them in the system prompt, and results as a user message."""
    renderer = make("chatml")
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [_call("bash", '{"command": "ls"}')]},
        {"role": "tool", "content": "one", "tool_call_id": "call_0"},
        {"role": "tool", "content": "two", "tool_call_id": "call_1"},
    ]
    text = renderer.text(messages, TOOLS)
    assert '"name": "bash"' in text.partition("<|im_end|>")[0]
    assert '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>' in text
    assert text.count("<tool_response>\n") == 2
    assert text.count("<|im_start|>user") == 2


def test_tools_that_move_are_a_rewrite() -> None:
    """Mistral's template writes the tools before the last user message: no extension then."""
    renderer = make("mistral")
    messages = [{"role": "user", "content": "go"}]
    prompt = renderer.render(messages, TOOLS)
    ids = renderer.encode_response("ok")
    messages += [renderer.parse(ids, prompt).message, {"role": "user", "content": "on"}]
    assert renderer.extend(prompt + ids, messages, TOOLS, held=2) is None


def test_arguments_reach_the_template_as_values() -> None:
    """Arguments are not written twice escaped."""
    call = _call("bash", '{"command": "a \\"b\\""}')
    text = make("qwen").text([{"role": "user", "content": "go"}, _assistant(call)], TOOLS)
    assert '"arguments": {"command": "a \\"b\\""}' in text


def test_an_image_is_refused_by_name() -> None:
    """A renderer for text names the message that it can't render instead of dropping the image."""
    message = {"role": "user", "content": [{"type": "text", "text": "x"}, image_part("ab" * 32)]}
    with pytest.raises(PolicyRejected, match=r"message 0 \(user\) has a part of type"):
        make("chatml").render([message])


def test_a_refusing_template_is_named() -> None:
    """A template's own error is raised with its text and the roles given."""
    calls = [_call("bash", "{}"), _call("bash", "{}")]
    with pytest.raises(PolicyRejected, match="one call at a time"):
        make("llama").render([{"role": "user", "content": "x"}, _assistant(*calls)], TOOLS)


def test_a_tokenizer_without_a_template_is_refused() -> None:
    """A base model's tokenizer is an error that names the remedy."""
    import copy

    bare = copy.deepcopy(tokenizer("chatml"))
    bare.chat_template = None
    with pytest.raises(PolicyRejected, match=r"set tokenizer\.chat_template"):
        renderer_for(bare)


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _assistant(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}

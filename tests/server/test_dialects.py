"""Requests and answers in every dialect, read by the vendors' own client libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.server.harness import ADD, shape, world

TWO = {
    "text": "Let me compute.",
    "reasoning": "Two sums.",
    "calls": [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})],
}
DONE = {"text": "The sum is 14."}
ANTHROPIC = {"name": "add", "description": "Add.", "input_schema": ADD["function"]["parameters"]}
RESPONSES = {"type": "function", "name": "add", "strict": False, **ADD["function"]}


def by_rounds(n: int, body: Any) -> Any:
    return DONE if any(m["role"] == "tool" for m in body["messages"]) else TWO


@pytest.mark.parametrize("stream", [False, True])
async def test_the_anthropic_sdk_holds_a_conversation(tmp_path: Path, stream: bool) -> None:
    """Thinking, text and two tool calls are sent as blocks; the next request continues exactly."""
    async with world(tmp_path, by_rounds) as w:
        base = (await w.create()).removesuffix("/v1")
        async with AsyncAnthropic(base_url=base, api_key="k") as client:
            messages: list[Any] = [{"role": "user", "content": "2+3 + 4+5?"}]
            system = [{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}]
            common: Any = {"model": "fake", "max_tokens": 4000, "system": system}
            while True:
                asked = {**common, "tools": [ANTHROPIC], "messages": messages}
                if stream:
                    async with client.messages.stream(**asked) as events:
                        answer = await events.get_final_message()
                else:
                    answer = await client.messages.create(**asked)
                messages.append({"role": "assistant", "content": answer.content})
                if answer.stop_reason != "tool_use":
                    break
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": b.id,
                        "content": str(sum(b.input.values())),
                    }  # type: ignore[attr-defined]
                    for b in answer.content
                    if b.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results[::-1]})
            counted = await client.messages.count_tokens(model="fake", messages=messages[:1])
        tree = w.tree()
    assert counted.input_tokens > 0
    kinds = [block.type for block in messages[1]["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert messages[1]["content"][0].signature
    assert answer.content[-1].text == "The sum is 14."
    assert answer.usage.output_tokens > 0
    assert shape(tree) == [(None, "continue", "main"), (0, "continue", "main")]
    assert tree.turns[1].kept is None
    assert [m["role"] for m in tree.turns[1].context] == ["tool", "tool"]
    assert tree.turns[0].message["reasoning_content"] == "Two sums."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_openai_sdk_over_responses(tmp_path: Path, stream: bool) -> None:
    """Items are translated both ways; previous_response_id is expanded from the server's store."""
    async with world(tmp_path, by_rounds) as w:
        base = await w.create()
        async with AsyncOpenAI(base_url=base, api_key="k") as client:
            asked: Any = {"model": "fake", "instructions": "You add.", "tools": [RESPONSES]}

            async def ask(**more: Any) -> Any:
                if not stream:
                    return await client.responses.create(**asked, **more)
                async with client.responses.stream(**asked, **more) as events:
                    async for _ in events:
                        pass
                    return await events.get_final_response()

            first = await ask(input="2+3 + 4+5?")
            outputs = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "5"}
                for item in first.output
                if item.type == "function_call"
            ]
            second = await ask(input=outputs, previous_response_id=first.id)
            third = await ask(input="and now?", previous_response_id=first.id)
        tree = w.tree()
    assert [i.type for i in first.output] == ["reasoning", "message"] + 2 * ["function_call"]
    assert second.output_text == "The sum is 14."
    assert third.id != second.id
    edges = [(t.parent, t.edge) for t in tree.turns]
    assert edges == [(None, "continue"), (0, "continue"), (0, "rewrite")]
    assert tree.turns[2].wire is not None
    assert tree.turns[2].wire.rule == "C:fork"
    assert tree.context(tree.turns[1])[0] == {"role": "system", "content": "You add."}


async def test_responses_items_without_state_continue_as_well(tmp_path: Path) -> None:
    """An agent that keeps the items itself, encrypted reasoning included, continues exactly."""
    async with world(tmp_path, by_rounds) as w:
        base = await w.create()
        async with AsyncOpenAI(base_url=base, api_key="k") as client:
            items: list[Any] = [{"role": "user", "content": "2+3?"}]
            asked: Any = {"model": "fake", "tools": [RESPONSES], "store": False}
            asked["include"] = ["reasoning.encrypted_content"]
            first = await client.responses.create(**asked, input=items)
            items += [item.model_dump(exclude_none=True) for item in first.output]
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "5"}
                for item in first.output
                if item.type == "function_call"
            ]
            await client.responses.create(**asked, input=items)
        tree = w.tree()
    assert [(t.parent, t.edge, t.kept) for t in tree.turns] == [
        (None, "continue", None),
        (0, "continue", None),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_in_a_namespace(tmp_path: Path, stream: bool) -> None:
    """The engine gets each tool under a longer name; the client's calls have both parts again."""
    inner = [{**RESPONSES, "name": "add"}, {"type": "custom", "name": "note"}]
    space = {"type": "namespace", "name": "sums", "description": "Sums.", "tools": inner}
    calls = [("sums__add", {"a": 2, "b": 3}), ("sums__note", {"input": "five"}), ("add", {"a": 1})]
    async with world(tmp_path, [{"calls": calls}, DONE]) as w:
        base = await w.create()
        async with AsyncOpenAI(base_url=base, api_key="k") as client:
            items: list[Any] = [{"role": "user", "content": "2+3?"}]
            asked: Any = {"model": "fake", "tools": [space, RESPONSES], "store": False}
            first: Any
            if stream:
                async with client.responses.stream(**asked, input=items) as events:
                    first = await events.get_final_response()
            else:
                first = await client.responses.create(**asked, input=items)
            named = [(i.type, i.namespace, i.name) for i in first.output if hasattr(i, "namespace")]
            items += [item.model_dump(exclude_none=True) for item in first.output]
            items += [
                {"type": item.type + "_output", "call_id": item.call_id, "output": "5"}
                for item in first.output
                if hasattr(item, "call_id")
            ]
            await client.responses.create(**asked, input=items)
        sent = w.engine.requests[1]
        tree = w.tree()
    assert named == [
        ("function_call", "sums", "add"),
        ("custom_tool_call", "sums", "note"),
        ("function_call", None, "add"),
    ]
    names = ["sums__add", "sums__note", "add"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == names
    assert [call["function"]["name"] for call in sent["messages"][1]["tool_calls"]] == names
    assert [(t.parent, t.edge) for t in tree.turns] == [(None, "continue"), (0, "continue")]


async def test_chat_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    """Case 24: n samples are siblings. Unknown fields reach the engine; ids only if asked for."""
    async with world(tmp_path, [DONE]) as w:
        await w.create()
        user = [{"role": "user", "content": "go", "name": "x"}]
        answer = await w.chat(user, n=3, frobnicate={"a": None}, top_logprobs=None, logprobs=True)
        sent = w.engine.requests[0]
        assert sent["frobnicate"] == {"a": None}
        assert sent["messages"] == user
        assert sent["top_logprobs"] == 0
        assert len(answer["choices"]) == 3
        assert answer["choices"][0]["logprobs"]["content"]
        asked = await w.chat(user, return_token_ids=True)
        assert asked["prompt_token_ids"]
        assert asked["choices"][0]["token_ids"]
        tree = w.tree()
    assert [t.parent for t in tree.turns] == [None] * 4
    assert {t.wire.call for t in tree.turns[:3] if t.wire} == {answer["id"]}


async def test_completions_are_recorded(tmp_path: Path) -> None:
    """The older endpoint works, and its turns have ids too."""
    async with world(tmp_path, [DONE]) as w:
        await w.create()
        body = {"model": "fake", "prompt": "2+3 is"}
        answer = await w.post("/sessions/s/v1/completions", body)
        tree = w.tree()
    assert answer["choices"][0]["text"] == "The sum is 14."
    assert tree.turns[0].exact


async def test_ids_of_calls_are_unique_for_the_client_and_the_engines_for_the_engine(
    tmp_path: Path,
) -> None:
    """An engine that repeats ids (``functions.add:0``) gets its own back; the client, others."""
    step = {"calls": [("add", {"a": 1})], "ids": {0: "functions.add:0"}}
    async with world(tmp_path, [step, step, DONE]) as w:
        await w.create()
        messages: list[Any] = [{"role": "user", "content": "go"}]
        seen = []
        for _ in range(2):
            said = await w.say(messages, tools=[ADD])
            seen.append(said["tool_calls"][0]["id"])
            messages.append({"role": "tool", "tool_call_id": seen[-1], "content": "1"})
        await w.chat(messages, tools=[ADD])
        sent = w.engine.requests[2]["messages"]
        tree = w.tree()
    assert len(set(seen)) == 2
    assert [m["tool_calls"][0]["id"] for m in sent if m["role"] == "assistant"] == [
        "functions.add:0"
    ] * 2
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["functions.add:0"] * 2
    assert [t.edge for t in tree.turns] == ["continue"] * 3


async def test_an_engine_without_ids_makes_text_turns_with_a_reason(tmp_path: Path) -> None:
    """A turn without ids is a text turn with a reason, and is counted."""
    async with world(tmp_path, [DONE], ids=False) as w:
        await w.create()
        await w.chat([{"role": "user", "content": "go"}])
        async with w.http.get(f"{w.url}/metrics") as got:
            metrics = await got.text()
        tree = w.tree()
    (turn,) = tree.turns
    assert not turn.exact
    assert turn.wire is not None
    assert turn.wire.inexact == "the engine returned no prompt ids"
    assert 'trajgym_inexact_total{reason="the engine returned no prompt ids"} 1' in metrics


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/chat/completions", {"messages": "no"}),
        ("v1/chat/completions", {}),
        ("v1/messages", {"messages": []}),
        ("v1/responses", {"input": 3}),
        ("v1/responses", {"input": "x", "previous_response_id": "resp_of_somebody"}),
        ("v1/completions", {"prompt": [["a"], ["b"]]}),
    ],
)
async def test_what_holds_no_conversation_is_refused(tmp_path: Path, path: str, body: Any) -> None:
    """A request that can't be forwarded gets a 4xx in its dialect, and leaves no turn."""
    async with world(tmp_path, [DONE]) as w:
        await w.create()
        async with w.http.post(f"{w.url}/sessions/s/{path}", json=body) as got:
            assert got.status in {400, 404}
            assert json.loads(await got.read())["error"]["message"]
        assert w.tree().turns == []
        assert w.engine.requests == []

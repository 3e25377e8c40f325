"""The recording proxy over real HTTP: what clients see, and what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.server.fake import RENDERER
from tests.server.harness import ADD, result, shape, world
from trajgym.trajectory import build_rows

USER = {"role": "user", "content": "2+3?"}
CALLS = {"text": "Let me see.", "calls": [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})]}


async def test_two_turns_are_one_row_of_the_engines_own_ids(tmp_path: Path) -> None:
    """A chat with a tool call is recorded exactly, and both turns train in one row."""
    async with world(tmp_path, [CALLS, {"text": "It is 5."}]) as w:
        await w.create()
        messages: list[Any] = [USER]
        said = await w.say(messages, tools=[ADD], temperature=0.7)
        messages += [result(call, "5") for call in said["tool_calls"]]
        final = await w.chat(messages, tools=[ADD], temperature=0.7)
        assert final["choices"][0]["message"]["content"] == "It is 5."
        assert final["system_fingerprint"] == "kept"
        assert "prompt_token_ids" not in final
        assert "token_ids" not in final["choices"][0]
        assert final["choices"][0]["logprobs"] is None
        closed = await w.close(score=1.0)
        assert closed["status"] == "completed"
        tree = w.tree()
    assert shape(tree) == [(None, "continue", "main"), (0, "continue", "main")]
    assert [t.wire.rule for t in tree.turns if t.wire] == ["O:first", "C"]
    assert [t.delivery for t in tree.turns] == ["delivered", "delivered"]
    assert tree.turns[1].context == messages[2:]
    assert tree.turns[1].kept is None
    assert tree.context(tree.turns[1]) == messages
    (row,) = build_rows(tree).rows
    assert row.turns == (0, 1)
    assert row.temperature == 0.7
    expected = RENDERER.encode_response({"role": "assistant", "content": "It is 5."})
    assert row.input_ids[row.turn_ids == 1].tolist() == expected
    assert np.allclose(row.logprobs[row.turn_ids == 1], [-0.125 * (i % 8) for i in expected])


async def test_a_stream_passes_through_and_is_recorded_alike(tmp_path: Path) -> None:
    """Chunks come as the engine made them, without ids; the record is that of a whole answer."""
    async with world(tmp_path, [CALLS]) as w:
        await w.create()
        body = {"model": "fake", "messages": [USER], "tools": [ADD], "stream": True}
        chunks = await w.events("/sessions/s/v1/chat/completions", body)
        tree = w.tree()
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["delta"].get("content") or "" for c in choices) == "Let me see."
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert all("token_ids" not in c and c["logprobs"] is None for c in choices)
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    (turn,) = tree.turns
    assert [c["function"]["name"] for c in turn.message["tool_calls"]] == ["add", "add"]
    assert turn.exact
    assert turn.wire is not None
    assert turn.wire.call == chunks[0]["id"]

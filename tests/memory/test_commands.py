"""`trajgym memory`: building, listing and measuring on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.memory.locks import expert, locks, reader
from tests.rollout.server import completion, endpoint, said
from trajgym.cli import app
from trajgym.envs import EnvSpec
from trajgym.rollout import collect
from trajgym.rollout.memory import MemoryBank, with_memory

SPEC = EnvSpec(id="test/locks")


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["memory", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: object) -> Any:
    return json.loads(invoke(*arguments, "--json"))


async def test_build_show_and_effect(tmp_path: Path) -> None:
    """A memory is built of a run, listed, searched, and gets the effects that were measured."""
    memory = tmp_path / "memory.jsonl"
    await collect(SPEC, locks("red"), expert(), tmp_path / "old", samples=2)
    assert as_json("build", tmp_path / "old", "--out", memory, "--merge", 2) == {
        "out": str(memory),
        "records": {"demonstration": 3, "lesson": 0},
        "structural": 3,
    }
    header, *rows = invoke("show", memory).splitlines()
    assert header.split("\t") == ["record", "source", "evidence", "effect", "state", "task"]
    assert len(rows) == 3
    query = "Open the blue lock of the castle."
    (found,) = as_json("show", memory, "--query", query, "-k", 1)
    assert found["tasks"] == ["castle-red"]
    assert json.loads(invoke("show", memory, found["id"])) == found

    shown = with_memory(SPEC, memory, k=1)
    await collect(shown, locks("blue", "green"), reader(), tmp_path / "with", samples=1)
    await collect(SPEC, locks("blue", "green"), reader(), tmp_path / "without", samples=1)
    measured = as_json("effect", tmp_path / "with", tmp_path / "without", "--memory", memory)
    assert measured["overall"]["value"] == 1.0
    assert measured["retired"] == []
    effect = MemoryBank.load(memory)[found["id"]].effect
    assert effect is not None
    assert (effect.value, effect.tasks) == (1.0, 2)
    assert "+1.00" in invoke("show", memory)
    assert "6 scored attempts with memory, 6 without" in invoke(
        "effect", tmp_path / "with", tmp_path / "without"
    )


async def test_an_endpoint_writes_lessons(tmp_path: Path) -> None:
    """`annotate --with lessons` asks about unsolved attempts, and `build` uses the answers."""
    await collect(SPEC, locks("blue"), reader(), tmp_path / "run", samples=1)
    text = "<lesson>Look for another lock of the same place first.</lesson>"
    async with endpoint(completion(said(text))) as server:
        given = ["--with", "lessons", "--model", "m", "--base-url", server.url]
        arguments = ["annotate", str(tmp_path / "run"), *given]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output
    assert "3 turns annotated" in result.stdout
    asked = server.requests[0]["messages"][-1]["content"]
    assert "### WHAT FAILED\nThe attempt reached its limit of turns" in asked
    memory = tmp_path / "memory.jsonl"
    assert as_json("build", tmp_path / "run", "--out", memory)["structural"] == 0
    assert all(record.text == text[8:-9] for record in MemoryBank.load(memory))


async def test_runs_without_a_common_task(tmp_path: Path) -> None:
    """Without anything to compare there is no effect, and the command says so."""
    await collect(SPEC, locks("red"), expert(), tmp_path / "run", samples=1)
    assert "no task was attempted both with and without" in invoke("effect", tmp_path / "run")

"""The token rule over templates: a sample holds what the engine was given and what it sampled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.rollout.tokenizers import tokenizer
from tests.trl.runs import ByTurn
from tests.trl.tiny import SPEC, calls, said, tasks
from trajgym.adapters.trl._group_samples import SampleBuilder
from trajgym.rollout import FakeEngine, Runner, TokenPolicy
from trajgym.rollout.engines import Generation
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Store

if TYPE_CHECKING:
    from pathlib import Path


class Heard(FakeEngine):
    """Remembers every prompt it was given and what it sampled."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard: list[tuple[list[int], list[int]]] = []

    async def generate(self, prompt_ids: Any, **options: Any) -> Generation:
        made = await super().generate(prompt_ids, **options)
        self.heard.append(([int(i) for i in prompt_ids], list(made.ids)))
        return made


THOUGHT = "<think>\nhm, long\n</think>\n\nlong word"


@pytest.mark.parametrize(
    ("family", "script", "rows"),
    [
        ("chatml", [said("  odd   spacing"), calls("note", text="ü 漢字"), said("end")], 1),
        ("llama", [said("one"), calls("note", text="a"), said("end")], 1),
        ("mistral", [said("one"), said("two"), said("end")], 3),
        ("qwen", [said("one"), calls("note", text="a", times=2), said("end")], 1),
        ("qwen", [THOUGHT, THOUGHT, THOUGHT], 3),
        ("qwen", [calls("note", text="a") | {"reasoning_content": "hm"}, THOUGHT, said("end")], 2),
    ],
    ids=["chatml", "llama", "mistral-moves-tools", "qwen", "qwen-stripped", "qwen-kept-with-tools"],
)
def test_samples_are_what_was_sampled(
    tmp_path: Path, family: str, script: list[Any], rows: int
) -> None:
    """Every turn trains its own sampled ids behind the very prompt it was sampled from."""
    renderer = TemplateRenderer(tokenizer(family))
    if not renderer.opening_ids:  # a script finds its turn by something
        renderer.opening_ids = tuple(renderer._codec.encode("[/INST]"))
    engine = Heard(script, renderer=renderer)
    build = SampleBuilder(ByTurn(), "auto", allow=["synthetic"])

    async def play() -> Any:
        async with Store(tmp_path) as store:
            runner = Runner(SPEC, tasks(1), TokenPolicy(engine, renderer), store=store, samples=2)
            async with runner:
                return [build(sealed) async for sealed in runner]

    (made,) = asyncio.run(play())
    assert build.tally.dropped.total() == 0
    assert build.tally.rows == 2 * rows
    assert len(made.samples) == len(engine.heard) == 6
    found = []
    for _, sample in made.samples:
        trained = sample.completion_mask > 0
        start = int(trained.argmax())
        assert trained[start:].all()
        found.append((sample.input_ids[:start].tolist(), sample.input_ids[start:].tolist()))
    assert sorted(found) == sorted(engine.heard)

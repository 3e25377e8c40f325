"""A model small enough to train on a CPU in a test, and an environment that it can play."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.rollout.tokenizers import tokenizer
from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register, tool
from trajgym.trajectory import Message, Outcome, Task

WORDS = ("yes", "no", "maybe", "a", "b")
SPEC = EnvSpec(id="test/words")


class Tiny(NamedTuple):
    """A model in a folder."""

    path: str
    tokenizer: Any

    def model(self) -> Any:
        """Load a fresh copy."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()


@register("test/words")
class Words(Env):
    """Three exchanges; the score is the share of them in which a long word was said."""

    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=3600)
    opened: ClassVar[int] = 0
    closed: ClassVar[int] = 0
    hanging: ClassVar[int] = 0

    def __init__(self, hang: bool = False, fail: str = "") -> None:
        self.hang, self.fail = hang, fail
        self.said: list[str] = []
        self.called = 0

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        Words.opened += 1
        self.task = task
        return [
            {"role": "system", "content": "Say long words."},
            {"role": "user", "content": task.prompt or "Well?"},
        ]

    @tool
    async def note(self, text: str, times: int = 1) -> ToolResult:
        """Write something down.

        Args:
            text: what to write.
            times: how often.
        """
        if self.fail == "tool":
            raise AttributeError("the pen is broken")
        self.called += times
        return ToolResult(content=f"noted {text}", reward=0.25)

    async def respond(self, message: Message) -> ToolResult:
        if self.hang:
            Words.hanging += 1
            await asyncio.Event().wait()
        self.said.append(message["content"] or "")
        return ToolResult(content=f"And {len(self.said)}?", reward=float(len(self.said[-1]) > 1))

    async def verify(self) -> Outcome:
        right = sum(len(text) > 1 for text in self.said)
        return Outcome(score=right / 3, passed=right >= 2)

    async def close(self) -> None:
        Words.closed += 1


def tasks(n: int) -> list[Task]:
    """Return n tasks that differ in their prompt."""
    return [Task(id=f"w{i}", prompt=f"Is it {i}?") for i in range(n)]


def make(folder: Path, steps: int = 90, words: Sequence[str] = WORDS) -> Tiny:
    """Train a tiny model to answer with one of a few words and an end mark.

    It is sampled: of 20,000 responses, 45 had no end within 8 tokens, and none within 16.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from trajgym.rollout.rendering import TemplateRenderer

    made = tokenizer("qwen")
    made.pad_token = "<|endoftext|>"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # see tests/conftest.py
    config = Qwen2Config(
        vocab_size=len(made),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    renderer = TemplateRenderer(made)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        word = words[step % len(words)]
        prompt = renderer.render([{"role": "user", "content": f"Is it {step}?"}])
        answer = renderer.encode_response(word)
        ids = torch.tensor([prompt + answer])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return Tiny(str(folder), made)


def said(text: str) -> Message:
    """Return an assistant's message."""
    return {"role": "assistant", "content": text}


def calls(name: str, **arguments: Any) -> Message:
    """Return an assistant's message with one call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "c0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}

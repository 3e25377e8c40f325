"""Time to render a turn's prompt as a conversation grows.

Each turn's prompt is made by extending the ids of the previous one. The lower bound in the same run
is one application of the tokenizer's chat template to the whole conversation, without tokenizing,
and the encoding of the new message.

Usage: python benchmarks/bench_render.py --tokenizer FOLDER [--json OUT]    (needs trajgym[local])
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from trajgym.rollout.rendering import TemplateRenderer

SHAPES = {"10 short turns": (10, 40), "50 turns of 3,500 characters": (50, 3500)}
WORDS = "The test in line 12 of the file says that left is not right and stops. "


def play(tokenizer: Any, turns: int, size: int) -> tuple[float, float]:
    """Return the seconds of rendering a conversation, by our renderer and by the bare template."""
    renderer = TemplateRenderer(tokenizer)
    observation = (WORDS * (size // len(WORDS) + 1))[:size]
    messages: list[dict[str, Any]] = [{"role": "user", "content": observation}]
    ids = np.array(renderer.render(messages), dtype=np.int32)
    ours = bare = 0.0
    for turn in range(turns):
        said = f"I try {turn}."
        ids = np.append(ids, np.array(renderer.encode_response(said), dtype=np.int32))
        new = {"role": "user", "content": f"{turn}: {observation}"}
        messages = [*messages, {"role": "assistant", "content": said}, new]
        begun = time.perf_counter()
        extended = renderer.extend(ids, messages, held=len(messages) - 1)
        ours += time.perf_counter() - begun
        assert extended is not None
        begun = time.perf_counter()
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokenizer.encode(new["content"], add_special_tokens=False)
        bare += time.perf_counter() - begun
        ids = np.array(extended, dtype=np.int32)
    return ours, bare


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", required=True, help="directory or name of a chat model")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    figures: dict[str, dict[str, float]] = {}
    for name, (turns, size) in SHAPES.items():
        play(tokenizer, turns, size)  # warm-up
        found = [play(tokenizer, turns, size) for _ in range(7)]
        ours, bare = (min(seconds) / turns * 1e3 for seconds in zip(*found, strict=True))
        figures[name] = {"extend_ms": ours, "bare_ms": bare, "ratio": ours / bare}
        print(f"{name}: {ours:.2f} ms per turn, bare {bare:.2f} ms, ratio {ours / bare:.2f}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

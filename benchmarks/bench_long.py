"""What one exact turn of a long conversation costs, from 1,000 to 1,000,000 ids of context.

A session with a tool is played by the runner's own loop: an engine that costs nothing answers every
turn with a tool call, and the tool returns a text, 2,000 ids a turn. The time between two recorded
turns is divided into the codec's (writing the template's text, encoding what is new, decoding the
response: a model's tokenizer takes its place) and the rest, which is the SDK's share. Figures are
CPU time of the fastest turn near each size, because other work on the machine only adds to it; with
a store, the time of the thread that writes is part of it.
Beside it, in the same run:

- ``copy``: numpy copies the ids that are new in a turn,
- ``whole``: numpy copies all ids of the context,
- ``text``: the same conversation with a policy that gives texts, without ids.

With a tokenizer, rendering with its real chat template is measured apart: a turn of a tool loop,
whose prompt is extended, and a turn after a user's message, before which the template strips
reasoning, so that the prompt is rendered anew.

Usage: python benchmarks/bench_long.py [--most IDS] [--tokenizer FOLDER] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from trajgym.envs import Budgets, Env, EnvSpec, Reply, Session, ToolResult, register, tool
from trajgym.rollout import Policy, TokenPolicy
from trajgym.rollout._drive import SessionHooks, run_session
from trajgym.rollout.engines import Generation, TokenEngine
from trajgym.rollout.rendering import ByteRenderer, TemplateRenderer
from trajgym.rollout.rendering._text import ChatCodec
from trajgym.trajectory import Segment, Store, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.rollout import PolicyRequest
    from trajgym.trajectory import IntArray, Message, ToolSchema

SIZES = (1_000, 10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
TURN_IDS = 2_000
SAID = "I look at the next place, because the last one had nothing of interest in it. " * 3
SEEN = "The test in line 12 of the file says that left is not right and stops. " * 23
GOAL_MS, GOAL_IDS = 0.3, 200_000


@register("bench/long")
class Long(Env):
    """Returns a text until nothing asks any more."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        self.left = int(task.data["turns"])
        return "Look around."

    @tool
    async def look(self, place: str) -> ToolResult:
        """Look at a place.

        Args:
            place: where.
        """
        self.left -= 1
        return ToolResult(content=f"{place}: {SEEN}", done=self.left == 0)

    async def verify(self) -> float:
        return 1.0


class FreeCodec(ChatCodec):
    """The byte renderer's codec, which writes every message's text once only."""

    def __init__(self, codec: ChatCodec) -> None:
        self.specials, self.eos_ids = codec.specials, codec.eos_ids
        self._codec = codec
        self._written: dict[int, tuple[Message, str]] = {}

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)

    def encode_array(self, text: str) -> IntArray:
        return self._codec.encode_array(text)

    def decode(self, ids: list[int]) -> str:
        return self._codec.decode(ids)

    def _text(self, message: Message) -> str:
        found = self._written.get(id(message))
        if found is None:
            text = self._codec.template([message], (), open_turn=False)
            found = self._written[id(message)] = message, text
        return found[1]

    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        ends = self._codec.template([], tools, open_turn=False), "<|assistant|>" * open_turn
        return "".join([ends[0], *map(self._text, messages), ends[1]])


class Clock:
    """CPU seconds, and those spent in the parts that do not count as the SDK's, with measuring."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds = 0.0
        self._own = 0.0
        self._own = self._measuring()

    def _measuring(self) -> float:
        """Return the seconds that a timed call of nothing takes and does not note."""
        call, found = self.timed(tuple), []
        for _ in range(21):
            self.seconds, begun = 0.0, self.now()
            for _ in range(100):
                call()
            found.append((self.now() - begun - self.seconds) / 100)
        self.seconds = 0.0
        return min(found)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, whose time is added."""

        def wrapped(*given: Any, **named: Any) -> Any:
            begun = self.now()
            try:
                return call(*given, **named)
            finally:
                self.seconds += self.now() - begun + self._own

        return wrapped


def answer(turn: int) -> Message:
    call = {"name": "look", "arguments": json.dumps({"place": f"place {turn}"})}
    calls = [{"id": f"c{turn}", "type": "function", "function": call}]
    return {"role": "assistant", "content": SAID, "tool_calls": calls}


class FreeEngine(TokenEngine):
    """Returns responses that were made before."""

    name = "free"
    synthetic = True
    logprob_mode = "processed"

    def __init__(self, renderer: ByteRenderer, turns: int, clock: Clock) -> None:
        self._made = []
        for turn in range(turns):
            ids = renderer.encode_response(answer(turn))
            segments = (Segment(len(ids), 0, 0),)
            self._made.append(Generation(ids, [-0.5] * len(ids), segments, "stop"))
        self._clock = clock
        self._turn = 0

    async def generate(self, *_: Any, **__: Any) -> Generation:
        self._turn += 1
        return self._made[self._turn - 1]


class Texts(Policy):
    """Gives the same messages without ids."""

    name = "texts"

    async def sample(self, request: PolicyRequest) -> Reply:
        return Reply(message=answer(request.turn), finish="tool_calls")


class Turn(NamedTuple):
    ids: int
    seconds: float
    apart: float


async def play(turns: int, *, exact: bool, store: Store | None = None) -> list[Turn]:
    """Play one session; return the context, seconds, and seconds apart, of each turn."""
    clock = Clock(time.thread_time if store is None else time.process_time)
    now = clock.now
    renderer = ByteRenderer()
    codec: Any = FreeCodec(renderer._codec)
    renderer._codec = codec
    policy: Policy = Texts()
    if exact:
        policy = TokenPolicy(FreeEngine(renderer, turns, clock), renderer, max_tokens=TURN_IDS)
    for name in ("template", "encode", "encode_array", "decode"):
        setattr(codec, name, clock.timed(getattr(codec, name)))
    task = Task(id="long", data={"turns": turns})
    session = Session(EnvSpec(id="bench/long"), task, store=store)
    seen: list[Turn] = []
    last = [now(), 0.0]

    def note(one: Session) -> None:
        seconds = now() - last[0]
        usage = one.turns[-1].usage
        ids = usage.prompt_tokens if usage else 0
        seen.append(Turn(ids, seconds, clock.seconds - last[1]))
        last[:] = [now(), clock.seconds]

    await run_session(session, policy, task, hooks=SessionHooks(on_turn=note))
    if not session.status.scored:
        raise SystemExit(f"the session ended {session.status}: {session.attempt.cause}")
    return seen[1:]


def near(turns: list[Turn], size: int) -> slice:
    """Return the turns whose context is about so long."""
    places = [i for i, turn in enumerate(turns) if 0.85 * size <= turn.ids <= 1.1 * size]
    first = places[0] if places else 0
    return slice(first, max(first + 3, places[-1] + 1 if places else 0))


def shares(turns: list[Turn]) -> tuple[float, float]:
    """Return the SDK's and the codec's milliseconds of a turn."""
    ours = min(turn.seconds - turn.apart for turn in turns)
    return ours * 1e3, min(turn.apart for turn in turns) * 1e3


def copying(ids: int) -> float:
    """Return the milliseconds in which numpy copies so many ids."""
    array, samples = np.arange(ids, dtype=np.int32), []
    for _ in range(21):
        begun = time.perf_counter()
        array.copy()
        samples.append(time.perf_counter() - begun)
    return min(samples) * 1e3


def measure(most: int, rounds: int) -> list[dict[str, float]]:
    """Return the figures for every size up to ``most``."""
    sizes = [size for size in SIZES if size <= most]
    turns = max(5, sizes[-1] // TURN_IDS + 2)
    exact = [asyncio.run(play(turns, exact=True)) for _ in range(rounds)]
    texts = [asyncio.run(play(turns, exact=False)) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        stored = asyncio.run(play(turns, exact=True, store=store))
    figures = []
    for size in sizes:
        place = near(exact[0], size)
        ours, apart = min(shares(played[place]) for played in exact)
        figures.append(
            {
                "ids": size,
                "sdk_ms": ours,
                "sdk_and_store_ms": shares(stored[place])[0],
                "codec_ms": apart,
                "text_turn_ms": min(shares(played[place])[0] for played in texts),
                "copy_delta_ms": copying(TURN_IDS),
                "copy_whole_ms": copying(size),
            }
        )
    return figures


def conversation(turns: int, *, user: bool) -> list[Message]:
    """Return messages that end with an observation; in a tool loop, or said by a user."""
    messages: list[Message] = [{"role": "user", "content": "Look around."}]
    for turn in range(turns):
        said = answer(turn)
        if user:
            said = {"role": "assistant", "content": SAID, "reasoning_content": f"Where? {turn}"}
            seen = {"role": "user", "content": SEEN}
        else:
            seen = {"role": "tool", "tool_call_id": f"c{turn}", "content": SEEN}
        messages += [said, seen]
    return messages


def render(renderer: Any, size: int, *, user: bool) -> dict[str, float]:
    """Return the milliseconds of making one prompt of about ``size`` ids after the last one."""
    per_turn = len(renderer.render(conversation(9, user=user))) - len(
        renderer.render(conversation(8, user=user))
    )
    messages = conversation(max(1, size // per_turn), user=user)
    held = len(messages) - 1
    before = renderer.render(messages[: held - 1])
    said = {k: v for k, v in messages[held - 1].items() if k != "reasoning_content"}
    prefix = np.array([*before, *renderer.encode_response(said)], dtype=np.int32)
    samples = []
    for _ in range(3):
        renderer.render(messages[: held - 1])  # as the last turn did
        begun = time.perf_counter()
        made = renderer.extend(prefix, messages, held=held)
        if made is None:
            renderer.shown(messages)
            made = renderer.render(messages)
        samples.append(time.perf_counter() - begun)
    return {"ids": len(made), "messages": len(messages), "ms": min(samples) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=SIZES[-1], help="longest context, in ids")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", help="folder or name of a chat model, for its template")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    found: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds")}
    found["turns"] = measure(given.most, given.rounds)
    print(f"milliseconds of one turn of {TURN_IDS} new ids, by ids of context")
    print("      ids      SDK  +store    codec     text   copy of new, whole   SDK / text")
    for one in found["turns"]:
        print(
            f"{one['ids']:9,} {one['sdk_ms']:8.3f} {one['sdk_and_store_ms']:7.3f} "
            f"{one['codec_ms']:8.3f} {one['text_turn_ms']:8.3f} {one['copy_delta_ms']:11.4f} "
            f"{one['copy_whole_ms']:7.4f} {one['sdk_ms'] / one['text_turn_ms']:12.2f}"
        )
        if one["ids"] == GOAL_IDS:
            met = one["sdk_ms"] < GOAL_MS
            print(f"          goal: under {GOAL_MS} ms: {'met' if met else 'missed'}")
    if given.tokenizer:
        from transformers import AutoTokenizer

        renderer = TemplateRenderer(AutoTokenizer.from_pretrained(given.tokenizer))
        for name, user in (("tool loop, extended", False), ("reasoning stripped", True)):
            sizes = [size for size in SIZES if size <= min(given.most, GOAL_IDS)]
            found[name] = [render(renderer, size, user=user) for size in sizes]
            for one in found[name]:
                print(
                    f"{name}: {one['ids']:9,} ids, {one['messages']} messages: {one['ms']:.2f} ms"
                )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

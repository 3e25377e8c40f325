"""Long conversations: what a turn keeps in memory, and that nothing is read again in vain."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.envs import Budgets, Env, EnvSpec, Reply, Sampled, Session, register, tool
from trajgym.rollout import FakeEngine, SessionHooks, TokenPolicy, call, run_session
from trajgym.rollout.rendering import ByteRenderer
from trajgym.trajectory import Segment, SessionTree, Task, TurnTokens
from trajgym.trajectory._internal import append_ids, same_start

NEW = 300
"""Ids that are new in each turn."""


@register("test/endless")
class Endless(Env):
    """Answers as often as it is asked."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:
        return "Go."

    @tool
    async def go(self) -> str:
        """Go on."""
        return "here"

    async def verify(self) -> float:
        return 1.0


async def play(turns: int) -> Session:
    """Play exact turns with whole prompts, as engines report them, and views as log-probs."""
    batch = np.full(64 * NEW, -0.5, np.float32)
    async with Session(EnvSpec(id="test/endless"), Task(id="t"), session_id="s") as session:
        whole = np.arange(NEW, dtype=np.int32)
        for _ in range(turns):
            response = np.arange(64 * NEW, dtype=np.int32)[:NEW]
            sampled = Sampled(
                prompt_ids=whole,
                response_ids=response,
                logprobs=batch[NEW : 2 * NEW],
                segments=(Segment(NEW, 0, 0),),
            )
            await session.step(Reply(message=call("go"), sampled=sampled))
            whole = np.concatenate([whole, response, np.arange(NEW, dtype=np.int32)])
        return session


async def kept_bytes(turns: int) -> int:
    """Return the bytes that a session of so many turns keeps alive."""
    gc.collect()
    tracemalloc.start()
    try:
        session = await play(turns)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        assert len(session.turns) == turns
    finally:
        tracemalloc.stop()
    return used


async def test_memory_of_a_session_is_linear_in_its_new_ids() -> None:
    """Four times the turns take four times the memory: no turn keeps its whole prompt alive."""
    await play(3)
    few, many = await kept_bytes(100), await kept_bytes(400)
    assert many < 6 * few
    ids = 400 * 3 * NEW * 4
    assert many < 6 * ids  # ids, log-probs, the last sequence with room, and messages


def test_a_turn_owns_its_arrays() -> None:
    """Views of larger arrays are copied; what is stored is as large as it looks."""
    whole = np.arange(100_000, dtype=np.int32)
    logprobs = np.full(100_000, -1.0, np.float32)
    tokens = TurnTokens(
        prompt_kept=5,
        prompt_ids=whole[-10:],
        response_ids=whole[:7],
        logprobs=logprobs[:7],
        segments=(Segment(7, 1, 1),),
    )
    for array in (tokens.prompt_ids, tokens.response_ids, tokens.logprobs):
        assert array.base is None
    assert tokens.prompt_ids.tolist() == list(range(99_990, 100_000))


async def test_a_sequence_of_more_turns_than_calls_fit_on_the_stack() -> None:
    """The ids of the last of 1,500 turns are put together from their deltas."""
    session = await play(1500)
    tree = session.tree
    assert np.array_equal(tree.sequence(tree.turns[-1]), session.prefix_ids)
    again = SessionTree.from_json(tree.to_json())
    assert np.array_equal(again.prompt(again.turns[-1]), tree.prompt(tree.turns[-1]))


async def test_a_prompt_shares_the_memory_of_the_prefix() -> None:
    """Extending a long prompt copies what is new; the ids are those of a fresh rendering."""
    seen: list[Any] = []

    class Watched(FakeEngine):
        async def generate(self, prompt_ids: Any, **more: Any) -> Any:
            seen.append(prompt_ids)
            return await super().generate(prompt_ids, **more)

    engine = Watched([call("go"), call("go"), call("go"), "done"])
    policy = TokenPolicy(engine, engine.renderer)
    session = Session(EnvSpec(id="test/endless"), Task(id="t"), budgets=Budgets(turns=4))
    await run_session(session, policy, Task(id="t"), hooks=SessionHooks())
    assert len(seen) == 4
    assert same_start(seen[2], seen[3])
    tree = session.tree
    for turn, prompt in zip(tree.turns, seen, strict=True):
        assert prompt.tolist() == ByteRenderer().render(tree.context(turn), session.tools)
        assert np.array_equal(prompt, tree.prompt(turn))
        with pytest.raises(ValueError, match="read-only"):
            prompt[0] = 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=6)), max_size=12))
def test_appended_ids_are_those_of_a_copy(steps: list[tuple[int, list[int]]]) -> None:
    """Whatever is appended to whichever array, in whatever order, no array ever changes."""
    made = [(np.arange(3, dtype=np.int32), [0, 1, 2])]
    for which, new in steps:
        ids, plain = made[which % len(made)]
        made.append((append_ids(ids, new), plain + new))
    for ids, plain in made:
        assert ids.tolist() == plain
    for one, ones in made:
        for other, others in made:
            if same_start(one, other):
                shared = min(len(ones), len(others))
                assert ones[:shared] == others[:shared]

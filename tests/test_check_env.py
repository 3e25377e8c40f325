"""The environment checker: passes what keeps the promises, names what does not."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import pytest

from tests.worlds import call
from trajgym.envs import Budgets, Env, EnvSpec, check_env, register, tool
from trajgym.trajectory import ConformanceError, Message, Task

GOOD = [call(("add", '{"n": 2}')), call(("dice", "{}")), call(("finish", "{}"))]


@pytest.mark.parametrize(
    ("env", "messages"),
    [
        ("test/counter", GOOD),
        ("test/echo", ["one", "two"]),
        ("test/unforkable", GOOD),
        ("test/snapshots", GOOD),
    ],
)
async def test_sound_environments_pass(env: str, messages: list[Message | str]) -> None:
    """Environments that keep the promises pass all of them."""
    assert len(await check_env(EnvSpec(id=env), messages=messages)) == 7


class Base(Env):
    def reset(self, task: Task, seed: int | None) -> str:
        return "hi"

    def verify(self) -> float:
        return 1.0


@register("bad/random")
class Random(Base):
    def reset(self, task: Task, seed: int | None) -> str:
        return str(random.random())


@register("bad/silent")
class Silent(Base):
    @tool
    def act(self) -> str:
        return "x"


@register("bad/verdict")
class Verdict(Base):
    def verify(self) -> float:
        return float("nan")


@register("bad/close")
class Close(Base):
    closed: bool = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        self.closed = True


@register("bad/tool")
class Tool(Base):
    @tool
    def act(self, n: int, how: dict[str, Any] | None = None) -> str:
        """Break."""
        raise RuntimeError("bug")


@register("bad/secret")
class Secret(Base):
    counter: ClassVar[list[int]] = []

    def respond(self, message: Message) -> str:
        self.counter.append(1)
        return str(len(self.counter))


@register("good/hanging")
class Hanging(Base):
    """Its tool ends when the agent's time is used up."""

    budgets = Budgets(seconds=0.2)

    @tool
    async def act(self) -> str:
        """Wait for something that does not come."""
        await asyncio.Event().wait()
        return ""


async def test_a_call_that_ran_out_of_time_is_not_repeated() -> None:
    """The check of forks does not wait for a call that the agent's time has stopped."""
    await asyncio.wait_for(check_env(EnvSpec(id="good/hanging")), timeout=120)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("bad/random", "equal observations: two resets"),
        ("bad/silent", "has a description: tool 'act'"),
        ("bad/verdict", "verified and scored: failed:verify"),
        ("bad/close", "close can be called twice"),
        ("bad/tool", "failed:env: RuntimeError: bug"),
        ("bad/secret", "different observations"),
    ],
)
async def test_broken_environments_are_named(env: str, message: str) -> None:
    """Each broken promise is reported by name."""
    with pytest.raises(ConformanceError, match=message):
        await check_env(EnvSpec(id=env))

"""gymnasium both ways."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from tests.worlds import call
from trajgym.envs import EnvironmentFault, EnvSpec, Session
from trajgym.envs.gym import register_gymnasium
from trajgym.trajectory import InvalidInput, Task

WRAPPED = "trajgym.envs.gym:GymnasiumEnv"


@pytest.mark.parametrize("env", ["test/counter", "test/echo"])
def test_trajgym_environment_passes_gymnasiums_own_checker(env: str) -> None:
    """What gymnasium.make gives for a trajgym environment is a proper gymnasium environment."""
    made = gymnasium.make(register_gymnasium(env.replace("/", "-"), EnvSpec(id=env)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        gymnasium_check_env(made.unwrapped)
    made.close()


def test_playing_a_trajgym_environment_through_gymnasium() -> None:
    """Tool calls are JSON actions; the last reward carries the outcome."""
    tasks = [Task(id="a"), Task(id="b")]
    env = gymnasium.make(register_gymnasium("play", EnvSpec(id="test/counter"), tasks))
    prompt, info = env.reset(seed=1, options={"task": "b"})
    assert "Count to 3" in prompt
    assert info["tools"][0]["function"]["name"] == "add"
    add = json.dumps(
        [{"tool": "add", "arguments": {"n": 1}}, {"tool": "add", "arguments": {"n": 2}}]
    )
    observation, reward, terminated, truncated, _ = env.step(add)
    assert (observation, reward, terminated, truncated) == ("now 1\n\nnow 3", 0.2, False, False)
    _, reward, terminated, _, info = env.step('{"tool": "finish"}')
    assert (reward, terminated, info["status"]) == (2.0, True, "completed")
    with pytest.raises(InvalidInput, match="no task 'c'"):
        env.reset(options={"task": "c"})
    env.close()


def test_broken_environment_raises_instead_of_rewarding_zero() -> None:
    """A fault in the environment is an exception to gymnasium users, never a reward."""
    env = gymnasium.make(register_gymnasium("faulty", EnvSpec(id="test/counter")))
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="typo"):
        env.step('{"tool": "bug"}')
    env.close()


async def play(config: dict[str, Any], actions: list[Any], seed: int = 0) -> Session:
    async with Session(EnvSpec(id=WRAPPED, config=config), Task(id="g"), seed=seed) as session:
        for action in actions:
            if session.done:
                break
            await session.step(call(("act", json.dumps({"action": action}))))
    return session


async def test_frozen_lake_is_solved() -> None:
    """A wrapped FrozenLake shows its map, takes names and numbers, and scores the goal."""
    config = {
        "id": "FrozenLake-v1",
        "kwargs": {"is_slippery": False},
        "actions": ["left", "down", "right", "up"],
    }
    session = await play(config, ["down", 1, "right", "right", "DOWN", "2"])
    assert session.outcome is not None
    assert (session.outcome.score, session.outcome.passed) == (1.0, True)
    assert "SFFF" in session.turns[0].observation[0]["content"]
    assert "0 (left)" in session.turns[0].context[0]["content"]


async def test_frozen_lake_hole_and_bad_action() -> None:
    """Falling in ends the episode unsolved; an unknown action is answered."""
    config = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}}
    session = await play(config, ["fly", 99, 1, 2])
    assert [t.calls[0].status for t in session.turns] == ["error", "error", "ok", "ok"]
    assert session.outcome is not None
    assert not session.outcome.passed


async def test_blackjack_and_its_seed() -> None:
    """Blackjack ends with its own reward, and equal seeds deal equal cards."""
    first = await play({"id": "Blackjack-v1"}, [0], seed=3)
    again = await play({"id": "Blackjack-v1"}, [0], seed=3)
    assert first.turns[0].observation == again.turns[0].observation
    assert first.outcome is not None
    assert first.outcome.score in {-1.0, 0.0, 1.0, 1.5}
    assert str(first.status) == "completed"


async def test_taxi_runs_into_its_step_limit() -> None:
    """The time limit of a wrapped environment is a truncation by name, scored."""
    taxi = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
    config = {"id": taxi, "kwargs": {"max_episode_steps": 3}}
    session = await play(config, [0, 0, 0, 0])
    assert str(session.status) == "truncated:steps"
    assert session.outcome is not None
    assert session.outcome.score == -3.0
    assert len(session.turns) == 3


async def test_text_actions() -> None:
    """An environment with text actions takes the agent's plain messages."""

    class Parrot(gymnasium.Env[str, str]):
        observation_space = spaces.Text(50)
        action_space = spaces.Text(50)

        def reset(
            self, *, seed: int | None = None, options: Any = None
        ) -> tuple[str, dict[str, Any]]:
            return "hello", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return action.upper(), float(action == "bye"), action == "bye", False, {}

    gymnasium.register("test/Parrot-v0", entry_point=Parrot)
    spec = EnvSpec(id=WRAPPED, config={"id": "test/Parrot-v0"})
    async with Session(spec, Task(id="p")) as session:
        result = await session.step("polly")
        assert "POLLY" in result.observation[0]["content"]
        await session.step("bye")
    assert session.outcome is not None
    assert session.outcome.passed


async def test_continuous_actions_are_refused_by_name() -> None:
    """Environments that can't be wrapped are refused with the reason."""

    class Car(gymnasium.Env[Any, Any]):
        observation_space = spaces.Discrete(2)
        action_space = spaces.Box(-1, 1)

    gymnasium.register("test/Car-v0", entry_point=Car)
    async with Session(EnvSpec(id=WRAPPED, config={"id": "test/Car-v0"}), Task(id="c")) as session:
        assert "only Discrete and Text" in session.attempt.cause

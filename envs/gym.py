"""Conversion between trajgym and gymnasium environments; needs the extra ``trajgym[gym]``.

:class:`GymnasiumEnv` wraps a ``gymnasium.Env`` with discrete or text actions as a trajgym
environment. :func:`register_gymnasium` makes a trajgym environment available through
``gymnasium.make``.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

from trajgym.envs._env import Env
from trajgym.envs._errors import EnvironmentFault, SessionEnded, ToolError
from trajgym.envs._session import Session
from trajgym.envs._tools import ToolResult, tool
from trajgym.trajectory import InvalidInput, Message, Outcome, Task, text_of
from trajgym.trajectory._internal import MissingExtra

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise MissingExtra("gymnasium", "gym") from error

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from trajgym.envs._spec import EnvSpec

__all__ = ["AnyText", "GymnasiumEnv", "TextEnv", "register_gymnasium"]


class GymnasiumEnv(Env):
    """A ``gymnasium.Env`` as a trajgym environment.

    Discrete actions are taken with the tool ``act``, text actions as plain messages. The
    environment's rewards are step rewards; the outcome's score is their sum, and the attempt passes
    if the episode terminated with a positive last reward.

    Args:
        id: id of the environment, for ``gymnasium.make``.
        kwargs: passed to ``gymnasium.make``.
        actions: names of the discrete actions, in order; numbers are accepted too.
        instructions: text that precedes the first observation.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - gymnasium's own word
        kwargs: dict[str, Any] | None = None,
        actions: Sequence[str] = (),
        instructions: str = "",
    ) -> None:
        self._id = id
        self._kwargs = dict(kwargs or {})
        self._names = [name.lower() for name in actions]
        self._instructions = instructions
        self._env: Any = None
        self._total = 0.0
        self._passed = False

    def reset(self, task: Task, seed: int | None) -> str:
        """Make the environment and describe it."""
        self._env = self._make()
        self._first = getattr(self._env.action_space, "start", 0)
        observation, _ = self._env.reset(seed=seed)
        parts = [task.prompt or self._instructions, self._how_to_act(), self._show(observation)]
        return "\n\n".join(part for part in parts if part)

    def _make(self) -> Any:
        env = gymnasium.make(self._id, **self._kwargs)
        self._draws = "ansi" in env.metadata.get("render_modes", ())
        if self._draws and "render_mode" not in self._kwargs:
            # A text rendering of the state, if the environment supports it.
            env.close()
            env = gymnasium.make(self._id, render_mode="ansi", **self._kwargs)
        if not isinstance(env.action_space, (spaces.Discrete, spaces.Text)):
            raise InvalidInput(
                f"gymnasium environment {self._id!r} has actions {env.action_space}; only "
                "Discrete and Text can be wrapped",
            )
        return env

    def _how_to_act(self) -> str:
        space = self._env.action_space
        if isinstance(space, spaces.Text):
            return "Answer with the text of your action."
        numbers = range(int(space.start), int(space.start + space.n))
        if not self._names:
            return f"Call act with an action from {numbers[0]} to {numbers[-1]}."
        named = zip(numbers, self._names, strict=True)
        return "Call act with one of: " + ", ".join(f"{n} ({name})" for n, name in named) + "."

    @tool
    def act(self, action: int | str) -> ToolResult:
        """Take one action in the environment.

        Args:
            action: the number or the name of the action.
        """
        space = self._env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ToolError("this environment takes text; answer with your action as plain text")
        return self._step(self._number(action))

    def _number(self, action: int | str) -> int:
        text = str(action).strip().lower()
        if text in self._names:
            return self._names.index(text) + int(self._first)
        number = int(text) if text.lstrip("-").isdigit() else None
        if number is None or not self._env.action_space.contains(number):
            raise ToolError(f"no action {action!r}. {self._how_to_act()}")
        return number

    def respond(self, message: Message) -> ToolResult:
        """Take a text action; with discrete actions, point to the tool."""
        if isinstance(self._env.action_space, spaces.Text):
            return self._step(text_of(message))
        return ToolResult(content=self._how_to_act())

    def _step(self, action: int | str) -> ToolResult:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._total += float(reward)
        self._passed = bool(terminated) and float(reward) > 0
        return ToolResult(
            content=self._show(observation),
            reward=float(reward),
            done=bool(terminated),
            truncated="steps" if truncated and not terminated else "",
        )

    def _show(self, observation: object) -> str:
        picture = self._env.render() if self._draws else None
        shown = f"Observation: {observation}"
        return f"{shown}\n{picture.strip()}" if isinstance(picture, str) else shown

    def verify(self) -> Outcome:
        """Return the sum of rewards as the score."""
        return Outcome(score=self._total, passed=self._passed)

    def close(self) -> None:
        """Close the wrapped environment."""
        if self._env is not None:
            self._env.close()


class AnyText(spaces.Text):
    """A text space that contains every string up to its length, with any characters."""

    def contains(self, x: object) -> bool:
        """Return whether ``x`` is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


class TextEnv(gymnasium.Env[str, str]):
    """A trajgym environment as a ``gymnasium.Env`` with text actions and observations.

    An action is a plain message, or JSON for tool calls: ``{"tool": "add", "arguments": {...}}``
    or a list of those. The observation is the text of the environment's response. The reward is the
    step reward, plus the outcome's score on the last step. ``info`` has the chat messages, the
    tools, and at the end ``status`` and ``outcome``.

    Args:
        spec: the environment.
        tasks: the tasks; ``reset(options={"task": task_or_id})`` chooses one, otherwise the seed.
        settings: passed to :class:`trajgym.envs.Session` (``store``, ``budgets``, ...).

    Raises:
        EnvironmentFault: raised by ``reset`` and ``step`` if the environment fails, because a
            failure is not a reward.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - declared so by gymnasium

    def __init__(
        self,
        spec: EnvSpec,
        tasks: Sequence[Task] = (),
        *,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        self.observation_space = AnyText(max_length=1 << 24, min_length=0)
        self.action_space = AnyText(max_length=1 << 20, min_length=0)
        self.render_mode = render_mode
        self._spec = spec
        self._tasks = list(tasks) or [Task(id="default")]
        self._settings = settings
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Open a session of a task and return the prompt."""
        super().reset(seed=seed)
        self._leave()
        task = self._pick((options or {}).get("task"))
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._session = Session(self._spec, task, seed=seed, **self._settings)
        self._wait(self._session.__aenter__())
        self._raise_if_failed()
        return "\n\n".join(text_of(m) for m in self._session.messages), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        session = self._session
        if session is None or session.done:
            raise SessionEnded("call reset() first")
        result = self._wait(session.step(_message(action)))
        self._raise_if_failed()
        reward = result.reward or 0.0
        if session.outcome is not None:
            reward += session.outcome.score
        observation = "\n\n".join(text_of(m) for m in result.observation)
        kind = session.status.kind
        return observation, reward, kind == "completed", kind == "truncated", self._info()

    def render(self) -> str:
        """Return the conversation so far as text."""
        if self._session is None:
            return ""
        return "\n".join(f"{m['role']}: {text_of(m)}" for m in self._session.messages)

    def close(self) -> None:
        """Close the session and the thread that it runs in."""
        self._leave()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _pick(self, wanted: Task | str | None) -> Task:
        if isinstance(wanted, Task):
            return wanted
        if wanted is None:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        for task in self._tasks:
            if task.id == wanted:
                return task
        raise InvalidInput(f"no task {wanted!r} among the {len(self._tasks)} tasks")

    def _info(self) -> dict[str, Any]:
        session = self._session
        assert session is not None
        info: dict[str, Any] = {"messages": session.messages, "tools": session.tools}
        if session.done:
            info |= {"status": str(session.status), "outcome": session.outcome}
        return info

    def _raise_if_failed(self) -> None:
        session = self._session
        assert session is not None
        if session.status.kind == "failed":
            raise EnvironmentFault(session.status.detail, session.attempt.cause)

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._wait(session.__aexit__(None, None, None))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run in a separate event loop, so that it also works while one is running."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _message(action: str) -> Message:
    try:
        calls = json.loads(action)
    except ValueError:
        calls = None
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not calls:
        return {"role": "assistant", "content": action}
    if not all(isinstance(call, dict) and isinstance(call.get("tool"), str) for call in calls):
        return {"role": "assistant", "content": action}
    functions = [
        {"name": call["tool"], "arguments": json.dumps(call.get("arguments", {}))} for call in calls
    ]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def register_gymnasium(
    name: str,
    spec: EnvSpec,
    tasks: Sequence[Task] = (),
    **settings: Any,
) -> str:
    """Register a trajgym environment with gymnasium; return its id for ``gymnasium.make``.

    Args:
        name: ``my-env`` becomes ``trajgym/my-env-v0``.
        spec: the environment.
        tasks: the tasks.
        settings: passed to :class:`TextEnv`.
    """
    env_id = f"trajgym/{name}-v0"
    kwargs = {"spec": spec, "tasks": list(tasks), **settings}
    gymnasium.register(
        env_id,
        entry_point=_make_text_env,
        kwargs={"settings": kwargs},
    )
    return env_id


def _make_text_env(**given: Any) -> TextEnv:
    return TextEnv(render_mode=given.get("render_mode"), **given["settings"])

"""The conformance check of environments."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import ForkDiverged, Unforkable
from trajgym.envs._session import Session
from trajgym.envs._spec import EnvSpec
from trajgym.trajectory import ConformanceError, Message, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Turn

__all__ = ["check_env"]


async def check_env(
    spec: EnvSpec,
    task: Task | None = None,
    messages: Sequence[Message | str] | None = None,
) -> list[str]:
    """Check the properties of an environment that sessions, forks and training rely on.

    Args:
        spec: the environment.
        task: the task to open; an empty task by default.
        messages: assistant messages to send; by default one call of every tool, with arguments
            generated from its schema (tools may answer them with an error).

    Returns:
        What was checked, in words.

    Raises:
        ConformanceError: a check failed; the message names it.
    """
    check = _Check(spec, task or Task(id="check"), messages)
    checks = {
        "its spec survives JSON": check.spec_survives_json,
        "every tool has a description": check.tools_are_described,
        "it opens, and a truncated attempt is verified and scored": check.cut_is_scored,
        "invalid calls are answered and the session continues": check.bad_calls_are_answered,
        "equal seeds and messages give equal observations": check.repeats,
        "a fork has the same state, or it declares that it can't be forked": check.forks,
        "close can be called twice": check.closes_twice,
    }
    for name, run in checks.items():
        try:
            await run()
        except AssertionError as error:
            raise ConformanceError(f"check_env: {name}: {error}") from error
    return list(checks)


class _Check:
    def __init__(
        self,
        spec: EnvSpec,
        task: Task,
        messages: Sequence[Message | str] | None,
    ) -> None:
        self.spec = spec
        self.task = task
        self.given = messages

    def session(self) -> Session:
        return Session(self.spec, self.task, seed=7)

    async def play(self, session: Session) -> None:
        played = self.given if self.given is not None else example_messages(session)
        for message in played:
            if not session.done:
                await session.step(message)
            assert session.status.kind != "failed", f"{session.status}: {session.attempt.cause}"

    async def spec_survives_json(self) -> None:
        again = EnvSpec.model_validate(json.loads(json.dumps(self.spec.to_json())))
        assert again == self.spec, f"{again} is not {self.spec}"

    async def tools_are_described(self) -> None:
        for tool in self.session().tools:
            function = tool["function"]
            assert function["description"], f"tool {function['name']!r} has no docstring"

    async def cut_is_scored(self) -> None:
        async with self.session() as session:
            assert not session.done, f"it does not open: {session.attempt.cause}"
            await session.truncate("check", "cut by check_env")
        assert session.outcome is not None, f"{session.status}: {session.attempt.cause}"
        assert math.isfinite(session.outcome.score), "the score is not finite"

    async def bad_calls_are_answered(self) -> None:
        async with self.session() as session:
            names = [tool["function"]["name"] for tool in session.tools]
            for name, arguments in [("no_such_tool", "{}"), *((name, "{") for name in names)]:
                if not session.done:
                    await session.step(_call(name, arguments))
            kinds = [call.status for turn in session.turns for call in turn.calls]
            assert set(kinds) <= {"invalid"}, f"invalid calls ended as {kinds}"
            assert session.status.kind in {"running", "truncated"}, str(session.status)

    async def repeats(self) -> None:
        seen = []
        for _ in range(2):
            async with self.session() as session:
                opening = session.messages
                await self.play(session)
                seen.append((opening, [turn.observation for turn in session.turns]))
        if self.spec.resolve().forkable:
            assert seen[0][0] == seen[1][0], (
                "two resets with the same seed gave different first messages"
            )
            assert seen[0][1] == seen[1][1], "the same messages gave different observations"

    async def forks(self) -> None:
        forkable = self.spec.resolve().forkable
        async with self.session() as session:
            await self.play(session)
            last = next((turn for turn in reversed(session.turns) if _can_be_repeated(turn)), None)
            try:
                rival = await session.fork(last.index if last else None)
            except Unforkable:
                assert not forkable, "it can't be forked but does not declare it"
                return
            except ForkDiverged as error:
                raise AssertionError(str(error)) from error
            assert forkable, "it declares that it can't be forked, but was"
            async with rival:
                assert not rival.done, "the fork has already ended"

    async def closes_twice(self) -> None:
        async with self.session() as session:
            env, worker = session._instance.env, session._instance.worker
            assert env is not None, "it does not open"
            await worker.call(env.close)
            try:
                await worker.call(env.close)
            except Exception as error:  # boundary: environment code
                raise AssertionError(f"the second close raised {error!r}") from error


def example_messages(session: Session) -> list[Message]:
    """Return one call of every tool, with the minimal arguments that its schema allows."""
    if not session.tools:
        return [{"role": "assistant", "content": "hello"}]
    functions = [tool["function"] for tool in session.tools]
    return [
        _call(function["name"], json.dumps(_example(function["parameters"])))
        for function in functions
    ]


def _can_be_repeated(turn: Turn) -> bool:
    return not turn.done and all(call.status != "timeout" for call in turn.calls)


def _call(name: str, arguments: str) -> Message:
    function = {"name": name, "arguments": arguments}
    call = {"id": "check", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _example(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _example(schema[key][0], root)
    kind = schema.get("type", "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _example(properties[name], root) for name in schema.get("required", ())}
    if kind in {"integer", "number"}:
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return max(0, least)
    examples: dict[str, Any] = {"boolean": False, "array": [], "null": None}
    return examples.get(kind, "x" * schema.get("minLength", 1))

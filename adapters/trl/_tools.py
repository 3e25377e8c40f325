"""An environment as a class with tools, for TRL's ``environment_factory``."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, get_type_hints

from trajgym.envs import Session, SessionEnded, tools_of
from trajgym.trajectory import InvalidInput, text_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trajgym.adapters.trl._loop import LoopThread
    from trajgym.envs import EnvSpec, Tool
    from trajgym.trajectory import Message, Task

__all__ = ["ToolEnv", "tool_env_class"]

_OVER = "The episode is over; call no more tools."


class ToolEnv:
    """Runs one session at a time; TRL reuses instances, so ``reset`` closes the previous session.

    The trainer renders and samples, so turns are text turns. Each tool call is a separate turn,
    even if a message has several.
    """

    _loop: LoopThread
    _spec: EnvSpec
    _open: Callable[[Task], Session]
    _tasks: Mapping[str, Task]
    _made: list[ToolEnv]

    def __init__(self) -> None:
        self._session: Session | None = None
        self._stack = AsyncExitStack()
        self._calls = 0
        self._made.append(self)

    def reset(self, **row: Any) -> Any:
        """Open the task of a row of the data set, and return the opening messages."""
        task = self._tasks.get(str(row.get("task")))
        if task is None:
            raise InvalidInput(
                f"unknown task {row.get('task')!r}: use train_dataset of the same GRPORollouts",
            )
        return self._loop.run(self._reset(task))

    async def _reset(self, task: Task) -> Any:
        await self._close()
        session = self._session = self._open(task)
        await self._stack.enter_async_context(session)
        return _blocks(session, session.messages)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        session = self._session
        if session is None or session.done:
            return _OVER
        self._calls += 1
        function = {"name": name, "arguments": json.dumps(dict(arguments))}
        call = {"id": f"call_{self._calls}", "type": "function", "function": function}
        try:
            result = await session.step({"role": "assistant", "content": "", "tool_calls": [call]})
        except SessionEnded:
            return _OVER
        return _blocks(session, result.observation) if result.observation else _OVER

    async def _finish(self, completion: Any) -> float | None:
        """End the episode with the model's last message; return the score, or None on failure."""
        session = self._session
        if session is None:
            return None
        last = completion[-1] if isinstance(completion, list) and completion else {}
        if not session.done and last.get("role") == "assistant" and not last.get("tool_calls"):
            await session.step({"role": "assistant", "content": str(last.get("content") or "")})
        if not session.done:
            await session.truncate("turns", "the trainer ended the conversation")
        return None if session.outcome is None else session.outcome.score

    async def _close(self) -> None:
        stack, self._stack = self._stack, AsyncExitStack()
        self._session = None
        await stack.aclose()


def tool_env_class(
    spec: EnvSpec,
    tasks: Mapping[str, Task],
    loop: LoopThread,
    open_session: Callable[[Task], Session],
) -> type[ToolEnv]:
    """Return a class with a method for each tool of the environment.

    Raises:
        InvalidInput: transformers can't describe a tool's parameters.
    """
    env_class = spec.resolve()
    members: dict[str, Any] = {
        "_loop": loop,
        "_spec": spec,
        "_open": staticmethod(open_session),
        "_tasks": tasks,
        "_made": [],
    }
    for name, one in tools_of(env_class).items():
        if hasattr(ToolEnv, name) or not name.isidentifier():
            raise InvalidInput(f"{env_class.__name__}: TRL can't offer a tool called {name!r}")
        members[name] = _method(one)
    return type(env_class.__name__, (ToolEnv,), members)


def _method(one: Tool) -> Callable[..., Any]:
    def method(self: ToolEnv, **arguments: Any) -> Any:
        return self._loop.run(self._call(one.name, arguments))

    source = inspect.signature(one.function)
    hints = get_type_hints(one.function, include_extras=False)
    parameters = [
        p.replace(annotation=hints[n]) for n, p in source.parameters.items() if n in hints
    ]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown: Any = method
    shown.__signature__ = source.replace(parameters=[own, *parameters], return_annotation=str)
    shown.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": str}
    shown.__name__ = one.name
    shown.__qualname__ = f"ToolEnv.{one.name}"
    shown.__doc__ = _docstring(one)
    _try_schema(one, shown)
    return method


def _docstring(one: Tool) -> str:
    """Return a docstring in the format that transformers parses."""
    function = one.schema["function"]
    described = function["parameters"].get("properties", {})
    lines = [" ".join((function.get("description") or one.name).split())]
    if one.parameters:
        lines += ["", "Args:"]
        for name in one.parameters:
            text = " ".join((described.get(name, {}).get("description") or name).split())
            lines.append(f"    {name}: {text}")
    return "\n".join([*lines, "", "Returns:", "    The tool's result."])


def _try_schema(one: Tool, method: Any) -> None:
    from transformers.utils import get_json_schema

    bound = method.__get__(object())
    try:
        get_json_schema(bound)
    except Exception as error:  # boundary: transformers' parser of signatures
        raise InvalidInput(
            f"tool {one.name!r}: transformers can't describe it ({error}); use plain types and "
            "describe every parameter",
        ) from error


def _blocks(session: Session, messages: Sequence[Message]) -> Any:
    """Return messages as text, or as a list of text and image blocks if there are images."""
    if all(not isinstance(m.get("content"), list) for m in messages):
        return "\n\n".join(text_of(m) for m in messages if m.get("content"))
    blocks: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        blocks += [_block(session, part) for part in parts]
    return blocks


def _block(session: Session, part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("text", "")}
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "trl") from error
    name = part["image_url"]["url"].removeprefix("blob:")
    return {"type": "image", "image": Image.open(io.BytesIO(session.images[name]))}


async def finish_all(envs: Sequence[ToolEnv], completions: Sequence[Any]) -> list[float | None]:
    """End the episodes of a batch concurrently, so that slow verifications overlap."""
    pairs = zip(envs, completions, strict=True)
    return list(await asyncio.gather(*(env._finish(completion) for env, completion in pairs)))

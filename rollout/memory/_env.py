"""An environment that shows retrieved memory to the agent in its opening."""

from __future__ import annotations

import inspect
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from trajgym.envs import Env, EnvSpec, ToolResult
from trajgym.rollout.memory._bank import MemoryBank
from trajgym.rollout.memory._records import Kind  # noqa: TC001 - pydantic reads the annotation
from trajgym.trajectory import InvalidInput, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Prompt
    from trajgym.rollout.memory._bank import Match
    from trajgym.trajectory import Message, Task

__all__ = ["SIGNAL", "MemoryEnv", "MemorySettings", "with_memory"]

SIGNAL = "memory"
"""Name of the first turn's signal: which records were shown."""
_NAMES = {
    "demonstration": "How a similar task was solved",
    "lesson": "A lesson from a failed attempt at a similar task",
    "case": "A decision in a similar task",
    "subtask": "How a similar part of a task was done by a sub-agent",
    "tool": "Notes on a tool",
}


class MemorySettings(BaseModel):
    """What :class:`MemoryEnv` is configured with.

    Attributes:
        env: the environment, ``{"id": ..., "config": {...}}``.
        memory: path of the memory's file, which is read when a session opens.
        k: most records to show.
        kinds: only records of these kinds; None for all.
        characters: most characters of all records together; one that does not fit is left out.
        least: least similarity of a record's task.
        share: share of the sessions that are shown memory; the others are the control in the same
            run. Which ones they are depends on the session's id.
        same_task: whether records that were learnt from the same task are shown. They may give its
            solution away.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: EnvSpec
    memory: str
    k: int = Field(default=3, ge=1)
    kinds: tuple[Kind, ...] | None = None
    characters: int = Field(default=6000, ge=1)
    least: float = Field(default=0.1, ge=0, le=1)
    share: float = Field(default=1.0, ge=0, le=1)
    same_task: bool = False


def with_memory(spec: EnvSpec, memory: str | Path, **settings: Any) -> EnvSpec:
    """Return the spec of an environment that shows memory in its opening.

    Args:
        spec: the environment.
        memory: path of the memory's file.
        **settings: of :class:`MemorySettings`.

    Raises:
        pydantic.ValidationError: a setting is unknown or out of range.
    """
    given = {"env": spec.to_json(), "memory": str(memory), **settings}
    checked = MemorySettings.model_validate(given)
    config = checked.model_dump(mode="json", exclude_unset=True)
    return EnvSpec(id="trajgym.rollout.memory:MemoryEnv", config=config)


class MemoryEnv(Env):
    """Shows records of a memory before the first user message of another environment.

    Tools, budgets, verification and everything else are the other environment's; so are the tasks.
    The first turn's signal ``memory`` has the ``records`` that were shown, their ``similarity``,
    and whether memory was ``withheld`` from the session. :func:`measure_effect` reads it.

    Configured by the fields of :class:`MemorySettings`; :func:`with_memory` makes its spec.
    """

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Env]:
        """Return a subclass of the other environment's class.

        Raises:
            pydantic.ValidationError: the configuration is malformed.
            UnknownEnv: there is no such environment.
        """
        return _class_for(MemorySettings.model_validate(config).env.resolve())


_classes: dict[type[Env], type[Env]] = {}


def _class_for(inner: type[Env]) -> type[Env]:
    if inner not in _classes:
        _classes[inner] = _subclass(inner)
    return _classes[inner]


def _subclass(inner: type[Env]) -> type[Env]:
    return type(f"Memory{inner.__name__}", (_Shown, inner), {"__doc__": inner.__doc__})


class _Shown(Env):
    """Comes before another environment's class in the order of bases."""

    def __init__(self, **config: Any) -> None:
        self._memory = MemorySettings.model_validate(config)
        super().__init__(**self._memory.env.config)

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Env]:  # noqa: ARG003
        """Return this class: the configuration has been followed."""
        return cls

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Check that the memory can be read, and open the other environment's run."""
        settings = MemorySettings.model_validate(config)
        _load(settings.memory)
        await super().open_run(settings.env.config, tasks)

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Close the other environment's run."""
        await super().close_run(MemorySettings.model_validate(config).env.config)

    def reset(self, task: Task, seed: int | None) -> Any:
        """Open the task, and put what is retrieved for it before the first user message."""
        opening = super().reset(task, seed)
        if inspect.isawaitable(opening):

            async def later() -> Prompt:
                return self._with_memory(await opening, task)

            return later()
        return self._with_memory(opening, task)

    def _with_memory(self, opening: Prompt, task: Task) -> Prompt:
        settings = self._memory
        withheld = _fraction(self.labels.get("session", "")) >= settings.share
        found = [] if withheld else self._found(task.prompt or _first_text(opening), task)
        self.note_signals(
            {
                SIGNAL: {
                    "records": [match.record.id for match in found],
                    "similarity": [round(match.similarity, 4) for match in found],
                    "withheld": withheld,
                }
            }
        )
        return _prepended(opening, _written(found)) if found else opening

    def _found(self, query: str, task: Task) -> list[Match]:
        settings = self._memory
        matches = _load(settings.memory).search(
            query,
            k=settings.k,
            kinds=settings.kinds,
            without_task=None if settings.same_task else task.id,
            least=settings.least,
        )
        found: list[Match] = []
        for match in matches:
            if len(_written([*found, match])) <= settings.characters:
                found.append(match)
        return found


def _fraction(session: str) -> float:
    """Return a number from 0 to below 1 that the id decides; samples of a task share a seed."""
    return zlib.crc32(f"memory/{session}".encode()) / 2**32


def _load(path: str) -> MemoryBank:
    """Return a memory; a file that did not change since is not read again."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise InvalidInput(f"{path}: no memory can be read: {error}") from error
    return _loaded(path, found.st_mtime_ns, found.st_ino, found.st_size)


@lru_cache(maxsize=8)
def _loaded(path: str, *_version: int) -> MemoryBank:
    return MemoryBank.load(path)


def _written(matches: Sequence[Match]) -> str:
    parts = [f"{_NAMES[one.record.kind]}:\n{one.record.text}" for one in matches]
    # A record that was learnt from such an opening must not end the block early.
    body = "\n\n".join(parts).replace("</memory>", "")
    return f"<memory>\n{body}\n</memory>\n\n"


def _first_text(opening: Prompt) -> str:
    if isinstance(opening, str):
        return opening
    if isinstance(opening, ToolResult):
        content = opening.content
        parts = [content] if isinstance(content, str) else content
        return "\n".join(part for part in parts if isinstance(part, str))
    users = [text_of(message) for message in opening if message.get("role") == "user"]
    return users[0] if users else ""


def _prepended(opening: Prompt, text: str) -> Prompt:
    if isinstance(opening, str):
        return text + opening
    if isinstance(opening, ToolResult):
        content = opening.content
        opening.content = text + content if isinstance(content, str) else [text, *content]
        return opening
    messages: list[Message] = list(opening)
    place = next((i for i, one in enumerate(messages) if one.get("role") == "user"), None)
    if place is None:
        return [*messages, {"role": "user", "content": text.rstrip()}]
    content = messages[place].get("content") or ""
    shown = (
        text + content if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    )
    messages[place] = {**messages[place], "content": shown}
    return messages

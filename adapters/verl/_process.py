"""Objects that the sessions of a worker process share: environments, renderers, stores, groups.

verl creates a loop object for each rollout, so shared state is kept in this module.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trajgym.adapters._annotating import as_annotators
from trajgym.rollout import OpenGroup, renderer_for
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.adapters._annotating import Annotators
    from trajgym.adapters.verl._settings import LoopSettings
    from trajgym.envs import EnvSpec
    from trajgym.rollout.rendering import Renderer
    from trajgym.trajectory import Task

__all__ = [
    "annotators_of",
    "close_group",
    "open_env",
    "open_group",
    "renderer_of",
    "slots",
    "store_at",
]


@dataclass(slots=True)
class _Opening:
    """Whether an environment was opened in this process."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: bool = False


_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Opening]] = WeakKeyDictionary()
_renderers: dict[tuple[str, str, int, str], Renderer] = {}
_stores: dict[str, Store] = {}
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
_annotators: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Annotators | None]] = (
    WeakKeyDictionary()
)
_store_lock = threading.Lock()
_groups: dict[str, OpenGroup] = {}
_OPEN = 4096
"""Most open groups that are kept."""


async def open_env(spec: EnvSpec) -> None:
    """Run an environment's ``open_run`` once in this process.

    The environment is not closed, because verl does not report the end of a run to its workers.
    Sandboxes belong to sessions and are removed with them.

    Raises:
        UnknownEnv: no environment has the spec's id.
    """
    key = json.dumps(spec.to_json(), sort_keys=True)
    known = _opened.setdefault(asyncio.get_running_loop(), {})
    opening = known.setdefault(key, _Opening())
    async with opening.lock:
        if not opening.done:
            kind = await asyncio.to_thread(spec.resolve)  # imports the user's code
            await kind.open_run(spec.config)
            opening.done = True


async def renderer_of(tokenizer: Any, options: Mapping[str, Any]) -> Renderer:
    """Return the renderer of a tokenizer, created once in a process.

    Args:
        tokenizer: verl's.
        options: ``data.apply_chat_template_kwargs``.
    """
    template = str(getattr(tokenizer, "chat_template", ""))
    name = str(getattr(tokenizer, "name_or_path", ""))
    key = (name, template, len(tokenizer), repr(sorted(options.items())))
    if key not in _renderers:
        given = {"template_options": dict(options)} if options else {}
        _renderers[key] = await asyncio.to_thread(renderer_for, tokenizer, **given)
    return _renderers[key]


def annotators_of(settings: LoopSettings) -> Annotators | None:
    """Return the annotators of the settings, created once for each event loop; None for none.

    Raises:
        InvalidInput: they can't be imported.
    """
    key = json.dumps(settings.annotators, sort_keys=True)
    known = _annotators.setdefault(asyncio.get_running_loop(), {})
    if key not in known:
        known[key] = as_annotators(settings.annotators)
    return known[key]


async def store_at(folder: str | None) -> Store | None:
    """Return this process's store in a directory, opened by the first call; None for None.

    Each worker writes its own file; all files form one run.

    Raises:
        StoreError: the store can't be opened.
    """
    if folder is None or folder in _stores:
        return _stores.get(folder or "")
    return await asyncio.to_thread(_open_store, folder)


def _open_store(folder: str) -> Store:
    with _store_lock:
        if folder not in _stores:
            path = Path(folder) / f"worker-{os.getpid()}-{uuid.uuid4().hex[:8]}.sqlite"
            _stores[folder] = Store(path)
            atexit.register(_stores[folder].close)
        return _stores[folder]


def open_group(store: Store | None, uid: str, task: Task, planned: int) -> OpenGroup:
    """Return the group of a rollout, the same for all rollouts of a prompt in this process.

    The group of a prompt with fewer rollouts (validation) stays open, and exports ignore it.

    Args:
        store: the group's store; None does not record it.
        uid: verl's uid, used as the group's id.
        task: of the group.
        planned: number of rollouts of a prompt.
    """
    if store is None:
        return OpenGroup.of(task, planned, id=uid)
    if uid not in _groups and len(_groups) >= _OPEN:
        del _groups[next(iter(_groups))]
    return _groups.setdefault(uid, OpenGroup.of(task, planned, store=store, id=uid))


def close_group(group: OpenGroup) -> None:
    """Remove a complete group."""
    _groups.pop(group.group.id, None)


def slots(most: int | None) -> asyncio.Semaphore | None:
    """Return the semaphore for concurrent sessions; a session's deadline excludes the wait.

    Raises:
        InvalidInput: ``most`` differs from an earlier call in this process.
    """
    if most is None:
        return None
    known = _slots.setdefault(asyncio.get_running_loop(), {})
    if most not in known and known:
        raise InvalidInput(
            f"trajgym.concurrency is {most}, but was {next(iter(known))} before in this process"
        )
    return known.setdefault(most, asyncio.Semaphore(most))

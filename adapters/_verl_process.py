"""What the sessions of one worker process share: environments, renderers, stores, groups, slots.

verl makes a loop object for each rollout, so nothing can be kept there.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trajgym.rollout import renderer_for
from trajgym.trajectory import Group, InvalidInput, Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from trajgym.envs import EnvSpec
    from trajgym.rollout import Renderer
    from trajgym.trajectory import Member, Task

__all__ = ["open_env", "record_member", "renderer_of", "slots", "store_at"]


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
_store_lock = threading.Lock()
_groups: dict[str, tuple[Group, set[int]]] = {}
_OPEN = 4096
"""Groups that are remembered while they are open."""


async def open_env(spec: EnvSpec) -> None:
    """Let an environment prepare what its sessions share, once in a process.

    It stays open: verl does not tell its workers which rollout is the last one. Sandboxes belong to
    sessions, and go with them.

    Raises:
        UnknownEnv: the spec names no environment.
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
    """Return the renderer of a tokenizer, made once in a process.

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


async def store_at(folder: str | None) -> Store | None:
    """Return this process's store in a folder, opened with the first call; None for no folder.

    Each worker writes a file of its own; together they are one run.

    Raises:
        StoreError: it can't be opened.
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


async def record_member(
    store: Store | None, group: str, task: Task, planned: int, member: Member, *, last: bool
) -> None:
    """Keep a session's place in its group; the group is sealed with its last sample.

    A prompt with fewer rollouts (validation) leaves its group open, and exports pass it by.

    Args:
        store: where; None keeps nothing.
        group: verl's uid.
        task: of the group.
        planned: rollouts of a prompt.
        member: the session.
        last: no further try of its sample follows.

    Raises:
        StoreError: it can't be written.
    """
    if store is None:
        return
    if group not in _groups and len(_groups) >= _OPEN:
        del _groups[next(iter(_groups))]
    kept, samples = _groups.setdefault(
        group, (Group(id=group, task=task.id, planned=planned), set())
    )
    kept.members.append(member)
    if last:
        samples.add(member.sample)
    kept.sealed = len(samples) >= planned
    if kept.sealed:
        _groups.pop(group, None)
    await store.put_group(kept)


def slots(most: int | None) -> AbstractAsyncContextManager[object]:
    """Return what a session holds while it runs; waiting for it is off the agent's clock.

    Raises:
        InvalidInput: another bound than before in this process.
    """
    if most is None:
        return contextlib.nullcontext()
    known = _slots.setdefault(asyncio.get_running_loop(), {})
    if most not in known and known:
        raise InvalidInput(f"trajgym.concurrency is {most} here and {next(iter(known))} before")
    return known.setdefault(most, asyncio.Semaphore(most))

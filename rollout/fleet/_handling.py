"""What a fleet's processes do with the groups that they have sealed."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trajgym.envs.faults import contained, describe
from trajgym.rollout._supervisor import RunIncomplete
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trajgym.rollout._sealed import SealedGroup
    from trajgym.trajectory import Group, Store

__all__ = ["GroupHandler", "Handled", "handle_all"]

_AT_ONCE = 8
"""Most groups that are handled concurrently in a process."""


class GroupHandler(Protocol):
    """Turns sealed groups into something else, in the process that has run their sessions."""

    async def __call__(self, sealed: SealedGroup, store: Store) -> Any:
        """Return what is sent to the fleet; pickled, in a thread. Calls may overlap.

        Args:
            sealed: the group.
            store: the process's own file. Sessions that another process ran before it died are
                not in it.
        """
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


class Handled(NamedTuple):
    """A sealed group, and what its handler returned."""

    group: Group
    result: Any


class _Pickled:
    """A result that is pickled already; unpickling this gives the result itself.

    A connection pickles in its own thread, where a failure could neither be raised nor be sent.

    Raises:
        InvalidInput: it can't be pickled.
    """

    def __init__(self, result: Any, group: str) -> None:
        try:
            self._data = pickle.dumps(result)
        except Exception as error:  # boundary: whatever an object's pickling raises
            kind = type(result).__name__
            raise InvalidInput(
                f"group {group}: its handler returned {kind}, which can't be pickled: "
                f"{describe(error)}"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


async def handle_all(
    groups: AsyncIterator[SealedGroup],
    handler: GroupHandler | None,
    store: Store,
    send: Callable[[Handled], None],
) -> None:
    """Send all groups, each once it is handled; without a handler, as they come.

    Args:
        groups: of a runner; the groups that it can't finish are left out.
        handler: called for each, several at the same time.
        store: passed to it.
        send: called with each result.

    Raises:
        InvalidInput: what the handler returned can't be pickled.
        Exception: the first one of the runner or the handler.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(sealed: SealedGroup) -> None:
        try:
            result = None
            if handler is not None:
                with contained():
                    result = await handler(sealed, store)
                    result = await asyncio.to_thread(_Pickled, result, sealed.group.id)
            send(Handled(sealed.group, result))
        finally:
            room.release()

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            try:
                async for sealed in groups:
                    # No deadline: handlers have their own, and ending the process cancels this.
                    await room.acquire()
                    if handler is None:
                        await one(sealed)
                    else:
                        tasks.create_task(one(sealed))
            except RunIncomplete:
                pass  # the groups were named when they were left open

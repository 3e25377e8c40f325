"""A shard whose writer is in the fleet's process, for workers that do not share its disk.

SQLite's write-ahead log works on one machine only, network file systems included. A worker
elsewhere therefore sends each group of writes to the fleet, which commits it to the worker's shard
and answers; the worker's store acknowledges a turn when that answer is there. What was acknowledged
is on the fleet's disk, whatever happens to the worker's machine.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import Run, StoreError, TrajgymError
from trajgym.trajectory._internal import StoreFile, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trajgym.trajectory import SessionTree

__all__ = ["ShardStream", "ShardWriter"]

_ANSWER = 600.0
"""Seconds for an answer of the fleet; a fleet that is gone is noticed by other means, earlier."""


class ShardStream:
    """The worker's side: a sink of a store, and the sessions that the run already has.

    Args:
        last_key: the largest key of a session in the shard.
        send: sends a message to the fleet.
    """

    def __init__(self, last_key: int, send: Callable[..., None]) -> None:
        self.last_key = last_key
        self._send = send
        self._mutex = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[Any]] = {}
        self._lost = False

    def commit(self, writes: Sequence[Write]) -> Mapping[int, str]:
        """Send writes and wait until they are durable; see :class:`Sink`."""
        try:
            answer: Mapping[int, str] = self._ask("write", list(map(tuple, writes)))
        except StoreError as error:
            return dict.fromkeys(range(len(writes)), str(error))
        return answer

    def close(self) -> None:
        """Do nothing: all writes are answered."""

    def session(self, session_id: str) -> SessionTree:
        """Return a session that an earlier worker ran. Blocks.

        Raises:
            StoreError: it can't be read.
        """
        tree: SessionTree | str = self._ask("load", session_id)
        if isinstance(tree, str):
            raise StoreError(tree)
        return tree

    def answer(self, number: int, value: Any) -> None:
        """Pass on an answer; called in any thread."""
        with self._mutex:
            waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.set_result(value)

    def lose(self) -> None:
        """Fail what waits, and all that is asked later: the fleet is gone."""
        with self._mutex:
            self._lost = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(StoreError("the fleet that writes the run is gone"))

    def _ask(self, kind: str, value: Any) -> Any:
        future: Future[Any] = Future()
        with self._mutex:
            if self._lost:
                raise StoreError("the fleet that writes the run is gone")
            self._number += 1
            number = self._number
            self._waiting[number] = future
        self._send(kind, number, value)
        try:
            return future.result(_ANSWER)
        except TimeoutError:
            raise StoreError(f"the fleet did not answer within {_ANSWER:g} s") from None


class ShardWriter:
    """The fleet's side: commits a worker's writes, in the thread that receives them.

    Args:
        shard: the worker's file. It is opened here, which blocks and can raise ``StoreError``.
        run: the run directory.
    """

    def __init__(self, shard: Path, run: Path) -> None:
        self._file = StoreFile(shard)
        self._run = run
        self.last_key = self._file.last_key

    def handle(self, kind: str, number: int, value: Any) -> tuple[str, int, Any]:
        """Do what a worker asks; return the message that answers it."""
        if kind == "write":
            return "answer", number, dict(self._file.commit([Write(*write) for write in value]))
        try:
            with Run(self._run) as run:
                return "answer", number, run.session(value)
        except TrajgymError as error:
            return "answer", number, str(error)

    def close(self) -> None:
        """Close the file; what the worker sends later is not written."""
        self._file.close()

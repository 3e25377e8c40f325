"""A spawned process that exchanges messages with this one."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

__all__ = ["PipeChannel", "Sender", "Spawned", "messages", "private"]

_PARENT = 5.0
"""Seconds between two looks at whether the parent process is alive."""
_THREADS = 15.0
"""Seconds for reading the last messages of a process that has exited."""


class Spawned:
    """A process, and the threads that exchange messages with it.

    The process is started by the constructor. Nothing here blocks on a process that does not read
    or write, but :meth:`join`, which has a deadline.

    Args:
        context: the spawn context.
        target: its main function: called with ``args``, followed by one connection for each
            receiver; the first works in both directions.
        args: arguments; pickled.
        name: of the process and its threads.
        receivers: called with each message, by connection, in a thread of their own; may block.
        on_end: called in the first receiver's thread when no more messages will come.
    """

    def __init__(
        self,
        context: SpawnContext,
        target: Callable[..., None],
        args: tuple[Any, ...],
        *,
        name: str,
        receivers: Sequence[Callable[[Any], None]],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        pipes = [context.Pipe(duplex=not index) for index in range(len(receivers))]
        self._control = pipes[0][0]
        self.process = context.Process(
            target=target, args=(*args, *(theirs for _, theirs in pipes)), name=name
        )
        try:
            self.process.start()
        except BaseException:
            for pair in pipes:
                for end in pair:
                    end.close()
            raise
        for _, theirs in pipes:  # with these closed here, reading ends when the process exits
            theirs.close()
        self._sender = Sender(self._control.send, name)
        self._threads = [
            threading.Thread(
                target=_receive,
                args=(pipe, receive, None if index else on_end),
                name=name,
                daemon=True,
            )
            for index, ((pipe, _), receive) in enumerate(zip(pipes, receivers, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, *message: Any) -> None:
        """Send a message; ignored if the process has exited, which :attr:`end` reports."""
        self._sender.send(message)

    lost = False
    """This machine does not leave."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid or 0

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()

    @property
    def end(self) -> str:
        """How the process exited, or "" while it is alive."""
        if self.process.is_alive():
            return ""
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def join(self, seconds: float) -> bool:
        """Wait for the process to exit and read its last messages; on timeout kill it (False)."""
        self.process.join(seconds)
        ended = not self.process.is_alive()
        if not ended:
            self.process.kill()
            self.process.join(_THREADS)
        self._sender.close(0.0)
        for thread in self._threads:
            thread.join(_THREADS)
        self._control.close()
        return ended


class Sender:
    """Sends messages in a thread, so that a full pipe does not block the caller.

    Args:
        send: called with each message in the thread; may block. An ``OSError`` ends the thread.
        name: of the thread.
    """

    def __init__(self, send: Callable[[Any], None], name: str) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, args=(send,), name=f"{name}-send", daemon=True
        )
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send a message, which must not be changed afterwards."""
        self._queue.put((message,))

    def close(self, seconds: float = _THREADS) -> None:
        """Wait until all messages are sent, at most ``seconds``."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _work(self, send: Callable[[Any], None]) -> None:
        with contextlib.suppress(OSError):  # the other process has exited
            while (found := self._queue.get()) is not None:
                send(found[0])


class PipeChannel:
    """A spawned process's connection to the one that spawned it; see :class:`Channel`.

    Args:
        control: works in both directions.
        name: of the thread that sends.
    """

    def __init__(self, control: Connection, name: str) -> None:
        self._control = control
        self._parent = os.getppid()
        self._sender = Sender(control.send, name)

    def send(self, message: Any) -> None:
        """Send a message, which must not be changed afterwards."""
        self._sender.send(message)

    def messages(self) -> Iterator[Any]:
        """Yield messages until the other process has exited.

        Copies of its end of the pipe may be open in others that it has forked, so its death is also
        noticed by its id.
        """
        while os.getppid() == self._parent:
            try:
                if self._control.poll(_PARENT):
                    yield self._control.recv()
            except (EOFError, OSError):
                return

    def close(self) -> None:
        """Wait until all messages are sent."""
        self._sender.close()


def messages(pipe: Connection) -> Iterator[Any]:
    """Yield messages until the other end is closed."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return


def private(*pipes: Connection) -> None:
    """Keep connections from processes that sessions start; called first in a spawned process."""
    for pipe in pipes:
        os.set_inheritable(pipe.fileno(), False)  # noqa: FBT003 - the function takes no keywords


def _receive(
    pipe: Connection, receive: Callable[[Any], None], on_end: Callable[[], None] | None
) -> None:
    try:
        for message in messages(pipe):
            receive(message)
    finally:
        if on_end is not None:
            on_end()

"""The streams of a process on this host, read as they come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._channel import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["FifoChannel", "ProcessChannel", "spawn"]

CHUNK = 1 << 18


class _Reader:
    """Reads a descriptor whenever it is readable.

    Args:
        channel: gets the output.
        kind: 1 stdout or 2 stderr.
        handle: owned from now on.
    """

    def __init__(self, channel: Channel, kind: int, handle: int) -> None:
        self.done = False
        self._channel = channel
        self._kind = kind
        self._handle = handle
        os.set_blocking(handle, False)
        asyncio.get_running_loop().add_reader(handle, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._handle, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._channel.take(self._kind, data)
        else:
            self.close()
            self._channel.check()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if not self.done:
            self.done = True
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)


class _Writer:
    """Writes to a descriptor as it accepts more; drops the rest once the reader is gone.

    Args:
        handle: owned from now on.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._left = memoryview(b"")
        self._waiting = False
        self._closed = False
        os.set_blocking(handle, False)

    def write(self, data: bytes) -> None:
        """Write as much as possible now, the rest later."""
        if not self._closed:
            self._left = memoryview(bytes(self._left) + data if self._left else data)
            self._push()

    def _push(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._handle, self._left[:CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        loop = asyncio.get_running_loop()
        if self._left and not self._waiting:
            self._waiting = True
            loop.add_writer(self._handle, self._push)
        elif not self._left and self._waiting:
            self._waiting = False
            loop.remove_writer(self._handle)

    def close(self) -> None:
        """Close it immediately. Idempotent."""
        if not self._closed:
            self._closed = True
            self._left = memoryview(b"")
            if self._waiting:
                asyncio.get_running_loop().remove_writer(self._handle)
            os.close(self._handle)


class ProcessChannel(Channel):
    """A process and its pipes; ended when it has exited and both outputs are at end of file.

    Args:
        process: started with three pipes, in a session of its own.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self._process = process
        self._killed = False
        self._writer = _Writer(os.dup(process.stdin.fileno()))
        self._readers = [
            _Reader(self, 1, os.dup(process.stdout.fileno())),
            _Reader(self, 2, os.dup(process.stderr.fileno())),
        ]
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        self._death = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._death, self._died)

    @property
    def status(self) -> int | None:
        """Exit status, 128 + signal for a signal; None while it runs."""
        code = self._process.returncode
        return 128 - code if code is not None and code < 0 else code

    @property
    def killed_from_outside(self) -> bool:
        """Whether something else than this object has killed it with SIGKILL."""
        return self._process.returncode == -signal.SIGKILL and not self._killed

    def send(self, data: bytes) -> None:
        """See :meth:`Channel.send`."""
        self._writer.write(data)

    def _died(self) -> None:
        self._process.wait()
        self._forget_death()
        self.check()

    def _forget_death(self) -> None:
        if self._death >= 0:
            asyncio.get_running_loop().remove_reader(self._death)
            os.close(self._death)
            self._death = -1

    def check(self) -> None:
        """See :meth:`Channel.check`."""
        if self._process.returncode is not None and all(reader.done for reader in self._readers):
            self._writer.close()
            self.end()

    def kill(self) -> None:
        """Kill the process and with it its pid namespace."""
        if self._process.returncode is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """See :meth:`Channel.close`; a process that still runs is killed."""
        self.kill()
        if self._process.returncode is None:
            self._process.wait()  # killed: a moment at most
        self._forget_death()
        self._writer.close()
        for reader in self._readers:
            reader.close()
        self.end()


class FifoChannel(Channel):
    """Outputs that a process inside opens by name.

    Args:
        stdout: path on the host of a new pipe.
        stderr: the same.
    """

    def __init__(self, stdout: Path, stderr: Path) -> None:
        super().__init__()
        self._readers = []
        for kind, path in ((1, stdout), (2, stderr)):
            os.mkfifo(path)
            path.chmod(0o622)
            # Opened for writing too, or it would be at end of file whenever no writer has it open.
            handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._readers.append(_Reader(self, kind, handle))

    def send(self, data: bytes) -> None:
        """See :meth:`Channel.send`: does nothing, there is no stdin."""

    def close(self) -> None:
        """See :meth:`Channel.close`."""
        for reader in self._readers:
            reader.close()
        self.end()


def spawn(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with pipes, in a session of its own. Blocks for a moment.

    Raises:
        OSError: it can't be started.
    """
    return subprocess.Popen(
        [word.encode(errors="replace") for word in argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        cwd="/",
        start_new_session=True,
    )

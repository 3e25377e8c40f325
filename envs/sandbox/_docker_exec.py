"""One command in a container: the wrapper around it and the reading of its streams."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import CommandResult
from trajgym.envs.sandbox._capture import MarkedCapture

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs.sandbox._docker_engine import ExecStream

__all__ = ["WRAPPER", "CommandEnd", "CommandStreams"]

# Reads a secret and the length of stdin from its stdin, runs "$@" in directory $1 and then writes
# the secret to both streams, with exit status and out-of-memory counts behind it on stderr. So the
# end is known without another call to the engine, and background processes that still hold the
# streams delay nobody. Words it sets are not exported: the command can't see the secret.
WRAPPER = r"""
read -r _tg_key _tg_size || exit 125
_tg_count() {
    _tg_oom=0
    for _tg_file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$_tg_file" ] || continue
        while read -r _tg_name _tg_value; do
            if [ "$_tg_name" = oom_kill ]; then _tg_oom=$_tg_value; fi
        done <"$_tg_file"
    done
}
_tg_count
_tg_before=$_tg_oom
cd -- "$1"
_tg_status=$?
shift
# Remarks of this shell itself ("Killed") are not the command's.
exec 3>&2 2>/dev/null
if [ "$_tg_status" != 0 ]; then
    _tg_status=126
elif [ "$_tg_size" = 0 ]; then
    "$@" </dev/null 2>&3 3>&-
    _tg_status=$?
else
    head -c "$_tg_size" | "$@" 2>&3 3>&-
    _tg_status=$?
fi
_tg_count
printf '%s\n' "$_tg_key"
printf '%s %s %s\n' "$_tg_key" "$_tg_status" "$((_tg_oom - _tg_before))" >&3
"""

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended, as its wrapper said."""

    exit_code: int
    oom_killed: bool


@dataclass(slots=True)
class CommandStreams:
    """Both streams of one command while it runs.

    Args:
        limit: bytes kept of each.
    """

    limit: int
    key: bytes = field(default_factory=lambda: secrets.token_hex(16).encode())
    begun: float = field(default_factory=time.monotonic)
    out: MarkedCapture = field(init=False)
    err: MarkedCapture = field(init=False)

    def __post_init__(self) -> None:
        self.out = MarkedCapture(self.key, self.limit)
        self.err = MarkedCapture(self.key, self.limit)

    async def follow(
        self, stream: ExecStream, stdin: bytes, running: Callable[[], Awaitable[bool]]
    ) -> CommandEnd | None:
        """Feed stdin and read to the end.

        Args:
            stream: attached to the wrapper.
            stdin: what the command reads.
            running: asks the engine whether the wrapper lives; asked when nothing comes.

        Returns:
            The wrapper's word; None if it was killed or the connection was cut.
        """
        header = self.key + b" %d\n" % len(stdin)
        feeding = asyncio.create_task(stream.send(header + stdin))
        try:
            return await self._read(stream, running)
        finally:
            # Cancelling a write leaves asyncio with an error that nobody sees: cut it off instead.
            stream.close()
            await asyncio.wait({feeding}, timeout=1.0)
            feeding.cancel()

    async def _read(
        self, stream: ExecStream, running: Callable[[], Awaitable[bool]]
    ) -> CommandEnd | None:
        last_chance = False
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS / 4 if last_chance else POLL_SECONDS):
                    pieces = await stream.receive()
            except TimeoutError:
                if last_chance:
                    return None
                last_chance = not await running()
                continue
            if pieces is None:
                return None
            for kind, data in pieces:
                (self.err if kind == 2 else self.out).feed(data)
            ending = self.err.ending
            if ending is not None and self.out.ending is not None:
                status, kills = ending.split()
                return CommandEnd(int(status), int(kills) > 0)

    def result(
        self, exit_code: int, *, timed_out: bool = False, oom_killed: bool = False, note: str = ""
    ) -> CommandResult:
        """Return what was captured; ``note`` is added to stderr."""
        stdout, dropped_stdout = self.out.result()
        stderr, dropped_stderr = self.err.result()
        return CommandResult(
            exit_code,
            stdout,
            stderr + note.encode(),
            timed_out=timed_out,
            oom_killed=oom_killed,
            dropped_stdout=dropped_stdout,
            dropped_stderr=dropped_stderr,
            seconds=time.monotonic() - self.begun,
        )

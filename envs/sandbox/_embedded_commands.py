"""Commands of an embedded sandbox: each in namespaces of its own, one set of them made ahead."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._base import CommandResult
from trajgym.envs.sandbox._capture import Capture
from trajgym.envs.sandbox._protocol import MARK, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox._process_channel import ProcessChannel

__all__ = ["WAIT", "RunningCommand", "request_text"]

# Reads lines up to the one that $1 names and runs them; what follows on stdin is the command's.
# It reads byte by byte, so nothing of that is lost.
WAIT = """\
{limits}
exec 3>&2 2>/dev/null
_tg_text=
while IFS= read -r _tg_line; do
    if [ "$_tg_line" = "$1" ]; then eval "$_tg_text"; exit $?; fi
    _tg_text="$_tg_text$_tg_line
"
done
exit 125
"""


def request_text(words: Sequence[str], cwd: str, env: Mapping[str, str], end: str) -> bytes:
    """What a waiting shell is told: its stays the command's parent, so that signals are felt."""
    exports = " ".join(f"{name}={quote(value)}" for name, value in env.items())
    program = " ".join(map(quote, words))
    setup = f"cd -- {quote(cwd)} || exit 126; export {exports}"
    return f"( {setup}; exec {program} ) 2>&3 3>&-\n{end}\n".encode()


class RunningCommand:
    """One command while it runs.

    Args:
        channel: the outermost process; when it dies the whole pid namespace does.
        limit: bytes kept of each stream.
    """

    def __init__(self, channel: ProcessChannel, limit: int) -> None:
        self.channel = channel
        self.timed_out = False
        self._begun = time.monotonic()
        self._captures = {1: Capture(limit), 2: Capture(limit)}
        channel.sink = self._take

    def _take(self, kind: int, data: bytes | memoryview) -> None:
        self._captures[kind].feed(data)

    def begin(
        self, words: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, end: str
    ) -> None:
        """Tell the waiting shell what to run."""
        variables = {**env, MARK: secrets.token_hex(12)}
        self.channel.send(request_text(words, cwd, variables, end))
        self.channel.send(stdin)
        self.channel.finish_input()

    async def ended(self) -> None:
        """Wait for the exit and the ends of both streams."""
        await asyncio.wait({self.channel.ended})

    def result(self, *, oom: bool, note: str) -> CommandResult:
        """Return what was captured and how it ended."""
        status = self.channel.status
        stdout, dropped_stdout = self._captures[1].result()
        stderr, dropped_stderr = self._captures[2].result()
        return CommandResult(
            -1 if self.timed_out else 137 if status is None else status,
            stdout,
            stderr + note.encode(),
            timed_out=self.timed_out,
            oom_killed=oom,
            dropped_stdout=dropped_stdout,
            dropped_stderr=dropped_stderr,
            seconds=time.monotonic() - self._begun,
        )

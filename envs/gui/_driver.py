"""Requests to the driver of a screen, a program inside its sandbox."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.sandbox import SandboxDied, SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = ["Driver"]

_LINE_BYTES = 64 << 20
"""Longest answer: a screenshot and a page's elements."""


class Driver:
    """A driver that answers requests one after the other, each with a line of JSON.

    Args:
        stream: to its standard input and output.
        what: what it drives, in messages: ``the browser``.
        failed: raised for a request that fails in the driver.
    """

    def __init__(self, stream: Stream, what: str, failed: type[GuiDied] = GuiDied) -> None:
        self.silent = False
        """Whether a request was not answered in time."""
        self._stream = stream
        self._what = what
        self._failed = failed
        self._asked = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        command: Sequence[str],
        what: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        failed: type[GuiDied] = GuiDied,
    ) -> Driver:
        """Start a driver.

        Args:
            sandbox: where it runs.
            command: an argument vector.
            what: what it drives, in messages.
            env: environment variables.
            cwd: working directory.
            failed: raised for a request that fails in the driver.

        Raises:
            SandboxError: it can't be started.
        """
        stream = await sandbox.stream(command, env=env, cwd=cwd, limit=_LINE_BYTES)
        return cls(stream, what, failed)

    async def ask(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Send a request and return its answer.

        Args:
            request: JSON values; ``op`` names what is asked for.
            deadline: seconds for the answer.

        Raises:
            BadAction: the request was refused.
            ScreenEnded: the screen or its driver ended, or did not answer in time.
            GuiDied: the driver failed.
            SandboxDied: the sandbox is gone.
        """
        op = request.get("op", "start")
        async with self._turn:
            self._asked += 1
            self._stream.send(json.dumps({"id": self._asked, **request}).encode())
            try:
                async with asyncio.timeout(deadline):
                    answer = await self._answer(self._asked)
            except TimeoutError:
                self.silent = True
                raise ScreenEnded(
                    f"{self._what} did not answer {op!r} within {deadline:g} s"
                ) from None
            except SandboxDied:
                raise  # no fault of the page or the agent: it must not be scored
            except (SandboxError, ValueError) as error:
                raise ScreenEnded(f"the driver of {self._what} is gone: {error}") from error
        if answer.get("ok"):
            return answer
        text = str(answer.get("error"))
        if answer.get("kind") == "refused":
            raise BadAction(text)
        if answer.get("kind") == "gone":
            raise ScreenEnded(text)
        trace = answer.get("trace", "")
        raise self._failed(f"{self._what} failed at {op!r}: {text}\n{trace}".strip())

    async def _answer(self, asked: int) -> dict[str, Any]:
        """Return the answer to the newest request; those of cancelled ones are dropped."""
        while True:
            answer = json.loads(await self._stream.read())
            if isinstance(answer, dict) and answer.get("id") == asked:
                return answer

    async def close(self) -> None:
        """Kill the driver, and with it the screen."""
        await self._stream.close()

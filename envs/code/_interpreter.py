"""A Python interpreter in a sandbox that keeps its variables between cells."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.sandbox import SandboxDied, SandboxError
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = ["Cell", "Interpreter"]

_START_SECONDS = 120.0
_GRACE = 15.0
"""Seconds that an interrupted cell has to end before its interpreter is killed."""


class Cell(NamedTuple):
    """The result of a cell.

    Attributes:
        output: what it wrote, with the value of its last expression or a traceback.
        failed: it raised.
        timed_out: it was interrupted at its time limit.
        lost: the interpreter exited: its variables are lost, and the next cell starts a new one.
        dropped: bytes of output that were left out from the middle.
    """

    output: str
    failed: bool = False
    timed_out: bool = False
    lost: bool = False
    dropped: int = 0


class Interpreter(AsyncClosing):
    """One interpreter process; it is started by the first cell, and restarted after it has exited.

    Args:
        sandbox: where it runs; it needs ``python3``.
        cwd: working directory of the cells.
        output_bytes: maximum bytes of output that a cell returns.
    """

    def __init__(self, sandbox: Sandbox, *, cwd: str = "/work", output_bytes: int = 16_000) -> None:
        self.sandbox = sandbox
        self.cwd = cwd
        self.output_bytes = output_bytes
        self._stream: Stream | None = None
        self._cells = 0

    async def run(self, code: str, *, seconds: float) -> Cell:
        """Run a cell; at its time limit it is interrupted as if by Ctrl-C.

        An interpreter that does not react to the interruption is killed.

        Raises:
            SandboxError: the interpreter could not be started.
            SandboxDied: the sandbox is gone.
        """
        stream = self._stream or await self._start()
        self._cells += 1
        request = {
            "id": self._cells, "code": code, "seconds": seconds, "limit": self.output_bytes
        }  # fmt: skip
        stream.send(json.dumps(request).encode())
        try:
            async with asyncio.timeout(seconds + _GRACE):
                return await self._answer(stream, seconds)
        except TimeoutError:
            text = f"[no end in {seconds:g} s: the interpreter was killed; its variables are lost]"
            return (await self._ended(text))._replace(timed_out=True)
        except SandboxDied:
            await self.close()
            raise
        except (SandboxError, ValueError, TypeError, KeyError) as error:
            text = str(error) if isinstance(error, SandboxError) else "its answer is damaged"
            return await self._ended(f"[the interpreter ended: {text}; its variables are lost]")
        except BaseException:
            await self.close()  # cancelled in the middle of a cell: it must not go on
            raise

    async def close(self) -> None:
        """Kill the interpreter. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _start(self) -> Stream:
        source = resources.files("trajgym.envs.code").joinpath("_inside.py").read_text("utf-8")
        stream = await self.sandbox.stream(["python3", "-B", "-c", source], cwd=self.cwd)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await stream.read()
        except TimeoutError as error:
            await stream.close()
            raise SandboxError(
                "the Python interpreter could not be started in the sandbox"
            ) from error
        except BaseException:
            await stream.close()
            raise
        self._stream = stream
        return stream

    async def _answer(self, stream: Stream, seconds: float) -> Cell:
        while True:
            answer: dict[str, Any] = json.loads(await stream.read())
            if answer["id"] == self._cells:
                break
        output, timed_out = str(answer["output"]), bool(answer["timed_out"])
        if timed_out:
            output = f"{output.rstrip()}\n[interrupted: no end in {seconds:g} s]".lstrip()
        return Cell(output, bool(answer["failed"]), timed_out, dropped=int(answer["dropped"]))

    async def _ended(self, said: str) -> Cell:
        await self.close()
        return Cell(said, failed=True, lost=True)

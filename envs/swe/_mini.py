"""A SWE task's sandbox as an environment of mini-swe-agent.

That agent is synchronous and takes any object with ``execute``, ``get_template_vars`` and
``serialize``; it is used unmodified, and imported only to signal submission.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from trajgym.envs.swe._editing import shortened
from trajgym.envs.swe._env import BashSweEnv
from trajgym.envs.swe._layout import REPO
from trajgym.trajectory._internal import Closing, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from trajgym.trajectory import Outcome, Task

__all__ = ["MiniSweEnvironment"]

_T = TypeVar("_T")
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_START_SECONDS = 900.0
_VERIFY_SECONDS = 3600.0


class MiniSweEnvironment(Closing):
    """Runs mini-swe-agent's commands in the sandbox of a SWE task, and grades its work.

    Args:
        task: a SWE task.
        config: settings of :class:`BashSweEnv`, such as ``sandbox`` and ``command_seconds``.

    Use it as a context manager, from a thread without an event loop. ``prompt`` is the agent's
    task; ``grade()`` returns the outcome of the current files.
    """

    def __init__(self, task: Task, **config: Any) -> None:
        self.config = {"instance_id": task.id, "cwd": REPO, **config}
        self.prompt = ""
        self._task = task
        self._env = BashSweEnv(**config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.prompt = self._wait(self._env.reset(self._task, None), _START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run one command, each in a new shell.

        Returns:
            ``output`` (both streams, its middle left out if it is long), ``returncode`` (-1 if it
            was killed) and ``exception_info``.

        Raises:
            minisweagent.exceptions.Submitted: the command printed the agent's closing line.
            SandboxDied: the sandbox is gone.
        """
        seconds = min(timeout or self._env.command_seconds, self._env.command_seconds)
        command = [
            "/bin/bash",
            "-c",
            'exec 2>&1; eval "$1"',
            "bash",
            str(action.get("command", "")),
        ]
        run = self._env.sandbox.run(command, timeout=seconds, cwd=cwd or REPO)
        done = self._wait(run, seconds + 60.0)
        text = shortened(done.stdout, self._env.output_bytes, done.dropped_stdout)
        first, _, rest = text.lstrip().partition("\n")
        if first.strip() == _SUBMIT and done.ok:
            _submitted(rest)
        killed = f"the command was killed after {seconds:g} s" if done.timed_out else ""
        return {"output": text, "returncode": done.exit_code, "exception_info": killed}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """Return the variables of the agent's prompt templates."""
        machine = {"system": "Linux", "release": "", "version": "", "machine": "x86_64"}
        return {**machine, **self.config, **more}

    def serialize(self) -> dict[str, Any]:
        """Return the data that the agent writes into its trajectory file."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config, "environment_type": kind}}}

    def grade(self) -> Outcome:
        """Grade the current repository; see :func:`trajgym.envs.swe.grade`."""
        return self._wait(self._env.verify(), _VERIFY_SECONDS)

    def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        if not self._thread.is_alive():
            return
        try:
            self._wait(self._close(), 120.0)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30.0)
            self._loop.close()

    async def _close(self) -> None:
        await self._env.close()
        await self._env.close_run({})

    def _wait(self, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise


def _submitted(submission: str) -> NoReturn:
    try:
        from minisweagent.exceptions import Submitted
    except ImportError:
        raise MissingExtra("mini-swe-agent", "mini") from None
    extra = {"exit_status": "Submitted", "submission": submission}
    raise Submitted({"role": "exit", "content": submission, "extra": extra})

"""Running the set-up and the checks of a task on a desktop in a sandbox."""

from __future__ import annotations

import asyncio
import shlex
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.gui._errors import BadAction, ScreenEnded
from trajgym.envs.gui.desktop._tasks import (
    ActivateStep,
    Check,
    ClipboardStep,
    CloseStep,
    LaunchStep,
    RunStep,
    SleepStep,
    WriteStep,
)
from trajgym.envs.sandbox import SandboxFileError
from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.envs.gui.desktop._desktop import Desktop
    from trajgym.envs.gui.desktop._tasks import Step
    from trajgym.envs.sandbox import Sandbox

__all__ = ["Checked", "SetupFailed", "check_all", "finish", "set_up"]

_COMMAND_SECONDS = 60.0


class SetupFailed(TrajgymError):
    """The set-up of a task failed, for a reason outside the agent's control."""

    part = "setup"


class _StepFailed(Exception):
    """A command of the set-up failed."""


class Checked(NamedTuple):
    """One check and its result."""

    check: Check
    holds: bool
    found: str | None


async def set_up(sandbox: Sandbox, desktop: Desktop, steps: Iterable[Step]) -> None:
    """Carry out steps in order.

    Raises:
        SetupFailed: a step failed.
        GuiDied: the screen is gone, or an application opened no window.
    """
    for number, step in enumerate(steps):
        try:
            await _do(sandbox, desktop, step)
        except (BadAction, SandboxFileError, _StepFailed) as error:
            raise SetupFailed(f"step {number} ({step.do}): {error}") from error


async def finish(sandbox: Sandbox, desktop: Desktop, steps: Iterable[Step]) -> None:
    """Run the steps before the checks of a task; those that fail are skipped.

    The agent may have closed the window that a step names; the checks decide the result.

    Raises:
        GuiDied: the desktop does not answer.
        SandboxDied: the sandbox is gone.
    """
    for step in steps:
        with suppress(BadAction, SandboxFileError, ScreenEnded, _StepFailed):
            await _do(sandbox, desktop, step)


async def _do(sandbox: Sandbox, desktop: Desktop, step: Step) -> None:
    match step:
        case WriteStep():
            await sandbox.write_file(step.path, step.text.encode())
        case RunStep():
            done = await sandbox.run(
                step.command, timeout=_COMMAND_SECONDS, env={"DISPLAY": desktop.display}
            )
            if not done.ok:
                output = done.stderr.decode(errors="replace")[-500:]
                line = step.command if isinstance(step.command, str) else shlex.join(step.command)
                raise _StepFailed(f"{line[:200]!r} ended with status {done.exit_code}: {output}")
        case LaunchStep():
            await desktop.launch(step.command, seconds=step.seconds)
            if step.title:
                await _title(desktop, step.title, step.seconds)
        case SleepStep():
            await asyncio.sleep(step.seconds)
        case ActivateStep():
            await desktop.activate(step.title)
        case CloseStep():
            await desktop.close_window(step.title)
        case ClipboardStep():
            await desktop.set_clipboard(step.text)


async def _title(desktop: Desktop, title: str, seconds: float) -> None:
    """Wait until the title of a window holds a text.

    Raises:
        _StepFailed: none does within ``seconds``.
    """
    end = time.monotonic() + seconds
    while all(title not in window.title for window in await desktop.windows()):
        if time.monotonic() > end:
            raise _StepFailed(f"no window's title held {title!r} within {seconds:g} s")
        await asyncio.sleep(0.1)


async def check_all(sandbox: Sandbox, desktop: Desktop, checks: Iterable[Check]) -> list[Checked]:
    """Run every check. If the screen has ended, no windows or clipboard are available.

    Raises:
        GuiDied: the desktop does not answer.
        SandboxDied: the sandbox is gone.
    """
    made: list[Checked] = []
    for check in checks:
        found = await _find(sandbox, desktop, check)
        made.append(Checked(check, check.holds(found), found))
    return made


async def _find(sandbox: Sandbox, desktop: Desktop, check: Check) -> str | None:
    match check.of:
        case "file":
            try:
                data = await sandbox.read_file(str(check.name))
            except SandboxFileError:
                return None
            return data.decode(errors="replace")
        case "command":
            done = await sandbox.run(
                check.name, timeout=_COMMAND_SECONDS, env={"DISPLAY": desktop.display}
            )
            return done.stdout.decode(errors="replace")
        case "clipboard":
            try:
                return await desktop.clipboard()
            except ScreenEnded:
                return None
        case "windows":
            try:
                return "\n".join(window.title for window in await desktop.windows())
            except ScreenEnded:
                return None

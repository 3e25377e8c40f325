"""A task's set-up carried out, and its checks made, on a desktop in a sandbox."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.gui._desktop import ScreenEnded
from trajgym.envs.gui._desktop_tasks import (
    ActivateStep,
    Check,
    ClipboardStep,
    CloseStep,
    LaunchStep,
    RunStep,
    SleepStep,
    WriteStep,
)
from trajgym.envs.gui._errors import BadAction
from trajgym.envs.sandbox import SandboxFileError
from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.envs.gui._desktop import Desktop
    from trajgym.envs.gui._desktop_tasks import Step
    from trajgym.envs.sandbox import Sandbox

__all__ = ["Checked", "SetupFailed", "check_all", "finish", "set_up"]

_COMMAND_SECONDS = 60.0


class SetupFailed(TrajgymError):
    """A task's set-up did not work; outside the agent's control."""

    part = "setup"


class _StepFailed(Exception):
    """A command of the set-up failed."""


class Checked(NamedTuple):
    """One check and what was found."""

    check: Check
    holds: bool
    found: str | None


async def set_up(sandbox: Sandbox, desktop: Desktop, steps: Iterable[Step]) -> None:
    """Carry out steps in order.

    Raises:
        SetupFailed: one did not work.
        GuiDied: the screen is gone, or an application showed no window.
    """
    for number, step in enumerate(steps):
        try:
            await _do(sandbox, desktop, step)
        except (BadAction, SandboxFileError, _StepFailed) as error:
            raise SetupFailed(f"step {number} ({step.do}): {error}") from error


async def finish(sandbox: Sandbox, desktop: Desktop, steps: Iterable[Step]) -> None:
    """Carry out the steps that a task has before its checks, as far as they go.

    The agent may have closed the window that a step speaks of: the checks tell what that means.

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
                said = done.stderr.decode(errors="replace")[-500:]
                line = step.command if isinstance(step.command, str) else shlex.join(step.command)
                raise _StepFailed(f"{line[:200]!r} ended with status {done.exit_code}: {said}")
        case LaunchStep():
            await desktop.launch(step.command, seconds=step.seconds)
        case SleepStep():
            await asyncio.sleep(step.seconds)
        case ActivateStep():
            await desktop.activate(step.title)
        case CloseStep():
            await desktop.close_window(step.title)
        case ClipboardStep():
            await desktop.set_clipboard(step.text)


async def check_all(sandbox: Sandbox, desktop: Desktop, checks: Iterable[Check]) -> list[Checked]:
    """Make every check. Where the screen has ended there is no clipboard, and there are no windows.

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

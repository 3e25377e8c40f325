"""The desktop environment: applications in a window manager, seen as pictures."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trajgym.envs import Budgets, ToolResult
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.gui._screen_env import PictureName, ScreenEnv
from trajgym.envs.gui.actions._spaces import ClipboardTools
from trajgym.envs.gui.actions._types import (
    CursorPosition,
    Point,
    ReadClipboard,
    SetClipboard,
    to_wire,
)
from trajgym.envs.gui.desktop._demo import demo_script
from trajgym.envs.gui.desktop._desktop import (
    DESKTOP_SIZE,
    TREE_SECONDS,
    Desktop,
    check_tree_seconds,
)
from trajgym.envs.gui.desktop._elements import elements_text
from trajgym.envs.gui.desktop._tasks import DesktopRecord, load_desktop_tasks
from trajgym.envs.gui.desktop._world import check_all, finish, set_up
from trajgym.envs.sandbox import (
    Limits,
    SandboxSpec,
    shared_provider,
)
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Image
    from trajgym.envs.gui.actions._spaces import ActionSpace
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.gui.desktop._desktop import DesktopLook
    from trajgym.envs.sandbox import Sandbox
    from trajgym.trajectory import Message, Task

__all__ = ["DESKTOP_IMAGE", "DesktopEnv", "OpenAIDesktopEnv", "TarsDesktopEnv"]

DESKTOP_IMAGE = "trajgym/desktop:bookworm"
_MIB = 1 << 20
_PATIENCE = 2.0
_CLIPBOARD = (ReadClipboard, SetClipboard)
_PROMPT = """\
You use a desktop computer; every action is answered with a picture of its screen, {width} x \
{height} pixels, with the origin in the upper left corner. {hint} If the task can't \
be done, give up.

Task: {task}"""


class _Running(NamedTuple):
    """The open resources of a session."""

    record: DesktopRecord
    sandbox: Sandbox
    desktop: Desktop


class DesktopEnv(ScreenEnv):
    """A desktop with applications, verified by what its tasks check: the id ``desktop``.

    Forks replay the turns and compare every picture. Each turn has the signals ``screen_changed``,
    ``repeated_action`` (the same actions as in the turn before, and the screen did not change),
    ``actions`` (their wire form, in pixels of the screen), ``screen`` (its size),
    ``active_window``, and with ``measure`` ``goal_distance``: the share of the task's checks that
    do not hold yet.

    Args:
        actions: the action space: ``anthropic`` or ``openai`` (tools), ``ui-tars`` or
            ``pyautogui`` (text).
        size: width and height of the screen in pixels.
        shown: width and height of the pictures, and of the coordinates that the agent uses;
            ``size`` if None. It must have the same proportions.
        picture: ``png``, ``jpeg``, or ``none``.
        quality: quality of JPEG images.
        thousandths: for ``ui-tars``: points are in thousandths of the picture.
        cursor: whether the pointer is drawn in the pictures.
        clipboard: whether the agent has the tools ``read_clipboard`` and ``set_clipboard``;
            with ``pyautogui``, ``pyperclip.paste()`` and ``pyperclip.copy(text)``.
        tree: whether the elements of applications are listed (AT-SPI), with their middle as a
            point of the picture.
        tree_chars: bound of that list.
        tree_seconds: limit for reading the elements; if it is reached, the list ends with a note
            and the turn has the signal ``elements_cut``.
        settle: maximum seconds to wait after actions until the screen stops changing.
        measure: check the goal after every turn; this takes some milliseconds.
        image: the container image; ``scripts/desktop-image.sh`` makes it.
        memory: MiB that the sandbox may use.
        form: deprecated name of ``picture``.
    """

    task_data = DesktopRecord
    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, seconds_per_turn=120.0)
    spaces: ClassVar[tuple[ActionSpace, ...]] = ("anthropic", "openai", "ui-tars", "pyautogui")

    def __init__(
        self,
        *,
        actions: ActionSpace | None = None,
        size: Sequence[int] = DESKTOP_SIZE,
        shown: Sequence[int] | None = None,
        picture: PictureName = "png",
        quality: int = 80,
        thousandths: bool = False,
        cursor: bool = False,
        clipboard: bool = False,
        tree: bool = False,
        tree_chars: int = 12_000,
        tree_seconds: float = TREE_SECONDS,
        settle: float = 1.0,
        measure: bool = False,
        image: str = DESKTOP_IMAGE,
        memory: int = 1024,
        form: PictureName | None = None,
    ) -> None:
        if form is not None:
            warnings.warn("form is now named picture", DeprecationWarning, stacklevel=2)
        super().__init__(
            actions=actions,
            size=size,
            shown=shown,
            picture=form or picture,
            quality=quality,
            thousandths=thousandths,
            image=image,
            memory=memory,
        )
        self.measure = measure
        self._cursor, self._clipboard = cursor, clipboard
        self._tree, self._tree_chars = tree, tree_chars
        self._tree_seconds = check_tree_seconds(tree_seconds)
        self._settle = settle
        self._held: _Running | None = None

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return desktop tasks; see :func:`load_desktop_tasks`."""
        return load_desktop_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return the turns of the scripted agent in a built-in task; every third sample fails."""
        return demo_script(task, sample)

    @classmethod
    def more_tools(cls, config: Mapping[str, Any]) -> tuple[type, ...]:
        """See :meth:`ScreenEnv.more_tools`."""
        takes_tools = cls.space_of(config) in {"anthropic", "openai"}
        return (ClipboardTools,) if config.get("clipboard") and takes_tools else ()

    async def reset(self, task: Task, seed: int | None) -> ToolResult:
        """Start a desktop, set the task up, and show the screen.

        Raises:
            GuiDied: the screen or an application did not start.
            SetupFailed: a step of the set-up failed.
        """
        del seed
        record = DesktopRecord.of(task)
        provider = await shared_provider("docker")
        sandbox = await provider.start(
            SandboxSpec(
                image=self._image,
                labels=self.labels,
                limits=Limits(memory=self._memory * _MIB, pids=512),
            )
        )
        self._held = _Running(
            record,
            sandbox,
            Desktop(
                sandbox,
                size=self.size,
                settle=self._settle,
                cursor=self._cursor,
                tree=self._tree,
                tree_seconds=self._tree_seconds,
            ),
        )
        await self._held.desktop.open()
        await set_up(sandbox, self._held.desktop, record.setup)
        look = await self._held.desktop.look(self._picture)
        self._last, self.pointer = ([], look.mark), Point(*look.pointer)
        width, height = self.scale.shown
        text = _PROMPT.format(task=record.instruction, width=width, height=height, hint=self.hint)
        return ToolResult(content=self._content([text], look))

    async def verify(self) -> Outcome:
        """Run the task's checks; all must hold, or any one if the task declares this.

        Failed checks are repeated for two seconds, because applications save and close with a
        delay.
        """
        held = self._running
        if held.record.infeasible:
            return Outcome(score=float(self.gave_up), passed=self.gave_up)
        await finish(held.sandbox, held.desktop, held.record.before_checks)
        enough = any if held.record.any_of else all
        end = time.monotonic() + _PATIENCE
        while True:
            made = await check_all(held.sandbox, held.desktop, held.record.checks)
            passed = enough(one.holds for one in made)
            if passed or time.monotonic() > end:
                break
            await asyncio.sleep(0.2)
        passed = passed and not self.gave_up
        details = [{"of": one.check.of, "name": one.check.name, "holds": one.holds} for one in made]
        return Outcome(
            score=float(passed),
            passed=passed,
            details={"checks": details, "answer": self.answer_given},
        )

    async def close(self) -> None:
        """Close the sandbox, and with it the desktop."""
        held, self._held = self._held, None
        if held is not None:
            await held.sandbox.close()

    @property
    def _running(self) -> _Running:
        if self._held is None:
            raise GuiDied("the desktop is closed")
        return self._held

    async def perform(self, actions: Sequence[Action]) -> ToolResult:
        """Execute actions and return the screen.

        Raises:
            Truncate: the screen ended, through the agent or its applications.
            GuiDied: the desktop can't be used.
            SandboxDied: the sandbox is gone.
        """
        if not self._clipboard and any(isinstance(one, _CLIPBOARD) for one in actions):
            raise BadAction("the clipboard can't be used directly in this environment")
        rest, end = self.until_end(actions)
        held = self._running
        try:
            look = await held.desktop.act(rest, self.picture_for(rest))
        except ScreenEnded as error:
            await self.screen_ended(error, held.sandbox)
        said = (
            [f"Error: action {look.done + 1} was refused: {look.refused}"] if look.refused else []
        )
        if any(isinstance(action, CursorPosition) for action in actions):
            said.append("X={},Y={}".format(*self.scale.shown_point(Point(*look.pointer))))
        if look.clipboard is not None:
            said.append(f"Clipboard: {look.clipboard}")
        done = end is not None and not look.refused
        if end is not None and done:
            self.finish(end)
        signals = await self._signals(actions, look)
        return ToolResult(content=self._content(said, look), signals=signals, done=done)

    async def observe(self, said: Sequence[str]) -> ToolResult:
        """See :meth:`ScreenEnv.observe`."""
        held = self._running
        try:
            look = await held.desktop.look(self._picture)
        except ScreenEnded as error:
            await self.screen_ended(error, held.sandbox)
        signals = await self._signals([], look) | {"action_ok": False}
        return ToolResult(content=self._content(said, look), signals=signals)

    def _content(self, said: Sequence[str], look: DesktopLook) -> list[str | Image]:
        parts = [*said]
        if self._tree:
            parts.append(elements_text(look.elements, self.scale, self._tree_chars))
            if look.elements_cut:
                parts.append(f"[not all elements are listed: {look.elements_cut}]")
        text = ["\n".join(parts)] if parts else []
        return [*text] if look.picture is None else [*text, look.picture]

    async def _signals(self, actions: Sequence[Action], look: DesktopLook) -> dict[str, Any]:
        wire = [to_wire(action) for action in actions]
        signals = self.change_signals(wire, look.mark, ok=not look.refused)
        self.pointer = Point(*look.pointer)
        signals["active_window"] = look.active.title if look.active else ""
        if look.elements_cut:
            signals["elements_cut"] = True
        if self.measure and not self._running.record.infeasible:
            held = self._running
            made = await check_all(held.sandbox, held.desktop, held.record.checks)
            missing = [not one.holds for one in made]
            share = min(missing) if held.record.any_of else sum(missing) / len(missing)
            signals["goal_distance"] = float(share)
        return signals


class OpenAIDesktopEnv(DesktopEnv):
    """Deprecated: the environment ``desktop`` with ``actions="openai"``."""

    spaces: ClassVar[tuple[ActionSpace, ...]] = ("openai",)


class TarsDesktopEnv(DesktopEnv):
    """Deprecated: the environment ``desktop`` with ``actions="ui-tars"``."""

    spaces: ClassVar[tuple[ActionSpace, ...]] = ("ui-tars",)

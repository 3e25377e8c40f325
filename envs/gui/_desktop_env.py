"""The desktop environment: applications in a window manager, seen as pictures."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from trajgym.envs import Budgets, Env, ToolResult, Truncate, tool
from trajgym.envs.gui._actions import (
    CursorPosition,
    Finish,
    GiveUp,
    Scale,
    Screenshot,
    Size,
    to_wire,
)
from trajgym.envs.gui._computer_tool import ComputerTool
from trajgym.envs.gui._desktop import DESKTOP_SIZE, Desktop, PictureForm, ScreenEnded
from trajgym.envs.gui._desktop_demo import demo_script
from trajgym.envs.gui._desktop_tasks import DesktopRecord, load_desktop_tasks
from trajgym.envs.gui._desktop_world import check_all, finish, set_up
from trajgym.envs.gui._errors import GuiDied
from trajgym.envs.gui._openai_actions import OpenAIAction, parse_openai
from trajgym.envs.gui._ui_tars_actions import parse_ui_tars
from trajgym.envs.sandbox import (
    Limits,
    SandboxSpec,
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.trajectory import InvalidInput, Outcome, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui._actions import Action
    from trajgym.envs.gui._desktop import DesktopLook
    from trajgym.envs.sandbox import Sandbox
    from trajgym.trajectory import Message, Task

__all__ = ["DESKTOP_IMAGE", "DesktopEnv", "DesktopEnvBase", "OpenAIDesktopEnv", "TarsDesktopEnv"]

DESKTOP_IMAGE = "trajgym/desktop:bookworm"
_MIB = 1 << 20
_PATIENCE = 2.0


class _Running(NamedTuple):
    """What a session holds."""

    record: DesktopRecord
    sandbox: Sandbox
    desktop: Desktop


class DesktopEnvBase(Env):
    """What all action spaces share: the desktop, the pictures, verification.

    Forks replay the turns and compare every picture. Each turn has the signals ``screen_changed``,
    ``repeated_action`` (the same actions as in the turn before, and the screen did not change),
    ``actions`` (their wire form, in pixels of the screen), ``screen`` (its size),
    ``active_window``, and with ``measure`` ``goal_distance``: the share of the task's checks that
    do not hold yet.

    Args:
        size: width and height of the screen in pixels.
        shown: size of the pictures, and of the coordinates that the agent speaks; ``size`` if None.
        form: ``png`` or ``jpeg``.
        quality: of a JPEG.
        settle: seconds to wait at most after actions until the screen stands still.
        measure: check the goal after every turn; it costs some milliseconds.
        image: the container image; ``scripts/desktop-image.sh`` makes it.
        memory: MiB that the sandbox may use.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, seconds_per_turn=120.0)
    prompt: ClassVar[str] = ""

    def __init__(
        self,
        *,
        size: Sequence[int] = DESKTOP_SIZE,
        shown: Sequence[int] | None = None,
        form: Literal["png", "jpeg"] = "png",
        quality: int = 80,
        settle: float = 1.0,
        measure: bool = False,
        image: str = DESKTOP_IMAGE,
        memory: int = 1024,
    ) -> None:
        if form not in {"png", "jpeg"}:
            raise InvalidInput(f"form {form!r}: pictures are 'png' or 'jpeg'")
        self.size = _size(size, "size")
        self.scale = Scale(self.size if shown is None else _size(shown, "shown"), self.size)
        self.measure = measure
        self._picture = PictureForm(form=form, size=self.scale.shown, quality=quality)
        self._settle = settle
        self._image = image
        self._memory = memory
        self._held: _Running | None = None
        self._last: tuple[list[dict[str, Any]], int] = ([], 0)
        self.gave_up = False

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return desktop tasks; see :func:`load_desktop_tasks`."""
        return load_desktop_tasks(source)

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Remove the sandboxes that a killed run left."""
        del config, tasks
        await (await shared_provider("docker")).reap()
        hold_shared_providers()

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Close the shared sandboxes once no run of this process needs them."""
        del config
        await release_shared_providers()

    async def reset(self, task: Task, seed: int | None) -> ToolResult:
        """Start a desktop, set the task up, and show the screen.

        Raises:
            GuiDied: the screen or an application did not come up.
            SetupFailed: a step of the set-up did not work.
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
            record, sandbox, Desktop(sandbox, size=self.size, settle=self._settle)
        )
        await self._held.desktop.open()
        await set_up(sandbox, self._held.desktop, record.setup)
        look = await self._held.desktop.look(self._picture)
        self._last = ([], look.mark)
        assert look.picture is not None
        width, height = self.scale.shown
        text = self.prompt.format(task=record.instruction, width=width, height=height)
        return ToolResult(content=[text, look.picture])

    async def verify(self) -> Outcome:
        """Make the task's checks; all of them must hold, or one if the task says so.

        What does not hold is looked at again for two seconds: applications save and close at their
        own pace.
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
        return Outcome(score=float(passed), passed=passed, details={"checks": details})

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
        """Carry out actions and show what the screen looks like then.

        Raises:
            Truncate: the agent ended its own screen (or ran out of memory), which is scored.
            GuiDied: the desktop does not answer.
            SandboxDied: the sandbox is gone.
        """
        ends = [action for action in actions if isinstance(action, (Finish, GiveUp))]
        rest = [action for action in actions if action not in ends]
        held = self._running
        try:
            look = await held.desktop.act(rest, self._picture)
        except ScreenEnded as error:
            await held.sandbox.run("true", timeout=30.0)  # says if it is the sandbox that died
            raise Truncate("screen", str(error)) from error
        self.gave_up = any(isinstance(action, GiveUp) for action in ends)
        signals = await self._signals(actions, look)
        assert look.picture is not None
        said = (
            [f"Error: action {look.done + 1} was refused: {look.refused}"] if look.refused else []
        )
        if any(isinstance(action, CursorPosition) for action in actions):
            said.append("X={},Y={}".format(*self._shown(look.pointer)))
        return ToolResult(
            content=[*said, look.picture], signals=signals, done=bool(ends) and not look.refused
        )

    def _shown(self, pointer: tuple[int, int]) -> tuple[int, int]:
        return (
            round(pointer[0] * self.scale.shown.width / self.size.width),
            round(pointer[1] * self.scale.shown.height / self.size.height),
        )

    async def _signals(self, actions: Sequence[Action], look: DesktopLook) -> dict[str, Any]:
        wire = [to_wire(action) for action in actions]
        before, mark = self._last
        self._last = (wire, look.mark)
        looks = {to_wire(Screenshot())["do"], to_wire(CursorPosition())["do"]}
        acted = any(action["do"] not in looks for action in wire)
        signals: dict[str, Any] = {
            "screen_changed": look.mark != mark,
            "repeated_action": acted and wire == before and look.mark == mark,
            "actions": wire,
            "screen": list(self.size),
            "active_window": look.active.title if look.active else "",
        }
        if self.measure and not self._running.record.infeasible:
            held = self._running
            made = await check_all(held.sandbox, held.desktop, held.record.checks)
            missing = [not one.holds for one in made]
            share = min(missing) if held.record.any_of else sum(missing) / len(missing)
            signals["goal_distance"] = float(share)
        return signals


_WITH_TOOL = """\
You use a desktop computer through the tool `computer`; every call returns a picture of the \
screen, {width} x {height} pixels, with the origin in the upper left corner. The mouse pointer is \
not drawn. When the task is done, say so without calling the tool; if it can't be done, call \
give_up.

Task: {task}"""


class DesktopEnv(ComputerTool, DesktopEnvBase):
    """A desktop with Anthropic's computer tool: ``trajgym.envs`` id ``desktop``."""

    prompt: ClassVar[str] = _WITH_TOOL

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return what the scripted agent does in a built-in task; every third sample errs."""
        return demo_script(task, sample)

    @tool
    async def give_up(self, reason: str = "") -> ToolResult:
        """Declare that the task can't be done, and end.

        Args:
            reason: why.
        """
        return await self.perform([GiveUp(reason)])


class OpenAIDesktopEnv(DesktopEnvBase):
    """A desktop with OpenAI's computer-use actions: ``trajgym.envs`` id ``desktop-openai``."""

    prompt: ClassVar[str] = _WITH_TOOL

    @tool
    async def computer(self, actions: list[OpenAIAction]) -> ToolResult:
        """Use the mouse and the keyboard of the desktop, and see the screen.

        Args:
            actions: carried out in order; points in pixels of the picture.
        """
        said = {"actions": [action.model_dump(exclude_none=True) for action in actions]}
        return await self.perform(parse_openai(said, self.scale))

    @tool
    async def give_up(self, reason: str = "") -> ToolResult:
        """Declare that the task can't be done, and end.

        Args:
            reason: why.
        """
        return await self.perform([GiveUp(reason)])


_AS_TEXT = """\
You use a desktop computer. Answer with a thought and one action, as in

Thought: ...
Action: ...

where the action is one of
click(point='<point>x y</point>'), left_double(point=...), right_single(point=...),
drag(start_point=..., end_point=...), hotkey(key='ctrl c'), type(content='...'),
scroll(point=..., direction='down'), wait(), finished(content='...').
Points are in pixels of the picture, which is {width} x {height}.

Task: {task}"""


class TarsDesktopEnv(DesktopEnvBase):
    """A desktop with UI-TARS' text actions: ``trajgym.envs`` id ``desktop-ui-tars``.

    Args:
        thousandths: points are in thousandths of the picture, as version 1 speaks; else in its
            pixels.
        config: see :class:`DesktopEnvBase`.
    """

    prompt: ClassVar[str] = _AS_TEXT

    def __init__(self, *, thousandths: bool = False, **config: Any) -> None:
        super().__init__(**config)
        self._spoken = Scale(Size(1000, 1000), self.size) if thousandths else self.scale

    async def respond(self, message: Message) -> ToolResult:
        """Carry out the action that the message ends with."""
        return await self.perform(parse_ui_tars(text_of(message), self._spoken))


def _size(given: Sequence[int], name: str) -> Size:
    if len(given) != 2 or not all(64 <= int(side) <= 8192 for side in given):
        raise InvalidInput(f"{name} {list(given)}: use width and height, 64 to 8192 pixels")
    return Size(int(given[0]), int(given[1]))

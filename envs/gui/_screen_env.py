"""The base of environments with a screen: the action space, the size, and the pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias

from trajgym.envs import Truncate
from trajgym.envs.gui._picture import PictureForm
from trajgym.envs.gui.actions._spaces import SPACES, check_space
from trajgym.envs.gui.actions._types import Finish, GiveUp, Point, Say, Scale, Size, Zoom
from trajgym.envs.sandbox import ProviderName, SandboxEnv
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Env, ToolResult
    from trajgym.envs.gui._errors import ScreenEnded
    from trajgym.envs.gui.actions._spaces import ActionSpace
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.sandbox import Sandbox

__all__ = ["LOOKS", "PictureName", "ScreenEnv"]

PictureName: TypeAlias = Literal["png", "jpeg", "none"]
LOOKS = {"screenshot", "zoom", "cursor_position", "read_clipboard", "wait"}
"""Actions that do not change the screen."""
_ALIVE_SECONDS = 30.0


class ScreenEnv(SandboxEnv):
    """An environment whose agent acts on a screen, in a configurable action space.

    Args:
        actions: the action space; see :attr:`spaces`.
        size: width and height of the screen in pixels.
        shown: width and height of the pictures, and of the coordinates that the agent uses;
            ``size`` if None. It must have the same proportions.
        picture: ``png``, ``jpeg``, or ``none``.
        quality: quality of JPEG images.
        thousandths: for ``ui-tars``: points are in thousandths of the picture.
        image: the container image.
        memory: MiB that the sandbox may use.
    """

    provider_name: ClassVar[ProviderName] = "docker"
    agent_programs: ClassVar[bool] = False
    spaces: ClassVar[tuple[ActionSpace, ...]] = ()
    """The action spaces that can be chosen; the first one is the default."""
    hint: ClassVar[str] = ""
    """The part of the prompt that describes the action space."""
    _variants: ClassVar[dict[tuple[type, ...], type[Env]]] = {}

    def __init__(
        self,
        *,
        actions: ActionSpace | None,
        size: Sequence[int],
        shown: Sequence[int] | None,
        picture: PictureName,
        quality: int,
        thousandths: bool,
        image: str,
        memory: int,
    ) -> None:
        self.space = self.space_of({"actions": actions})
        self.size = _size(size, "size")
        self.scale = Scale(self.size if shown is None else _size(shown, "shown"), self.size)
        self.spoken = Scale(Size(1000, 1000), self.size) if thousandths else self.scale
        _check_proportions(self.scale)
        if picture not in {"png", "jpeg", "none"}:
            raise InvalidInput(f"picture {picture!r}: use 'png', 'jpeg' or 'none'")
        self._picture: PictureForm | None = None
        if picture != "none":
            self._picture = PictureForm(form=picture, size=self.scale.shown, quality=quality)
        self._image, self._memory = image, memory
        self.pointer = Point(0, 0)
        self._last: tuple[list[dict[str, Any]], Any] = ([], "")
        """The actions of the previous turn, and the mark of the observation after them."""
        self.answer_given: str | None = None
        self.gave_up = False

    @classmethod
    def space_of(cls, config: Mapping[str, Any]) -> str:
        """Return the action space that a configuration chooses.

        Raises:
            InvalidInput: this class has no such space.
        """
        return check_space(config.get("actions") or cls.spaces[0], cls.spaces)

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Env]:
        """Return this class with the tools of the action space that ``actions`` names."""
        name = cls.space_of(config)
        parts = tuple(p for p in (SPACES[name], *cls.more_tools(config)) if not issubclass(cls, p))
        if not parts:
            return cls
        key = (cls, *parts)
        if key not in ScreenEnv._variants:
            made = type(f"{cls.__name__}[{name}]", (*parts, cls), {"__module__": cls.__module__})
            ScreenEnv._variants[key] = made
        return ScreenEnv._variants[key]

    @classmethod
    def more_tools(cls, config: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the classes whose tools a configuration adds to those of the action space."""
        del config
        return ()

    def picture_for(self, actions: Sequence[Action]) -> PictureForm | None:
        """Return how to show the screen after some actions: an area of it if one asks for that."""
        areas = [action.area for action in actions if isinstance(action, Zoom)]
        if not areas or self._picture is None:
            return self._picture
        return self._picture.of_area(areas[-1], self.size)

    def takes_answer(self) -> bool:
        """Whether a message to the user ends the task."""
        return True

    async def observe(self, said: Sequence[str]) -> ToolResult:
        """Return some text and the current screen, without acting."""
        raise NotImplementedError

    async def on_refusal(self, error: str) -> ToolResult:
        """Answer a call that could not be parsed with the error and the current screen."""
        return await self.observe([f"Error: {error}"])

    def until_end(self, actions: Sequence[Action]) -> tuple[list[Action], Action | None]:
        """Return the actions before the first one that ends the task, and that one."""
        for index, action in enumerate(actions):
            ends = isinstance(action, Finish | GiveUp)
            if ends or (isinstance(action, Say) and self.takes_answer()):
                return list(actions[:index]), action
        return list(actions), None

    def finish(self, action: Action) -> None:
        """Keep the answer of an action that ends the task, or that the agent gave up."""
        if isinstance(action, GiveUp):
            self.gave_up = True
        elif isinstance(action, Finish):
            self.answer_given = action.answer
        elif isinstance(action, Say):
            self.answer_given = action.text

    def change_signals(self, wire: list[dict[str, Any]], mark: Any, *, ok: bool) -> dict[str, Any]:
        """Return the signals that compare this turn with the previous one.

        Args:
            wire: the actions, in wire form.
            mark: changes with the observation.
            ok: whether all of them were executed.
        """
        before, seen = self._last
        self._last = (wire, mark)
        acted = any(action["do"] not in LOOKS for action in wire)
        return {
            "screen_changed": mark != seen,
            "repeated_action": acted and wire == before and mark == seen,
            "actions": wire,
            "screen": list(self.size),
            "action_ok": ok,
        }

    @staticmethod
    async def screen_ended(error: ScreenEnded, sandbox: Sandbox) -> NoReturn:
        """End an attempt whose screen has ended; see the rule in :mod:`trajgym.envs.gui._errors`.

        Raises:
            Truncate: the sandbox still runs commands, so something inside ended the screen.
            SandboxDied: the sandbox is gone.
            ScreenEnded: the sandbox does not run commands either.
        """
        await ScreenEnv.still_runs(error, sandbox)
        raise Truncate("screen", str(error)) from error

    @staticmethod
    async def still_runs(error: ScreenEnded, sandbox: Sandbox) -> None:
        """Return if a sandbox whose screen has ended still runs commands.

        Raises:
            SandboxDied: the sandbox is gone.
            ScreenEnded: it does not run commands either.
        """
        if not (await sandbox.run("true", timeout=_ALIVE_SECONDS)).ok:
            raise error


def _size(given: Sequence[int], name: str) -> Size:
    if len(given) != 2 or not all(64 <= int(side) <= 8192 for side in given):
        raise InvalidInput(f"{name} {list(given)}: use width and height, 64 to 8192 pixels")
    return Size(int(given[0]), int(given[1]))


def _check_proportions(scale: Scale) -> None:
    wide = scale.screen.width / scale.shown.width
    high = scale.screen.height / scale.shown.height
    if abs(wide / high - 1) > 0.02:
        raise InvalidInput(
            f"shown {list(scale.shown)} must have the proportions of size {list(scale.screen)}"
        )

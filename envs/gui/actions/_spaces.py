"""Action spaces: the tools of the agent, or the text format of its actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

from trajgym.envs import ToolResult, tool
from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._browsergym import parse_browsergym
from trajgym.envs.gui.actions._computer_tool import ComputerTool
from trajgym.envs.gui.actions._keys import keys_of
from trajgym.envs.gui.actions._openai import OpenAIAction, parse_openai
from trajgym.envs.gui.actions._pyautogui import parse_pyautogui
from trajgym.envs.gui.actions._types import (
    Click,
    CloseTab,
    Drag,
    Element,
    Fill,
    Finish,
    Focus,
    FocusTab,
    GiveUp,
    GoBack,
    GoForward,
    GoTo,
    Move,
    NewTab,
    Point,
    PressKeys,
    ReadClipboard,
    Scale,
    Scroll,
    SelectOption,
    SetChecked,
    SetClipboard,
    TypeText,
    UploadFile,
    Wait,
)
from trajgym.envs.gui.actions._ui_tars import parse_ui_tars
from trajgym.trajectory import InvalidInput, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.gui.actions._types import Action
    from trajgym.trajectory import Message

__all__ = ["SPACES", "ActionSpace", "ClipboardTools", "check_space"]

ActionSpace: TypeAlias = Literal[
    "elements", "openai", "anthropic", "browsergym", "ui-tars", "pyautogui"
]
_MAX_WAIT = 60.0


class Space:
    """The interface that a tool set needs from the environment it is mixed into."""

    hint: ClassVar[str] = ""
    scale: Scale
    spoken: Scale
    pointer: Point
    """Where the pointer was at the last look, in pixels of the screen."""

    if TYPE_CHECKING:

        async def perform(self, actions: Sequence[Action]) -> ToolResult:
            """Execute actions and return the screen."""


class _Ends(Space):
    @tool
    async def answer(self, text: str = "") -> ToolResult:
        """End the task, with an answer if it asks a question.

        Args:
            text: nothing but the answer itself.
        """
        return await self.perform([Finish(text)])

    @tool
    async def give_up(self, reason: str = "") -> ToolResult:
        """Declare that the task can't be done, and end.

        Args:
            reason: why.
        """
        return await self.perform([GiveUp(reason)])

    async def respond(self, message: Message) -> ToolResult:
        """Take a message without a call as the final answer."""
        return await self.perform([Finish(text_of(message))])


class ElementTools(_Ends):
    """One tool per kind of action, on elements by their ids or by coordinates."""

    hint: ClassVar[str] = (
        "Elements have ids in brackets, like [12]; tools take them as text, without the brackets. "
        "When the task is done, call answer."
    )

    @tool
    async def click(
        self,
        element: str,
        button: Literal["left", "middle", "right"] = "left",
        count: int = 1,
        keys: str = "",
    ) -> ToolResult:
        """Click an element.

        Args:
            element: its id.
            button: of the mouse.
            count: 2 for a double click.
            keys: modifiers held meanwhile, like Control+Shift.
        """
        if not 1 <= count <= 3:
            raise BadAction("count must be 1, 2 or 3")
        held = keys_of(keys) if keys else ()
        return await self.perform([Click(Element(element), button, count, held)])

    @tool
    async def click_at(
        self, x: float, y: float, button: Literal["left", "middle", "right"] = "left"
    ) -> ToolResult:
        """Click at a point of the picture.

        Args:
            x: pixels from the left.
            y: pixels from the top.
            button: of the mouse.
        """
        return await self.perform([Click(self.scale.point(x, y), button)])

    @tool
    async def fill(self, element: str, text: str) -> ToolResult:
        """Replace the text of a field.

        Args:
            element: its id.
            text: the new text.
        """
        return await self.perform([Fill(Element(element), text)])

    @tool
    async def select(self, element: str, options: list[str]) -> ToolResult:
        """Choose in a drop-down field.

        Args:
            element: its id.
            options: what to choose, by label or value; one, unless it takes several.
        """
        return await self.perform([SelectOption(Element(element), tuple(options))])

    @tool
    async def check(self, element: str, checked: bool = True) -> ToolResult:
        """Tick a box, or untick it.

        Args:
            element: its id.
            checked: whether it is to be ticked.
        """
        return await self.perform([SetChecked(Element(element), checked)])

    @tool
    async def hover(self, element: str) -> ToolResult:
        """Move the pointer over an element.

        Args:
            element: its id.
        """
        return await self.perform([Move(Element(element))])

    @tool
    async def drag(self, source: str, target: str) -> ToolResult:
        """Drag one element onto another.

        Args:
            source: id of what is dragged.
            target: id of where it goes.
        """
        return await self.perform([Drag((Element(source), Element(target)))])

    @tool
    async def press(self, keys: str, element: str = "") -> ToolResult:
        """Press keys together.

        Args:
            keys: like Enter, Control+a, ArrowDown.
            element: id of what gets the focus first, if anything.
        """
        first: list[Action] = [Focus(Element(element))] if element else []
        return await self.perform([*first, PressKeys(keys_of(keys))])

    @tool
    async def type(self, text: str) -> ToolResult:
        """Type where the focus is; a line break is the Enter key.

        Args:
            text: what to type.
        """
        return await self.perform([TypeText(text)])

    @tool
    async def scroll(self, dy: int, dx: int = 0) -> ToolResult:
        """Scroll the page.

        Args:
            dy: pixels; down is positive.
            dx: pixels; to the right is positive.
        """
        return await self.perform([Scroll(None, dx, dy)])

    @tool
    async def upload(self, files: list[str], element: str = "") -> ToolResult:
        """Give files to the page.

        Args:
            files: paths, like downloads/report.csv.
            element: id of the file field; none if the page has just asked for a file.
        """
        at = Element(element) if element else None
        return await self.perform([UploadFile(at, tuple(files))])

    @tool
    async def goto(self, url: str) -> ToolResult:
        """Open an address.

        Args:
            url: of http or https.
        """
        return await self.perform([GoTo(url)])

    @tool
    async def back(self) -> ToolResult:
        """Go back to the page before."""
        return await self.perform([GoBack()])

    @tool
    async def forward(self) -> ToolResult:
        """Go forward again."""
        return await self.perform([GoForward()])

    @tool
    async def new_tab(self) -> ToolResult:
        """Open an empty tab."""
        return await self.perform([NewTab()])

    @tool
    async def close_tab(self) -> ToolResult:
        """Close this tab."""
        return await self.perform([CloseTab()])

    @tool
    async def switch_tab(self, index: int) -> ToolResult:
        """Go to another tab.

        Args:
            index: its number, from 0.
        """
        return await self.perform([FocusTab(index)])

    @tool
    async def wait(self, seconds: float = 1.0) -> ToolResult:
        """Wait.

        Args:
            seconds: at most 60.
        """
        if not 0 <= seconds <= _MAX_WAIT:
            raise BadAction(f"seconds must be between 0 and {_MAX_WAIT:g}")
        return await self.perform([Wait(seconds)])


class OpenAITools(_Ends):
    """OpenAI's computer use."""

    hint: ClassVar[str] = (
        "Use the tool computer; points are in pixels of the picture. When the task is done, call "
        "answer."
    )

    @tool
    async def computer(self, actions: list[OpenAIAction]) -> ToolResult:
        """Use mouse and keyboard, and see the screen.

        Args:
            actions: carried out in order; points in pixels of the picture.
        """
        said = [action.model_dump(exclude_none=True) for action in actions]
        return await self.perform(parse_openai({"actions": said}, self.scale))


class AnthropicTools(ComputerTool, _Ends):
    """Anthropic's computer tool."""

    hint: ClassVar[str] = (
        "Use the tool computer; coordinates are in pixels of the picture. When the task is done, "
        "call answer."
    )


class BrowserGymText(Space):
    """BrowserGym's calls, written as text."""

    hint: ClassVar[str] = (
        "Answer with one call, such as click('12'), fill('12', 'text'), select_option('12', "
        "'red'), press('12', 'Enter'), scroll(0, 300), mouse_click(40, 60), goto('http://...'), "
        "go_back(), or noop(). Elements have ids in brackets, like [12]. When the task is done, "
        "call send_msg_to_user('the answer'); if it can't be done, report_infeasible('why')."
    )

    async def respond(self, message: Message) -> ToolResult:
        """Execute the calls of a message."""
        return await self.perform(parse_browsergym(text_of(message), self.scale))


class UITarsText(Space):
    """UI-TARS' text actions."""

    hint: ClassVar[str] = (
        "Answer with a thought and one action, as in\n\nThought: ...\nAction: ...\n\nwhere the "
        "action is one of click(point='<point>x y</point>'), left_double(point=...), "
        "right_single(point=...), drag(start_point=..., end_point=...), hotkey(key='ctrl c'), "
        "type(content='...'), scroll(point=..., direction='down'), wait(), "
        "finished(content='the answer')."
    )

    async def respond(self, message: Message) -> ToolResult:
        """Execute the action at the end of the message."""
        return await self.perform(parse_ui_tars(text_of(message), self.spoken))


class PyAutoGuiText(Space):
    """Calls of pyautogui's functions, written as text."""

    hint: ClassVar[str] = (
        "Answer with Python calls of pyautogui, such as pyautogui.click(10, 20), "
        "pyautogui.write('text'), pyautogui.hotkey('ctrl', 's'), pyautogui.scroll(-3), or "
        "time.sleep(1), in a ```python block; arguments are literals, and nothing else is "
        "executed. Coordinates are in pixels of the picture. When the task is done, answer DONE; "
        "if it can't be done, FAIL."
    )

    async def respond(self, message: Message) -> ToolResult:
        """Execute the calls of a message."""
        return await self.perform(parse_pyautogui(text_of(message), self.spoken, self.pointer))


class ClipboardTools(Space):
    """The clipboard, in addition to an action space with tools."""

    @tool
    async def read_clipboard(self) -> ToolResult:
        """Show the text on the clipboard."""
        return await self.perform([ReadClipboard()])

    @tool
    async def set_clipboard(self, text: str) -> ToolResult:
        """Put text on the clipboard, which can then be pasted.

        Args:
            text: the text.
        """
        return await self.perform([SetClipboard(text)])


SPACES: dict[str, type[Space]] = {
    "elements": ElementTools,
    "openai": OpenAITools,
    "anthropic": AnthropicTools,
    "browsergym": BrowserGymText,
    "ui-tars": UITarsText,
    "pyautogui": PyAutoGuiText,
}
assert set(SPACES) == set(get_args(ActionSpace))


def check_space(name: object, allowed: Sequence[str]) -> str:
    """Return the name of an action space.

    Raises:
        InvalidInput: it is not one of the allowed ones.
    """
    if name not in allowed:
        raise InvalidInput(f"actions {name!r}: use one of {', '.join(allowed)}")
    return str(name)

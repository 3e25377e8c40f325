"""An environment with a screen of colours, and pictures to compare with."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from trajgym.envs import Budgets, Env, Image, ToolResult, register, tool
from trajgym.trajectory import Message, Task

COLOURS = ["red", "green", "blue", "white"]


def picture(colour: str, width: int = 96, height: int = 64, form: str = "PNG") -> bytes:
    """Return a small encoded image of one colour with a grey corner."""
    from PIL import Image as Pictures

    image = Pictures.new("RGB", (width, height), colour)
    image.paste("grey", (0, 0, width // 8, height // 8))
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


@register("test/screen")
class Screen(Env):
    """Shows the next colour at each click; a click below y = 10 ends the episode, solved."""

    budgets: ClassVar[Budgets] = Budgets(turns=8, seconds=600)

    def __init__(self, form: str = "PNG", as_tool: bool = True) -> None:
        self.form, self.as_tool = form, as_tool
        self.solved = False

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        return [click(30, 40), click(50, 20), click(5, 5)]

    def reset(self, task: Task, seed: int | None) -> str:
        self.clicks = 0
        return "Click near the top."

    @tool
    def click(self, x: int, y: int) -> ToolResult:
        """Click somewhere.

        Args:
            x: from the left.
            y: from the top.
        """
        self.solved = y < 10
        shown = Image(
            picture(COLOURS[self.clicks % 4], form=self.form), f"image/{self.form.lower()}"
        )
        self.clicks += 1
        return ToolResult(content=["you see", shown], done=self.solved)

    def verify(self) -> bool:
        return self.solved


def click(x: int, y: int) -> dict[str, Any]:
    """Return a message that clicks."""
    from trajgym.rollout import call

    return call("click", x=x, y=y)


@register("test/screen-respond")
class Answering(Env):
    """Answers three messages with a picture each, whatever they say."""

    budgets: ClassVar[Budgets] = Budgets(turns=8, seconds=300)

    def reset(self, task: Task, seed: int | None) -> list[Message]:
        self.turns = 0
        return [{"role": "user", "content": "look at the red button"}]

    def respond(self, message: Message) -> ToolResult:
        self.turns += 1
        shown = Image(picture(COLOURS[self.turns], 56, 56 + 28 * self.turns))
        return ToolResult(content=["the", shown], done=self.turns == 3)

    def verify(self) -> bool:
        return self.turns == 3

"""Anthropic's computer tool, for environments with a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.envs import ToolResult, tool
from trajgym.envs.gui.actions._anthropic import AnthropicVerb, Direction, parse_anthropic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.gui.actions._types import Action, Scale

__all__ = ["ComputerTool"]


class ComputerTool:
    """The tool ``computer``, over an environment's executor.

    Attributes:
        scale: from pixels of the picture to pixels of the screen.
    """

    scale: Scale

    if TYPE_CHECKING:

        async def perform(self, actions: Sequence[Action]) -> ToolResult:
            """Execute actions and return the resulting observation."""

    @tool
    async def computer(
        self,
        action: AnthropicVerb,
        coordinate: tuple[float, float] | None = None,
        text: str | None = None,
        start_coordinate: tuple[float, float] | None = None,
        scroll_direction: Direction | None = None,
        scroll_amount: int | None = None,
        duration: float | None = None,
        key: str | None = None,
        region: tuple[float, float, float, float] | None = None,
    ) -> ToolResult:
        """Use mouse and keyboard, and see the screen.

        Args:
            action: what to do.
            coordinate: x and y of the place, in pixels of the picture.
            text: what to type, or the keys to press, such as ctrl+s.
            start_coordinate: where a drag begins.
            scroll_direction: up, down, left or right.
            scroll_amount: notches of the wheel.
            duration: seconds, for wait and hold_key.
            key: a modifier held during a click or a scroll.
            region: for zoom: left, top, right and bottom, in pixels of the picture.
        """
        said: dict[str, Any] = {
            "action": action,
            "coordinate": coordinate,
            "text": text,
            "start_coordinate": start_coordinate,
            "scroll_direction": scroll_direction,
            "scroll_amount": scroll_amount,
            "duration": duration,
            "key": key,
            "region": region,
        }
        return await self.perform(parse_anthropic(said, self.scale))

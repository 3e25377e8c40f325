"""The format of screenshots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trajgym.envs.gui.actions._types import Size

__all__ = ["PictureForm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureForm:
    """The format of a screenshot.

    Args:
        form: ``png`` (exact) or ``jpeg`` (smaller and quicker).
        size: width and height of the picture; the screen's own if None.
        quality: quality of JPEG images, 1 to 95.
        area: left, top, right and bottom of the part of the screen that is shown, in pixels of the
            screen; it is enlarged as far as it fits into ``size``. The whole screen if None.
    """

    form: Literal["png", "jpeg"] = "png"
    size: Size | None = None
    quality: int = 80
    area: tuple[int, int, int, int] | None = None

    def of_area(self, area: tuple[int, int, int, int], screen: Size) -> PictureForm:
        """Return the format of a picture of an area, with the area's proportions."""
        width, height = self.size or screen
        across, down = area[2] - area[0], area[3] - area[1]
        factor = min(width / across, height / down)
        fitted = Size(max(1, round(across * factor)), max(1, round(down * factor)))
        return replace(self, size=fitted, area=area)

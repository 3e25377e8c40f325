"""A BrowserGym environment in a sandbox."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs import Image
from trajgym.envs.gui._driver import Driver
from trajgym.envs.gui._errors import GuiDied, ScreenEnded
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import Sandbox

__all__ = ["SOURCE", "BrowserGym", "BrowserGymLook", "Wanted"]

SOURCE = Path(__file__).with_name("inside")
INSIDE = "/opt/trajgym/driver"
TASKS_INSIDE = "/opt/trajgym/tasks"
MINIWOB_INSIDE = "/opt/trajgym/miniwob"
_PYTHON = "/opt/trajgym/browsergym/bin/python"
_START_SECONDS = 180.0
_STEP_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parts of an observation: a picture's format, and lengths of texts (0 for none)."""

    picture: str
    quality: int
    tree: int
    html: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserGymLook:
    """An observation of BrowserGym.

    Attributes:
        picture: the page, if requested.
        tree: BrowserGym's accessibility tree as text, with its ids.
        html: BrowserGym's pruned HTML.
        url: of the active page.
        tabs: addresses of all pages.
        active: index of the active page.
        error: why the last action failed; empty if it did not.
        chat: the messages, each with ``role`` and ``message``.
    """

    picture: Image | None
    tree: str
    html: str
    url: str
    tabs: tuple[str, ...]
    active: int
    error: str
    chat: tuple[Mapping[str, str], ...]


class BrowserGym(AsyncClosing):
    """BrowserGym's environment for one task, in a sandbox.

    Args:
        sandbox: of an image with BrowserGym; not closed with this object.
        wanted: what observations contain.
        options: of the environment: ``subsets``, ``slow_mo``, ``timeout``, ``delay``.
    """

    def __init__(self, sandbox: Sandbox, wanted: Wanted, options: Mapping[str, Any]) -> None:
        self._sandbox, self._wanted, self._options = sandbox, wanted, dict(options)
        self._driver: Driver | None = None

    async def open(
        self, task: str, arguments: Mapping[str, Any], seed: int, paths: Sequence[str] = ()
    ) -> tuple[str, BrowserGymLook]:
        """Start the browser and the task; return its goal and the first observation.

        Raises:
            BadAction: there is no such task.
            GuiDied: it could not be set up.
        """
        self._driver = await Driver.start(
            self._sandbox,
            [_PYTHON, "-m", "trajgym_browsergym"],
            "BrowserGym",
            env={"PYTHONPATH": ":".join([INSIDE, *paths])},
            failed=ScreenEnded,
        )
        readonly = self._sandbox.spec.readonly
        answer = await self._ask(
            _START_SECONDS,
            op="start",
            task=task,
            arguments=dict(arguments),
            seed=seed,
            miniwob=MINIWOB_INSIDE if MINIWOB_INSIDE in readonly else None,
            **self._options,
        )
        return str(answer["goal"]), self._look(answer)

    async def step(self, action: str) -> tuple[BrowserGymLook, dict[str, Any]]:
        """Execute an action; return the observation, and ``reward``, ``done`` and ``info``."""
        answer = await self._ask(_STEP_SECONDS, op="step", action=action)
        return self._look(answer), answer

    async def look(self) -> BrowserGymLook:
        """Look without acting."""
        return self._look(await self._ask(_STEP_SECONDS, op="look"))

    async def close(self) -> None:
        """Kill driver and browser. Idempotent."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def _ask(self, deadline: float, /, **request: Any) -> dict[str, Any]:
        driver = self._driver
        if driver is None:
            raise GuiDied("BrowserGym is closed")
        try:
            return await driver.ask({"look": asdict(self._wanted), **request}, deadline)
        except ScreenEnded:
            if driver.silent:
                await self.close()
            raise

    def _look(self, answer: Mapping[str, Any]) -> BrowserGymLook:
        data = answer.get("picture")
        form = self._wanted.picture
        return BrowserGymLook(
            picture=Image(base64.b64decode(data), f"image/{form}") if data else None,
            tree=answer.get("tree", ""),
            html=answer.get("html", ""),
            url=answer["url"],
            tabs=tuple(answer["tabs"]),
            active=answer["active"],
            error=answer["error"],
            chat=tuple(answer["chat"]),
        )

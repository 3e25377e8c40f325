"""A BrowserGym environment in a sandbox, and the requests to its driver."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs import Image
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.sandbox import SandboxDied, SandboxError
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import Sandbox, Stream

__all__ = ["SOURCE", "BrowserGym", "BrowserGymLook", "Wanted"]

SOURCE = Path(__file__).with_name("inside")
INSIDE = "/opt/trajgym/driver"
TASKS_INSIDE = "/opt/trajgym/tasks"
MINIWOB_INSIDE = "/opt/trajgym/miniwob"
_PYTHON = "/opt/trajgym/browsergym/bin/python"
_LINE_BYTES = 64 << 20
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
        self._stream: Stream | None = None
        self._asked = 0
        self._turn = asyncio.Lock()

    async def open(
        self, task: str, arguments: Mapping[str, Any], seed: int, paths: Sequence[str] = ()
    ) -> tuple[str, BrowserGymLook]:
        """Start the browser and the task; return its goal and the first observation.

        Raises:
            BadAction: there is no such task.
            GuiDied: it could not be set up.
        """
        self._stream = await self._sandbox.stream(
            [_PYTHON, "-m", "trajgym_browsergym"],
            env={"PYTHONPATH": ":".join([INSIDE, *paths])},
            limit=_LINE_BYTES,
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
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _ask(self, deadline: float, /, **request: Any) -> dict[str, Any]:
        async with self._turn:
            stream = self._stream
            if stream is None:
                raise GuiDied("BrowserGym is closed")
            self._asked += 1
            look = {
                "picture": self._wanted.picture,
                "quality": self._wanted.quality,
                "tree": self._wanted.tree,
                "html": self._wanted.html,
            }
            stream.send(json.dumps({"id": self._asked, "look": look, **request}).encode())
            try:
                async with asyncio.timeout(deadline):
                    answer = json.loads(await stream.read())
                    while answer.get("id") != self._asked:  # the answer to a cancelled request
                        answer = json.loads(await stream.read())
            except TimeoutError:
                await self.close()
                raise ScreenEnded(
                    f"BrowserGym did not answer {request['op']!r} within {deadline:g} s"
                ) from None
            except SandboxDied:
                raise  # no fault of the page or the agent: it must not be scored
            except (SandboxError, ValueError) as error:
                raise ScreenEnded(f"BrowserGym's driver is gone: {error}") from error
        if answer["ok"]:
            found: dict[str, Any] = answer
            return found
        if answer["kind"] == "refused":
            raise BadAction(str(answer["error"]))
        raise ScreenEnded(f"BrowserGym failed: {answer['error']}\n{answer['trace']}")

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

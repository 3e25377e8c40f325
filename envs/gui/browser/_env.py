"""The browser environment: tasks on web pages, seen as pictures and elements."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, EnvironmentFault, ForkDiverged, ToolResult
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.gui._screen_env import LOOKS, PictureName, ScreenEnv
from trajgym.envs.gui.actions._types import Point, to_wire
from trajgym.envs.gui.browser._browser import BROWSER_SIZE, Browser, Dialogs, launch_browser
from trajgym.envs.gui.browser._demo import browser_script
from trajgym.envs.gui.browser._goals import goal_distance
from trajgym.envs.gui.browser._sandbox import BROWSER_IMAGE, browser_spec
from trajgym.envs.gui.browser._tasks import BrowserRecord, load_browser_tasks
from trajgym.envs.gui.browser._view import draw_marks, look_text
from trajgym.envs.sandbox import WarmPool, shared_provider
from trajgym.trajectory import InvalidInput, Outcome, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Image
    from trajgym.envs.gui.actions._spaces import ActionSpace
    from trajgym.envs.gui.actions._types import Action
    from trajgym.envs.gui.browser._look import BrowserLook
    from trajgym.envs.sandbox import Sandbox, SandboxSpec
    from trajgym.trajectory import Message, Task

__all__ = ["BrowserEnv", "BrowserEnvBase"]

_log = logging.getLogger(__name__)
_MOST_NAMED = 20
"""Unmatched requests that an outcome names."""
_SAVE_SECONDS = 30.0


class BrowserEnvBase(ScreenEnv):
    """The base of browser environments: the sandbox, observations, actions, forks.

    Each turn has the signals ``screen_changed``, ``repeated_action`` (the same actions as in the
    previous turn, and nothing changed), ``actions`` (their wire form, in pixels of the screen),
    ``screen`` (its size), ``url``, ``element_found`` where an action named an element,
    ``action_ok``, and ``goal_distance`` where the task knows it: the share of its checks that do
        not hold yet. The first turn of a fork from a snapshot also has ``fork``.

    Args:
        actions: the action space: ``elements`` (tools on element ids), ``openai``, ``anthropic``,
            ``browsergym`` or ``ui-tars`` (both text).
        size: width and height of the page in pixels.
        shown: width and height of the pictures, and of the coordinates that the agent uses;
            ``size`` if None. It must have the same proportions.
        picture: ``png``, ``jpeg``, or ``none``.
        quality: quality of JPEG images.
        tree: whether the elements are listed; by default where actions name elements.
        tree_chars: bound of that list.
        html_chars: bound of the page as pruned HTML, shown after the list; 0 for none.
        marks: whether elements get numbered boxes in the picture; needs ``trajgym[gui]``.
        console: whether messages and errors of pages are shown.
        dialogs: ``accept``, ``dismiss``, or ``ask``: a dialog stays until the agent answers it.
        thousandths: for ``ui-tars``: points are in thousandths of the picture.
        action_seconds: time limit of one action.
        load_seconds: time limit for loading a page.
        settle_seconds: time limit for the responses to what a loaded page requests.
        locale: locale of the pages, such as ``de-DE``.
        timezone: time zone of the pages, such as ``Europe/Berlin``.
        clock: the time that pages see, in ISO form; it stands still. The machine's time if None.
        seeded: whether random numbers in pages follow from the session's seed.
        device_scale: device pixels to a pixel of the page.
        mobile: whether pages see a telephone: touch events, a mobile viewport, and the user agent
            of Chrome on Android.
        user_agent: what pages see instead of the browser's own.
        record_har: a folder in which the traffic of every session is written as a HAR when the
            session is closed. It contains everything that was sent, passwords too.
        warm: how many browsers may be kept running for the next sessions, see :class:`WarmPool`;
            each serves one session, with a new profile.
        image: the container image; ``scripts/gui-image.sh`` makes it.
        memory: MiB that the sandbox may use.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, seconds_per_turn=300.0)
    spaces: ClassVar[tuple[ActionSpace, ...]] = (
        "elements",
        "openai",
        "anthropic",
        "browsergym",
        "ui-tars",
    )
    needs_miniwob: ClassVar[bool] = False
    storable: ClassVar[bool] = True
    """Whether cookies, storage and sites usually hold the whole state of a page."""

    def __init__(
        self,
        *,
        actions: ActionSpace | None = None,
        size: Sequence[int] = BROWSER_SIZE,
        shown: Sequence[int] | None = None,
        picture: PictureName = "jpeg",
        quality: int = 70,
        tree: bool | None = None,
        tree_chars: int = 12_000,
        html_chars: int = 0,
        marks: bool = False,
        console: bool = False,
        dialogs: Dialogs = "accept",
        thousandths: bool = False,
        action_seconds: float = 10.0,
        load_seconds: float = 15.0,
        settle_seconds: float = 1.0,
        locale: str = "en-US",
        timezone: str = "UTC",
        clock: str | None = None,
        seeded: bool = False,
        device_scale: float = 1.0,
        mobile: bool = False,
        user_agent: str | None = None,
        record_har: str | None = None,
        warm: int = 0,
        image: str = BROWSER_IMAGE,
        memory: int = 1536,
    ) -> None:
        super().__init__(
            actions=actions,
            size=size,
            shown=shown,
            picture=picture,
            quality=quality,
            thousandths=thousandths,
            image=image,
            memory=memory,
        )
        if marks and picture == "none":
            raise InvalidInput("marks are drawn into pictures: set picture to 'png' or 'jpeg'")
        self._tree = self.space in {"elements", "browsergym"} if tree is None else tree
        self._looks: dict[str, Any] = {
            "boxes": marks,
            "tree_chars": tree_chars,
            "html_chars": html_chars,
        }
        self._marks, self._console = marks, console
        self._browser_options: dict[str, Any] = {
            "dialogs": dialogs,
            "action_seconds": action_seconds,
            "load_seconds": load_seconds,
            "settle_seconds": settle_seconds,
            "locale": locale,
            "timezone": timezone,
            "clock": _clock(clock),
            "device_scale": _device_scale(device_scale),
            "mobile": mobile,
            "user_agent": user_agent,
            "record_har": record_har is not None,
        }
        self._har_folder = None if record_har is None else Path(record_har)
        self._unmatched: tuple[int, list[str]] = (0, [])
        if warm < 0:
            raise InvalidInput(f"warm {warm}: use 0 or more")
        self._seeded, self._warm = seeded, warm
        self._sandbox: Sandbox | None = None
        self._browser: Browser | None = None
        self._task: Task | None = None
        self._seed = 0
        self._log: list[list[dict[str, Any]]] = []
        self._fork: dict[str, Any] | None = None

    # Hooks for subclasses ------------------------------------------------------------------

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return the sandbox of a task."""
        del task
        return browser_spec(
            image=self._image,
            memory=self._memory,
            miniwob=self.needs_miniwob,
            labels=dict(self.labels),
        )

    def make_browser(self, task: Task, sandbox: Sandbox) -> Browser:
        """Return the browser of a task, not opened yet."""
        return Browser(sandbox, size=self.size, **self.browser_options(task))

    def browser_options(self, task: Task) -> dict[str, Any]:
        """Return the options of a task's browser; see :class:`Browser`."""
        del task
        return dict(self._browser_options)

    def storage_of(self, task: Task) -> Mapping[str, Any] | None:
        """Return cookies and local storage that the task begins with, or None."""
        del task
        return None

    async def begin(self, task: Task, seed: int) -> str:
        """Open the start of the task in the browser, and return the instruction."""
        raise NotImplementedError

    def distance(self, look: BrowserLook) -> float | None:
        """Return how far the task is from its goal, 0 to 1; None if that is unknown."""
        del look
        return None

    def ends(self, look: BrowserLook) -> bool:
        """Whether the task has ended without an action of the agent."""
        del look
        return False

    # The environment ----------------------------------------------------------------------

    @property
    def browser(self) -> Browser:
        """The agent's browser.

        Raises:
            GuiDied: it is closed.
        """
        if self._browser is None:
            raise GuiDied("the browser is closed")
        return self._browser

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox.

        Raises:
            GuiDied: it is closed.
        """
        if self._sandbox is None:
            raise GuiDied("the browser is closed")
        return self._sandbox

    async def reset(self, task: Task, seed: int | None) -> ToolResult:
        """Start sandbox and browser, open the task, and show the page."""
        asked = await self._start(task, seed or 0)
        look = await self._look()
        self._last = ([], look.mark)
        text = f"{asked}\n\n{self.hint}" if self.hint else asked
        return ToolResult(content=self._shown(look, [text], marks=self._marks))

    async def _start(self, task: Task, seed: int) -> str:
        await self._open(task, seed)
        try:
            return await self.begin(task, seed)
        except BadAction as error:
            raise EnvironmentFault("env", f"the task can't be opened: {error}") from error

    async def _open(
        self,
        task: Task,
        seed: int,
        *,
        storage: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._task, self._seed = task, seed
        if self._seeded:
            self._browser_options["seed"] = seed
        spec = self.sandbox_spec(task)
        provider = await shared_provider("docker", warm=self._warm)
        if isinstance(provider, WarmPool):
            provider.prepare(
                spec, partial(launch_browser, size=self.size, **self.browser_options(task))
            )
        self._sandbox = await provider.start(spec)
        self._browser = self.make_browser(task, self._sandbox)
        await self._browser.open(storage=storage or self.storage_of(task), state=state)

    async def _look(self) -> BrowserLook:
        look = await self.browser.look(self._picture, **self._looks)
        self._count_unmatched(look)
        return look

    def _count_unmatched(self, look: BrowserLook) -> None:
        number, first = self._unmatched
        first = [*first, *look.unmatched][:_MOST_NAMED]
        self._unmatched = (number + look.unmatched_count, first)

    def unmatched_details(self) -> dict[str, Any]:
        """Return the requests that a recording had no response to, for an outcome's details."""
        number, first = self._unmatched
        return {"unmatched_requests": {"count": number, "first": first}} if number else {}

    async def perform(self, actions: Sequence[Action]) -> ToolResult:
        """Execute actions and return the resulting observation.

        Raises:
            Truncate: the browser ended, through the page or the agent.
            GuiDied: the browser can't be used.
            SandboxDied: the sandbox is gone.
        """
        rest, end = self.until_end(actions)
        form = self.picture_for(rest)
        try:
            look = await self.browser.act(rest, form, **self._looks)
        except ScreenEnded as error:
            await self.screen_ended(error, self.sandbox)
        self._count_unmatched(look)
        wire = [to_wire(action) for action in actions]
        self._log.append(wire[: len(look.errors)])
        failed = [(i, error) for i, error in enumerate(look.errors, 1) if error]
        said = [
            f"Error: {error}" if len(actions) == 1 else f"Error: action {i}: {error}"
            for i, error in failed
        ]
        done = self.ends(look)
        if end is not None and not failed:
            self.finish(end)
            done = True
        if any(action["do"] == "cursor_position" for action in wire):
            said.append("X={},Y={}".format(*self._pointer(look)))
        signals = self._signals(wire, look, ok=not failed)
        whole = form is None or form.area is None
        content = self._shown(look, said, marks=self._marks and whole)
        return ToolResult(content=content, signals=signals, done=done)

    async def observe(self, said: Sequence[str]) -> ToolResult:
        """See :meth:`ScreenEnv.observe`."""
        try:
            look = await self._look()
        except ScreenEnded as error:
            await self.screen_ended(error, self.sandbox)
        self._log.append([])
        signals = self._signals([], look, ok=False)
        content = self._shown(look, said, marks=self._marks)
        return ToolResult(content=content, signals=signals, done=self.ends(look))

    def _pointer(self, look: BrowserLook) -> tuple[int, int]:
        x, y = look.pointer
        return self.scale.shown_point(Point(round(x), round(y)))

    def _shown(self, look: BrowserLook, said: Sequence[str], *, marks: bool) -> list[str | Image]:
        text = look_text(look, tree=self._tree, console=self._console, focused=True)
        content: list[str | Image] = ["\n\n".join([*said, text])]
        if look.picture is not None:
            marked = marks and look.boxes
            picture = look.picture
            content.append(draw_marks(picture, look.boxes, self.size) if marked else picture)
        return content

    def _signals(
        self, wire: list[dict[str, Any]], look: BrowserLook, *, ok: bool
    ) -> dict[str, Any]:
        mark = look.mark
        if wire and all(one["do"] in LOOKS for one in wire) and wire[-1]["do"] == "zoom":
            mark = self._last[1]  # the mark covers the picture, which shows another area
        signals = self.change_signals(wire, mark, ok=ok) | {"url": look.url}
        if look.found:
            signals["element_found"] = all(look.found)
        if look.unmatched_count:
            signals["unmatched_requests"] = look.unmatched_count
        distance = self.distance(look)
        if distance is not None:
            signals["goal_distance"] = distance
        if self._fork is not None:
            signals["fork"], self._fork = self._fork, None
        return signals

    # Forks --------------------------------------------------------------------------------

    async def snapshot(self) -> str | None:
        """Return what a fork needs: storage, sites, tabs, and the actions so far."""
        kept = await self.browser.storage()
        if kept["look"].get("dialog"):
            return None  # the continuation of a page with an open dialog is not stored anywhere
        state = {
            "log": self._log,
            "last": list(self._last),
            "storage": kept,
            "unmatched": self._unmatched,
        }
        return json.dumps(state)

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Open the task at a snapshot: from storage if that gives the same page, else by replay.

        The method, and whether the picture is identical too, is reported in the signal ``fork`` of
        the next turn.

        Raises:
            ForkDiverged: neither method restored the page.
        """
        state = json.loads(snapshot)
        kept, digest = state["storage"], state["storage"]["look"].get("digest")
        await self._open(task, seed or 0, storage=kept["storage"], state=kept["sites"])
        by = "storage"
        found = await self.browser.adopt(kept) if self.storable else ""
        if found != digest:
            await self.close()
            await self._start(task, seed or 0)
            by = "replay"
            # Ids are assigned at each look, so look as often as the agent did.
            await self._look()
            for turn in state["log"]:
                await self.browser.act(turn, **self._looks)
        look = await self._look()
        if look.digest != digest:
            raise ForkDiverged(
                f"task {task.id!r}: neither stored state nor replay gives the page that was "
                "forked; declare it not replayable"
            )
        self._log = state["log"]
        number, first = state["unmatched"]
        self._unmatched = (number, first)
        self._last = (state["last"][0], state["last"][1])
        self._fork = {"by": by, "same_picture": look.mark == state["last"][1]}

    async def close(self) -> None:
        """Close the sandbox, and with it the browser; write the traffic if it is recorded."""
        browser, self._browser = self._browser, None
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        try:
            if browser is not None and self._har_folder is not None and self._task is not None:
                await self._save_har(browser, self._har_folder, self._task.id)
        finally:
            await sandbox.close()

    @staticmethod
    async def _save_har(browser: Browser, folder: Path, task: str) -> None:
        """Write the recorded traffic; a browser that has ended has none."""
        path = await asyncio.to_thread(_new_file, folder, task)
        try:
            async with asyncio.timeout(_SAVE_SECONDS):
                await browser.save_har(path)
        except (TrajgymError, TimeoutError) as error:
            path.unlink(missing_ok=True)
            _log.warning("the traffic of task %r could not be saved: %s", task, error)


class BrowserEnv(BrowserEnvBase):
    """Tasks on pages, verified by the state of their sites: ``trajgym.envs`` id ``browser``."""

    task_data = BrowserRecord

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return browser tasks; see :func:`load_browser_tasks`."""
        return load_browser_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return the turns of the scripted agent in a built-in task; every third sample fails."""
        return browser_script(task, sample)

    @property
    def record(self) -> BrowserRecord:
        """The task."""
        if self._task is None:
            raise GuiDied("no task: reset was not called")
        return BrowserRecord.of(self._task)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """See :meth:`BrowserEnvBase.sandbox_spec`; with a network only if the task allows it."""
        record = BrowserRecord.of(task)
        return browser_spec(
            image=self._image,
            memory=self._memory,
            network=record.network,
            allow=record.allow,
            folders=record.folders,
            labels=dict(self.labels),
        )

    def browser_options(self, task: Task) -> dict[str, Any]:
        """See :meth:`BrowserEnvBase.browser_options`."""
        record = BrowserRecord.of(task)
        of_task: dict[str, Any] = {
            "sites": record.sites,
            "pages": record.pages,
            "hosts": record.hosts,
            "har": record.har,
            "har_ignore": record.har_ignore,
        }
        return {**self._browser_options, **of_task}

    async def begin(self, task: Task, seed: int) -> str:
        """See :meth:`BrowserEnvBase.begin`."""
        del seed
        record = BrowserRecord.of(task)
        if record.start_url != "about:blank":
            await self.browser.goto(record.start_url)
        return record.instruction

    def distance(self, look: BrowserLook) -> float | None:
        """See :meth:`BrowserEnvBase.distance`."""
        checks = self.record.checks
        return goal_distance(checks, look.task.get("sites") or {}) if checks else None

    async def verify(self) -> Outcome:
        """Compare the states of the sites and the answer with those that the task requires."""
        record = self.record
        states = (await self.browser.task()).get("sites") or {}
        held = [check.holds(states) for check in record.checks]
        text = record.said(self.answer_given or "")
        passed = all(held) and text and self.gave_up == record.infeasible
        details = {"checks": held, "answer": self.answer_given, "answer_ok": text}
        details |= self.unmatched_details()
        return Outcome(score=float(passed), passed=passed, details=details)


def _new_file(folder: Path, task: str) -> Path:
    """Create a file for the traffic of one attempt at a task, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"[^\w.-]", "_", task)[:100]
    for number in count():
        path = folder / f"{plain}-{number}.har"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError


def _clock(given: str | None) -> str | None:
    if given is not None:
        try:
            datetime.fromisoformat(given)
        except ValueError as error:
            raise InvalidInput(f"clock {given!r}: use an ISO time: 2026-05-01T09:30") from error
    return given


def _device_scale(given: float) -> float:
    if not 0.5 <= given <= 4:
        raise InvalidInput(f"device_scale {given}: use 0.5 to 4")
    return given

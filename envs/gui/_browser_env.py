"""The browser environment: tasks on web pages, seen as pictures and elements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trajgym.envs import Budgets, Env, EnvironmentFault, ForkDiverged, ToolResult
from trajgym.envs.gui._actions import Finish, GiveUp, Point, Say, Scale, Size, to_wire
from trajgym.envs.gui._browser import (
    BROWSER_IMAGE,
    BROWSER_SIZE,
    Browser,
    BrowserLook,
    Dialogs,
    browser_spec,
)
from trajgym.envs.gui._browser_demo import browser_script
from trajgym.envs.gui._browser_spaces import SPACES, ActionSpace, check_space
from trajgym.envs.gui._browser_tasks import BrowserRecord, load_browser_tasks
from trajgym.envs.gui._browser_view import draw_marks, look_text
from trajgym.envs.gui._desktop import PictureForm
from trajgym.envs.gui._errors import BadAction, GuiDied
from trajgym.envs.gui._goals import goal_distance
from trajgym.envs.sandbox import (
    hold_shared_providers,
    release_shared_providers,
    shared_provider,
)
from trajgym.trajectory import InvalidInput, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Image
    from trajgym.envs.gui._actions import Action
    from trajgym.envs.sandbox import Sandbox, SandboxSpec
    from trajgym.trajectory import Message, Task

__all__ = ["BrowserEnv", "BrowserEnvBase"]

_LOOKS = {"screenshot", "cursor_position", "wait"}


class BrowserEnvBase(Env):
    """What tasks in a browser share: the sandbox, observations, actions, forks.

    Each turn has the signals ``screen_changed``, ``repeated_action`` (the same actions as in the
    turn before, and nothing changed), ``actions`` (their wire form, in pixels of the screen),
    ``screen`` (its size), ``url``, ``element_found`` where an action named an element,
    ``action_ok``, and ``goal_distance`` where the task knows it: the share of its checks that do
    not hold yet. The first turn of a fork from a snapshot also has ``fork``.

    Args:
        actions: the action space: ``elements`` (tools on element ids), ``openai``, ``anthropic``,
            ``browsergym`` or ``ui-tars`` (both text).
        size: width and height of the page in pixels.
        shown: width and height of the pictures, and of the coordinates that the agent speaks;
            ``size`` if None. It must have the same proportions.
        picture: ``png``, ``jpeg``, or ``none``.
        quality: of a JPEG.
        tree: whether the elements are listed; by default where actions name elements.
        tree_chars: bound of that list.
        marks: whether elements get numbered boxes in the picture; needs ``trajgym[gui]``.
        console: whether messages and errors of pages are told.
        dialogs: ``accept``, ``dismiss``, or ``ask``: a dialog stays until the agent answers it.
        thousandths: for ``ui-tars``: points are in thousandths of the picture.
        action_seconds: most that one action may take.
        load_seconds: most that a page may take to load.
        image: the container image; ``scripts/gui-image.sh`` makes it.
        memory: MiB that the sandbox may use.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, seconds_per_turn=300.0)
    hint: ClassVar[str] = ""
    needs_miniwob: ClassVar[bool] = False
    storable: ClassVar[bool] = True
    """Whether cookies, storage and sites hold the whole state of a page, as a rule."""
    _variants: ClassVar[dict[tuple[type, str], type[Env]]] = {}

    def __init__(
        self,
        *,
        actions: ActionSpace = "elements",
        size: Sequence[int] = BROWSER_SIZE,
        shown: Sequence[int] | None = None,
        picture: Literal["png", "jpeg", "none"] = "jpeg",
        quality: int = 70,
        tree: bool | None = None,
        tree_chars: int = 12_000,
        marks: bool = False,
        console: bool = False,
        dialogs: Dialogs = "accept",
        thousandths: bool = False,
        action_seconds: float = 10.0,
        load_seconds: float = 15.0,
        image: str = BROWSER_IMAGE,
        memory: int = 1536,
    ) -> None:
        self.size = _size(size, "size")
        self.scale = Scale(self.size if shown is None else _size(shown, "shown"), self.size)
        self.spoken = Scale(Size(1000, 1000), self.size) if thousandths else self.scale
        _check_proportions(self.scale)
        if picture not in {"png", "jpeg", "none"}:
            raise InvalidInput(f"picture {picture!r}: use 'png', 'jpeg' or 'none'")
        if marks and picture == "none":
            raise InvalidInput("marks are drawn into pictures: set picture to 'png' or 'jpeg'")
        self.space = check_space(actions)
        self._tree = self.space in {"elements", "browsergym"} if tree is None else tree
        self._tree_chars = tree_chars
        self._marks, self._console = marks, console
        self._picture: PictureForm | None = None
        if picture != "none":
            self._picture = PictureForm(form=picture, size=self.scale.shown, quality=quality)
        self._browser_options: dict[str, Any] = {
            "dialogs": dialogs,
            "action_seconds": action_seconds,
            "load_seconds": load_seconds,
        }
        self._image, self._memory = image, memory
        self._sandbox: Sandbox | None = None
        self._browser: Browser | None = None
        self._task: Task | None = None
        self._seed = 0
        self._last: tuple[list[dict[str, Any]], str] = ([], "")
        self._log: list[list[dict[str, Any]]] = []
        self._fork: dict[str, Any] | None = None
        self.answer_given: str | None = None
        self.gave_up = False

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Env]:
        """Return this class with the tools of the action space that ``actions`` names."""
        name = check_space(config.get("actions", "elements"))
        if issubclass(cls, SPACES[name]):
            return cls
        key = (cls, name)
        if key not in BrowserEnvBase._variants:
            made = type(f"{cls.__name__}[{name}]", (SPACES[name], cls), {"__module__": __name__})
            BrowserEnvBase._variants[key] = made
        return BrowserEnvBase._variants[key]

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

    # What a kind of task brings ------------------------------------------------------------

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return where the browser of a task runs."""
        del task
        return browser_spec(
            image=self._image,
            memory=self._memory,
            miniwob=self.needs_miniwob,
            labels=dict(self.labels),
        )

    def make_browser(self, task: Task, sandbox: Sandbox) -> Browser:
        """Return the browser of a task, not opened yet."""
        del task
        return Browser(sandbox, size=self.size, **self._browser_options)

    def storage_of(self, task: Task) -> Mapping[str, Any] | None:
        """Return cookies and local storage that the task begins with, or None."""
        del task
        return None

    async def begin(self, task: Task, seed: int) -> str:
        """Bring the open browser to where the task begins, and return what it asks for."""
        raise NotImplementedError

    def distance(self, look: BrowserLook) -> float | None:
        """Return how far the task is from its goal, 0 to 1; None if nobody knows."""
        del look
        return None

    def ends(self, look: BrowserLook) -> bool:
        """Whether the task has ended by itself."""
        del look
        return False

    def takes_answer(self) -> bool:
        """Whether a message to the user ends the task."""
        return True

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
        said = f"{asked}\n\n{self.hint}" if self.hint else asked
        return ToolResult(content=self._shown(look, [said]))

    async def _start(self, task: Task, seed: int) -> str:
        await self._open(task, seed)
        try:
            return await self.begin(task, seed)
        except BadAction as error:
            raise EnvironmentFault("gui", f"the task can't be opened: {error}") from error

    async def _open(
        self,
        task: Task,
        seed: int,
        *,
        storage: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._task, self._seed = task, seed
        provider = await shared_provider("docker")
        self._sandbox = await provider.start(self.sandbox_spec(task))
        self._browser = self.make_browser(task, self._sandbox)
        await self._browser.open(storage=storage or self.storage_of(task), state=state)

    async def _look(self) -> BrowserLook:
        return await self.browser.look(
            self._picture, boxes=self._marks, tree_chars=self._tree_chars
        )

    async def perform(self, actions: Sequence[Action]) -> ToolResult:
        """Carry out actions and show what there is to see then.

        Raises:
            GuiDied: the browser is gone.
        """
        end = next((i for i, a in enumerate(actions) if self._is_end(a)), len(actions))
        look = await self.browser.act(
            actions[:end], self._picture, boxes=self._marks, tree_chars=self._tree_chars
        )
        wire = [to_wire(action) for action in actions]
        self._log.append(wire[: len(look.errors)])
        failed = [(i, error) for i, error in enumerate(look.errors, 1) if error]
        said = [
            f"Error: {error}" if len(actions) == 1 else f"Error: action {i}: {error}"
            for i, error in failed
        ]
        done = self.ends(look)
        if end < len(actions) and not failed:
            self._finish(actions[end])
            done = True
        if any(action["do"] == "cursor_position" for action in wire):
            said.append("X={},Y={}".format(*self._pointer(look)))
        signals = self._signals(wire, look, ok=not failed)
        return ToolResult(content=self._shown(look, said), signals=signals, done=done)

    def _is_end(self, action: Action) -> bool:
        return isinstance(action, Finish | GiveUp) or (
            isinstance(action, Say) and self.takes_answer()
        )

    def _finish(self, action: Action) -> None:
        if isinstance(action, GiveUp):
            self.gave_up = True
        elif isinstance(action, Finish):
            self.answer_given = action.answer
        elif isinstance(action, Say):
            self.answer_given = action.text

    def _pointer(self, look: BrowserLook) -> tuple[int, int]:
        x, y = look.pointer
        return self.scale.shown_point(Point(round(x), round(y)))

    def _shown(self, look: BrowserLook, said: Sequence[str]) -> list[str | Image]:
        text = look_text(look, tree=self._tree, console=self._console, focused=True)
        content: list[str | Image] = ["\n\n".join([*said, text])]
        if look.picture is not None:
            marked = self._marks and look.boxes
            picture = look.picture
            content.append(draw_marks(picture, look.boxes, self.size) if marked else picture)
        return content

    def _signals(
        self, wire: list[dict[str, Any]], look: BrowserLook, *, ok: bool
    ) -> dict[str, Any]:
        before, mark = self._last
        self._last = (wire, look.mark)
        acted = any(action["do"] not in _LOOKS for action in wire)
        signals: dict[str, Any] = {
            "screen_changed": look.mark != mark,
            "repeated_action": acted and wire == before and look.mark == mark,
            "actions": wire,
            "screen": list(self.size),
            "url": look.url,
            "action_ok": ok,
        }
        if look.found:
            signals["element_found"] = all(look.found)
        distance = self.distance(look)
        if distance is not None:
            signals["goal_distance"] = distance
        if self._fork is not None:
            signals["fork"], self._fork = self._fork, None
        return signals

    # Forks --------------------------------------------------------------------------------

    async def snapshot(self) -> str | None:
        """Keep what this moment can be made again from: storage, sites, tabs, and the actions."""
        kept = await self.browser.storage()
        if kept["look"].get("dialog"):
            return None  # what a page that waits for an answer will do is kept nowhere
        state = {"log": self._log, "last": list(self._last), "storage": kept}
        return json.dumps(state)

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Open the task at a snapshot: from storage where that gives the same page, else by replay.

        How it was done, and whether the picture is the same too, stands in the signal ``fork`` of
        the next turn.

        Raises:
            ForkDiverged: neither way led to the page that was seen then.
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
            # Elements get their ids when they are looked at: look as often as the agent did.
            await self._look()
            for turn in state["log"]:
                await self.browser.act(turn, tree_chars=self._tree_chars)
        look = await self._look()
        if look.digest != digest:
            raise ForkDiverged(
                f"task {task.id!r}: neither stored state nor replay gives the page that was "
                "forked; declare it not replayable"
            )
        self._log = state["log"]
        self._last = (state["last"][0], state["last"][1])
        self._fork = {"by": by, "same_picture": look.mark == state["last"][1]}

    async def close(self) -> None:
        """Close the sandbox, and with it the browser."""
        sandbox, self._sandbox, self._browser = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()


class BrowserEnv(BrowserEnvBase):
    """Tasks on pages, verified by the state of their sites: ``trajgym.envs`` id ``browser``."""

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return browser tasks; see :func:`load_browser_tasks`."""
        return load_browser_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return what the scripted agent does in a built-in task; every third sample errs."""
        return browser_script(task, sample)

    @property
    def record(self) -> BrowserRecord:
        """The task."""
        if self._task is None:
            raise GuiDied("no task: reset was not called")
        return BrowserRecord.of(self._task)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """See :meth:`BrowserEnvBase.sandbox_spec`; with a network only if the task allows it."""
        return browser_spec(
            image=self._image,
            memory=self._memory,
            network=BrowserRecord.of(task).network,
            labels=dict(self.labels),
        )

    def make_browser(self, task: Task, sandbox: Sandbox) -> Browser:
        """See :meth:`BrowserEnvBase.make_browser`."""
        record = BrowserRecord.of(task)
        return Browser(
            sandbox,
            size=self.size,
            sites=record.sites,
            pages=record.pages,
            hosts=record.hosts,
            **self._browser_options,
        )

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
        """Compare the states of the sites and the answer with what the task wants."""
        record = self.record
        states = (await self.browser.task()).get("sites") or {}
        held = [check.holds(states) for check in record.checks]
        said = record.said(self.answer_given or "")
        passed = all(held) and said and self.gave_up == record.infeasible
        details = {"checks": held, "answer": self.answer_given, "answer_ok": said}
        return Outcome(score=float(passed), passed=passed, details=details)


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

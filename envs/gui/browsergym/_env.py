"""BrowserGym's tasks as an environment."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, EnvironmentFault, ToolResult
from trajgym.envs.gui._errors import BadAction, GuiDied, ScreenEnded
from trajgym.envs.gui._screen_env import PictureName, ScreenEnv
from trajgym.envs.gui.browser import miniwob_html
from trajgym.envs.gui.browsergym._session import (
    INSIDE,
    MINIWOB_INSIDE,
    SOURCE,
    TASKS_INSIDE,
    BrowserGym,
    BrowserGymLook,
    Wanted,
)
from trajgym.envs.gui.browsergym._tasks import BrowserGymRecord, load_browsergym_tasks
from trajgym.envs.sandbox import Limits, ProviderName, SandboxEnv, SandboxSpec
from trajgym.trajectory import InvalidInput, Outcome, text_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import Image
    from trajgym.envs.sandbox import Sandbox
    from trajgym.trajectory import Message, Task

__all__ = ["BROWSERGYM_IMAGE", "BrowserGymEnv"]

BROWSERGYM_IMAGE = "trajgym/browsergym:bookworm"
_MIB = 1 << 20
_SUBSETS = ("chat", "infeas", "bid", "coord", "nav", "tab")
_HINT = (
    "Answer with one call, such as click('12'), fill('12', 'text'), press('12', 'Enter'), "
    "scroll(0, 300), mouse_click(40, 60), goto('http://...'), go_back() or noop(). Elements have "
    "ids in brackets, like [12]. To answer, call send_msg_to_user('the answer'); if the task can't "
    "be done, report_infeasible('why')."
)


class BrowserGymEnv(SandboxEnv):
    """BrowserGym's task classes, in BrowserGym's own environment.

    Its id is ``trajgym.envs.gui.browsergym:BrowserGymEnv``. The task's ``setup``, ``validate`` and
    ``teardown``, the observations and the execution of actions are BrowserGym's, in a container
    with Debian's Chromium. The score is the sum of the rewards of the task. Each turn has the
    signals ``url``, ``reward``, ``action_ok``, ``screen_changed`` and ``repeated_action``.

    Args:
        subsets: BrowserGym's sets of actions that the agent may use.
        picture: ``png``, ``jpeg``, or ``none``.
        quality: quality of JPEG images.
        tree_chars: bound of the accessibility tree as text; 0 for none.
        html_chars: bound of the pruned HTML; 0 for none.
        slow_mo: milliseconds that Playwright waits after each operation; None takes the task's, a
            second by default.
        timeout: limit of Playwright's operations in milliseconds; None takes the task's.
        delay: seconds before an observation; BrowserGym's default.
        packages: folders of this machine whose modules are importable inside, with task classes.
        allow: the addresses that pages may reach without a network; see :class:`SandboxSpec`.
        network: whether pages have the network access of the host.
        image: the container image; ``scripts/browsergym-image.sh`` makes it.
        memory: MiB that the sandbox may use.
    """

    provider_name: ClassVar[ProviderName] = "docker"
    agent_programs: ClassVar[bool] = False
    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, seconds_per_turn=300.0)
    task_data = BrowserGymRecord

    def __init__(
        self,
        *,
        subsets: Sequence[str] = _SUBSETS,
        picture: PictureName = "png",
        quality: int = 80,
        tree_chars: int = 12_000,
        html_chars: int = 0,
        slow_mo: int | None = 0,
        timeout: int | None = None,
        delay: float = 0.5,
        packages: Sequence[str] = (),
        allow: Sequence[str] = (),
        network: bool = False,
        image: str = BROWSERGYM_IMAGE,
        memory: int = 2048,
    ) -> None:
        if picture not in {"png", "jpeg", "none"}:
            raise InvalidInput(f"picture {picture!r}: use 'png', 'jpeg' or 'none'")
        missing = [path for path in packages if not Path(path).is_dir()]
        if missing:
            raise InvalidInput(f"packages: there is no folder {missing[0]!r}")
        shown = "" if picture == "none" else picture
        self._wanted = Wanted(picture=shown, quality=quality, tree=tree_chars, html=html_chars)
        self._options = {
            "subsets": list(subsets),
            "slow_mo": slow_mo,
            "timeout": timeout,
            "delay": delay,
        }
        self._packages = {f"{TASKS_INSIDE}/{n}": Path(p) for n, p in enumerate(packages)}
        self._allow, self._network = list(allow), network
        self._image, self._memory = image, memory
        self._gym: BrowserGym | None = None
        self._sandbox: Sandbox | None = None
        self._reward = 0.0
        self._info: Any = None
        self._last = ("", "")
        """The last action, and the mark of the observation after it."""

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return tasks of BrowserGym; see :func:`load_browsergym_tasks`."""
        return load_browsergym_tasks(source)

    def _spec(self, record: BrowserGymRecord) -> SandboxSpec:
        readonly = {f"{INSIDE}/trajgym_browsergym": SOURCE, **self._packages}
        try:
            readonly[MINIWOB_INSIDE] = miniwob_html()
        except MissingExtra:  # only its own tasks need it
            if "miniwob" in record.task:
                raise
        return SandboxSpec(
            image=self._image,
            readonly=readonly,
            network=self._network,
            allow=self._allow,
            labels=dict(self.labels),
            limits=Limits(memory=self._memory * _MIB, pids=1024, cpus=2.0),
        )

    async def reset(self, task: Task, seed: int | None) -> ToolResult:
        """Start the sandbox and the task's own browser, and show the page."""
        record = BrowserGymRecord.of(task)
        self._sandbox = await self.start_sandbox(self._spec(record))
        self._gym = BrowserGym(self._sandbox, self._wanted, self._options)
        try:
            goal, look = await self._gym.open(
                record.task, record.arguments, seed or 0, list(self._packages)
            )
        except BadAction as error:
            raise EnvironmentFault("env", f"the task can't be opened: {error}") from error
        self._last = ("", _mark(look))
        return ToolResult(content=_shown(look, [goal, _HINT]))

    async def respond(self, message: Message) -> ToolResult:
        """Execute the action of a message, and let the task validate the state."""
        return await self._step(text_of(message).strip())

    async def _step(self, action: str) -> ToolResult:
        gym, sandbox = self._running
        try:
            look, found = await gym.step(action)
        except ScreenEnded as error:
            await ScreenEnv.screen_ended(error, sandbox)
        self._reward += found["reward"]
        self._info = found["info"]
        mark, (before, seen) = _mark(look), self._last
        self._last = (action, mark)
        signals: dict[str, Any] = {
            "url": look.url,
            "reward": found["reward"],
            "action_ok": not look.error,
            "screen_changed": mark != seen,
            "repeated_action": action == before and mark == seen,
        }
        notes = [f"Error: {look.error}"] if look.error else []
        return ToolResult(content=_shown(look, notes), signals=signals, done=found["done"])

    async def on_refusal(self, error: str) -> ToolResult:
        """Answer a call of a tool, of which there are none, with the error and the page."""
        gym, sandbox = self._running
        try:
            look = await gym.look()
        except ScreenEnded as ended:
            await ScreenEnv.screen_ended(ended, sandbox)
        return ToolResult(
            content=_shown(look, [f"Error: {error}"]), signals={"url": look.url, "action_ok": False}
        )

    @property
    def _running(self) -> tuple[BrowserGym, Sandbox]:
        if self._gym is None or self._sandbox is None:
            raise GuiDied("BrowserGym is closed")
        return self._gym, self._sandbox

    async def verify(self) -> Outcome:
        """Return the rewards that the task gave."""
        details: Mapping[str, Any] = {"reward": self._reward, "info": self._info}
        return Outcome(score=self._reward, passed=self._reward > 0, details=dict(details))

    async def close(self) -> None:
        """Close the browser and the sandbox."""
        self._gym = None
        await super().close()


def _mark(look: BrowserGymLook) -> str:
    digest = hashlib.sha256(f"{look.url}\n{look.tree}\n{look.html}".encode())
    digest.update(look.picture.data if look.picture is not None else b"")
    return digest.hexdigest()


def _shown(look: BrowserGymLook, notes: Sequence[str]) -> list[str | Image]:
    parts = [*(one for one in notes if one), f"Page: {look.url}"]
    if len(look.tabs) > 1:
        tabs = [f"{'*' if at == look.active else ''}{at} {url}" for at, url in enumerate(look.tabs)]
        parts[-1] = f"Tabs: {', '.join(tabs)}"
    parts += [one for one in (look.tree, look.html) if one]
    return ["\n\n".join(parts), *([look.picture] if look.picture is not None else [])]

"""The queue of turns that wait for judges, and the calls to them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.faults import contained, describe
from trajgym.rollout.annotators._annotate import signals_of
from trajgym.server.sessions import ENV
from trajgym.trajectory import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout.annotators import Annotator
    from trajgym.server.judging._judges import Judges
    from trajgym.server.sessions import LiveSession, SessionBook
    from trajgym.trajectory import SessionTree, Turn

__all__ = ["JudgeWork"]

_CLOSE_SECONDS = 10.0
_FIRST_WAIT = 0.25


class _Key(NamedTuple):
    source: str
    turn: int


@dataclass(slots=True)
class _Failures:
    """How often a turn failed while its judge answered for others."""

    count: int
    answered: int
    """Number of answers at the last failure."""


@dataclass(slots=True, eq=False)
class _State:
    """What is known of a session's signals."""

    done: set[_Key]
    tree: SessionTree | None
    """Of a session that has ended."""
    busy: set[_Key] = field(default_factory=set)
    failures: dict[_Key, _Failures] = field(default_factory=dict)
    answers: dict[_Key, dict[str, Any]] = field(default_factory=dict)
    """Signals that could not be recorded yet; their judges are not asked again."""


class JudgeWork:
    """Runs annotators on turns as they arrive, apart from the calls of agents.

    What is to do is derived from the store: turns without signals of an annotator. Nothing of it is
    lost when the server is killed or a judge is down for days. Sessions with news come first, then
    those that earlier processes left without signals.

    Args:
        book: the sessions.
        judges: the annotators, and their limits.
    """

    def __init__(self, book: SessionBook, judges: Judges) -> None:
        self.judged: Counter[str] = Counter()
        """Turns that got signals, by source."""
        self.failed: Counter[str] = Counter()
        """Failures, by source."""
        self.given_up: Counter[str] = Counter()
        """Turns that were given up, by source."""
        self.running = 0
        self._book = book
        self._judges = judges
        self._log = book.settings.log
        self._waiting: dict[str, None] = {}
        self._backlog: dict[str, None] = {}
        self._states: dict[str, _State] = {}
        self._looking = ""
        self._answered = 0
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._wait = 0.0
        self._slots = asyncio.Semaphore(judges.concurrency)
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of sessions that have not been looked at since their last news."""
        return len(self._waiting) + len(self._backlog)

    @property
    def failing_seconds(self) -> float:
        """For how long no call to a judge has succeeded; 0 if the last one did."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def start(self) -> None:
        """Begin to judge, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="trajgym-judges")

    async def shut(self) -> None:
        """Cancel calls to judges and close the annotators; turns without signals stay so."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        for annotator in self._judges.annotators:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    with contained():
                        await annotator.close()
            except Exception:  # noqa: BLE001 - boundary: an annotator
                self._log.exception("judge %s could not be closed", annotator.source)

    def note(self, session: LiveSession) -> None:
        """Take note of a session's news; does not look at it yet."""
        self._add(session.id)

    async def settled(self, sessions: Collection[str]) -> None:
        """Return once these sessions have their signals, or no judge has answered for a while."""
        for name in sessions:
            self._add(name)
        while any(map(self._open, sessions)):
            left = None
            if self._failing_since is not None:
                left = self._judges.grace - self.failing_seconds
                if left <= 0:
                    return
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                continue

    # The queue ----------------------------------------------------------------------------

    def _add(self, name: str) -> None:
        self._waiting[name] = None
        self._news.set()

    def _open(self, name: str) -> bool:
        state = self._states.get(name)
        busy = state is not None and bool(state.busy)
        return busy or name in self._waiting or name == self._looking

    def _tell(self) -> None:
        """Wake those who wait for a session."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def _run(self) -> None:
        found = await asyncio.to_thread(self._recorded)
        self._backlog = dict.fromkeys(name for name in found if name not in self._waiting)
        async with asyncio.TaskGroup() as calls:
            while True:
                # No deadline: there may be no news for days.
                await self._next()
                try:
                    await self._look(self._looking, calls)
                except Exception:  # noqa: BLE001 - boundary: an annotator; the other sessions go on
                    self._log.exception("session %s can't be judged", self._looking)
                finally:
                    self._looking = ""
                    self._tell()

    async def _next(self) -> None:
        """Choose the next session; those with news come first."""
        while not self._waiting and not self._backlog:
            self._news.clear()
            await self._news.wait()
        queue = self._waiting or self._backlog
        self._looking = next(iter(queue))
        del queue[self._looking]

    async def _look(self, name: str, calls: asyncio.TaskGroup) -> None:
        """Begin to judge a session's turns, at most one for each slot."""
        state = await self._state(name)
        live = self._book.live(name)
        tree = state.tree if live is None else live.recorder.tree
        if tree is None:
            return
        todo = await asyncio.to_thread(self._todo, state, tree)
        if not todo and not state.busy and live is None:
            self._states.pop(name, None)
        for annotator, turn in todo[: self._judges.concurrency]:
            await self._recovered()
            await self._slots.acquire()
            key = _Key(annotator.source, turn.index)
            state.busy.add(key)
            calls.create_task(self._judge(annotator, name, state, tree, turn))
        if todo[self._judges.concurrency :]:
            self._waiting[name] = None

    async def _state(self, name: str) -> _State:
        """Return what is known of a session; read from the store at first."""
        state = self._states.get(name)
        ended = self._book.live(name) is None
        if state is not None and not ended:
            state.tree = None  # it has been reopened
        if state is None or (ended and state.tree is None):
            read, tree = await asyncio.to_thread(self._read, name, ended=ended)
            if state is None:
                state = self._states[name] = _State(read, None)
            state.tree = tree
        return state

    def _todo(self, state: _State, tree: SessionTree) -> list[tuple[Annotator, Turn]]:
        """Return what is missing, oldest turn first. Blocks."""
        found: list[tuple[int, Annotator, Turn]] = []
        for annotator in self._judges.annotators:
            for turn in annotator.turns(tree):
                key = _Key(annotator.source, turn.index)
                failures = state.failures.get(key)
                given_up = failures is not None and failures.count >= self._judges.tries
                if key not in state.done and key not in state.busy and not given_up:
                    found.append((turn.index, annotator, turn))
        found.sort(key=lambda one: one[0])
        return [(annotator, turn) for _, annotator, turn in found]

    async def _recovered(self) -> None:
        """Wait before the next call while a judge fails."""
        if (left := self._retry_at - time.monotonic()) > 0:
            await asyncio.sleep(left)

    # One turn -----------------------------------------------------------------------------

    async def _judge(
        self, annotator: Annotator, name: str, state: _State, tree: SessionTree, turn: Turn
    ) -> None:
        key, begun = _Key(annotator.source, turn.index), time.monotonic()
        self.running += 1
        try:
            signals = state.answers.get(key)
            if signals is None:
                signals = await signals_of(annotator, tree, turn, self._judges.seconds)
                state.answers[key] = signals
            await self._book.add_signals(name, turn.index, signals, annotator.source)
        except StoreError as error:  # no fault of the judge's
            self._log.error("session %s: signals can't be recorded: %s", name, error)
            self._failing_since = self._failing_since or time.monotonic()
            self._hold_off(begun)
        except Exception as error:  # noqa: BLE001 - boundary: an annotator; the turn is tried again
            state.answers.pop(key, None)
            self._note_failure(state, key, begun, error)
        else:
            del state.answers[key]
            state.done.add(key)
            state.failures.pop(key, None)
            self.judged[key.source] += 1
            self._answered += 1
            self._failing_since, self._retry_at, self._wait = None, 0.0, 0.0
        finally:
            self.running -= 1
            self._slots.release()
            state.busy.discard(key)
            self._add(name)
            self._tell()

    def _note_failure(self, state: _State, key: _Key, begun: float, error: BaseException) -> None:
        now = time.monotonic()
        self.failed[key.source] += 1
        if self._failing_since is None:
            self._failing_since = now
            self._log.warning("judge %s: %s; it is asked again", key.source, describe(error))
        self._hold_off(begun)
        known = state.failures.setdefault(key, _Failures(0, -1))
        known.count += self._answered > known.answered
        known.answered = self._answered
        if known.count >= self._judges.tries:
            self.given_up[key.source] += 1
            self._log.warning("judge %s: gave up turn %d: %s", *key, describe(error))

    def _hold_off(self, begun: float) -> None:
        """Wait longer before the next call than before this one."""
        if begun >= self._retry_at:  # not one of several that were under way together
            self._wait = min(2 * self._wait or _FIRST_WAIT, self._judges.longest_wait)
            self._retry_at = time.monotonic() + self._wait

    # The store; these block ---------------------------------------------------------------

    def _recorded(self) -> list[str]:
        """Return the sessions of outside agents that have turns."""
        return [one.record.id for one in self._book.summaries() if one.turns and _ours(one.record)]

    def _read(self, name: str, *, ended: bool) -> tuple[set[_Key], SessionTree | None]:
        with self._book.settings.store.read() as run:
            done = {_Key(one.source, one.turn) for one in run.annotations(name)}
            return done, run.session(name) if ended else None


def _ours(record: Any) -> bool:
    return bool(record.env == ENV)

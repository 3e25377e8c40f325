"""One agent's attempt at one task: the other half of every loop, recorded turn by turn."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import zlib
from typing import TYPE_CHECKING, NamedTuple, Self

from trajgym.envs._clock import OutOfTime
from trajgym.envs._errors import ForkDiverged, SessionEnded, Unforkable
from trajgym.envs._execute import Execution, Fault, content_parts, fault_of
from trajgym.envs._ledger import Ledger, TokenTail, as_reply, tail_of, usage_of
from trajgym.envs._meter import Meter
from trajgym.envs._threads import Worker, finish_despite_cancel
from trajgym.envs._tools import ToolResult, tools_of
from trajgym.envs._verdict import as_outcome
from trajgym.trajectory import (
    InvalidInput,
    SessionRecord,
    Status,
    StoreError,
    Turn,
    Usage,
    check_message,
    replace_surrogates,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType

    from trajgym.envs._budgets import Budgets
    from trajgym.envs._clock import AgentClock
    from trajgym.envs._env import Env
    from trajgym.envs._ledger import Taken
    from trajgym.envs._reply import Reply, TurnLimits
    from trajgym.envs._spec import EnvSpec
    from trajgym.trajectory import (
        Attempt,
        Edge,
        IntArray,
        Message,
        Outcome,
        SessionTree,
        Store,
        Task,
        ToolSchema,
    )

__all__ = ["Session", "StepResult"]

_log = logging.getLogger(__name__)
_GRACE = 30.0
"""Seconds for recording an end and the like, on top of an environment's own deadlines."""


class StepResult(NamedTuple):
    """What a step gave back; by then it is in the store."""

    observation: list[Message]
    """Tool results, or the environment's answer; empty if there was none."""
    reward: float | None
    """The environment's step reward."""
    done: bool
    """The attempt has ended; see ``session.status`` and ``session.outcome``."""


class Session:
    """One attempt at a task, from reset to outcome.

    ::

        async with Session(spec, task, store=store) as session:
            while not session.done:
                reply = await session.ask(policy(session.messages, session.tools))
                if reply is not None:
                    await session.step(reply)
        print(session.status, session.outcome)

    Failures are states, not exceptions: if the environment breaks, the session is ``done`` with
    status ``failed:<part>``. Leaving the block closes the environment, whatever happened; leaving
    it before the end records ``cancelled`` (or ``failed`` for an exception).

    Args:
        spec: builds the environment; once more for every fork.
        task: the problem instance.
        store: where every turn goes before its observation is returned; None keeps it in memory.
        session_id: unique in the run; random by default.
        group: id of the group, if it belongs to one.
        sample: which sample of the group's task.
        seed: for the environment; derived from the session id by default, so that it is recorded
            and a replay can repeat it.
        budgets: instead of the environment's own.
        labels: recorded with the session and given to the environment.
        snapshot_every: ask the environment for a snapshot after every k-th turn; 0 never.

    Raises:
        UnknownEnv: the spec names no environment.
    """

    def __init__(
        self,
        spec: EnvSpec,
        task: Task,
        *,
        store: Store | None = None,
        session_id: str | None = None,
        group: str | None = None,
        sample: int = 0,
        seed: int | None = None,
        budgets: Budgets | None = None,
        labels: Mapping[str, str] | None = None,
        snapshot_every: int = 0,
    ) -> None:
        env_class = spec.resolve()
        session_id = session_id or uuid.uuid4().hex
        limits = budgets or env_class.budgets
        record = SessionRecord(
            id=session_id,
            task=task.id,
            env=spec.to_json(),
            group=group,
            sample=sample,
            seed=zlib.crc32(session_id.encode()) if seed is None else seed,
            tools=[tool.schema for tool in tools_of(env_class).values()],
            budgets=limits.to_json(),
            labels=dict(labels or {}),
            created_at=time.time(),
        )
        ledger = Ledger(record, store)
        self._open(spec, task, ledger, ledger.attempts[0], limits, snapshot_every)

    def _open(
        self,
        spec: EnvSpec,
        task: Task,
        ledger: Ledger,
        attempt: Attempt,
        budgets: Budgets,
        snapshot_every: int,
    ) -> None:
        self.spec = spec
        self.task = task
        self.budgets = budgets
        self.snapshot_every = snapshot_every
        self._ledger = ledger
        self._attempt = attempt
        self._meter = Meter(budgets)
        self._turns: list[Turn] = []
        self._conversation: list[Message] = []
        self._tail = TokenTail()
        self._env: Env | None = None
        self._worker = Worker(f"trajgym-env-{self.id[:8]}")
        self._forks: list[Session] = []
        self._is_fork = False
        self._stepping = False
        self._asked_at = 0.0

    # What a loop needs --------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id; forks share it."""
        return self._ledger.record.id

    @property
    def record(self) -> SessionRecord:
        """The session's head."""
        return self._ledger.record

    @property
    def tools(self) -> list[ToolSchema]:
        """JSON schemas of the environment's tools."""
        return self._ledger.record.tools

    @property
    def messages(self) -> list[Message]:
        """The conversation that the policy shall answer now; a later step leaves it as it is."""
        return self._conversation

    @property
    def done(self) -> bool:
        """True once the attempt has ended."""
        return self._attempt.status.ended

    @property
    def status(self) -> Status:
        """How the attempt ended, or ``running``."""
        return self._attempt.status

    @property
    def outcome(self) -> Outcome | None:
        """What verification found; None while running and for failures."""
        return self._attempt.outcome

    @property
    def attempt(self) -> Attempt:
        """The whole state of this attempt: status, cause, outcome, traceback."""
        return self._attempt

    @property
    def turns(self) -> list[Turn]:
        """The turns of this attempt, root first, those shared with the forked one included."""
        return list(self._turns)

    @property
    def tree(self) -> SessionTree:
        """The session with all its attempts, as recorded so far."""
        return self._ledger.tree()

    @property
    def prefix_ids(self) -> IntArray | None:
        """int32 ``[S]``: prompt and response ids of the last turn, None if it was not exact."""
        return self._tail.ids

    @property
    def prefix_messages(self) -> int:
        """How many of :attr:`messages` those ids hold: all but the last observation."""
        return len(self._conversation) - (len(self._turns[-1].observation) if self._turns else 0)

    @property
    def images(self) -> dict[str, bytes]:
        """Bytes of the images that the conversation may refer to, by hash."""
        return {name: image.data for name, image in self._ledger.images.items()}

    @property
    def limits(self) -> TurnLimits:
        """What the budgets leave for the next policy call."""
        return self._meter.limits

    @property
    def clock(self) -> AgentClock:
        """The agent's clock; hold it while the agent has to wait for others."""
        return self._meter.clock

    async def ask(self, call: Awaitable[Reply]) -> Reply | None:
        """Wait for a policy's answer on the agent's clock.

        Returns:
            The reply to :meth:`step` with; None if the agent's time ran out: the attempt has then
            been ended as truncated, verified and scored.
        """
        self._asked_at = time.time()
        used = self.clock.used
        try:
            async with self.clock.running(self._meter.seconds_left):
                reply = await call
        except OutOfTime:
            cut = self._meter.out_of_time()
            await self.truncate(cut.budget, str(cut))
            return None
        self.clock.give_back(min(reply.paused_seconds, self.clock.used - used))
        self._meter.turn_seconds += self.clock.used - used
        return reply

    async def step(self, reply: Reply | Message | str) -> StepResult:
        """Carry out an assistant message and record the turn.

        Args:
            reply: a :class:`Reply`, an assistant message, or its text.

        Returns:
            What the environment answered. The turn is durable by then.

        Raises:
            SessionEnded: the attempt is over.
            InvalidInput: not an assistant message, ids that do not fit, or a step in progress;
                nothing was recorded and the attempt goes on.
            StoreError: the turn could not be kept.
        """
        if self._env is None or self.done:
            raise SessionEnded(f"session {self.id}: the attempt is over ({self.status})")
        if self._stepping:
            raise InvalidInput(f"session {self.id}: another step is in progress")
        checked = as_reply(reply, len(self._ledger.turns))
        taken = None if checked.sampled is None else self._tail.take(checked.sampled)
        self._stepping = True
        try:
            return await self._step(self._env, checked, taken)
        finally:
            self._stepping = False

    async def truncate(self, budget: str, cause: str) -> None:
        """End the attempt because the agent used something up; it is verified and scored."""
        await self._end(Status("truncated", budget), cause)

    async def fail(self, part: str, cause: str, error: str = "") -> None:
        """End the attempt because something outside the agent's control broke; no score."""
        await self._end(Status("failed", part), cause, error)

    async def cancel(self, cause: str) -> None:
        """End the attempt because nobody wants it any more; no score."""
        await self._end(Status("cancelled"), cause)

    async def fork(self, turn: int | None) -> Session:
        """Open a rival attempt that shares this attempt's turns up to ``turn``.

        The environment is restored from the nearest snapshot, and the turns since then are
        carried out again; their observations must equal the recorded ones. Use the result as a
        context manager; it is closed with this session at the latest.

        Args:
            turn: index of the turn after which to fork; None forks before the first turn.

        Raises:
            Unforkable: the environment says so, the task does (``"replayable": false`` in its
                data), or the turn ended the episode.
            ForkDiverged: the replay saw something else than what was recorded.
            InvalidInput: the turn is not part of this attempt.
        """
        shared = self._shared_turns(turn)
        if not self.spec.resolve().forkable:
            raise Unforkable(f"environment {self.spec.id!r} declares that it can't be forked")
        if self.task.data.get("replayable") is False:
            raise Unforkable(f"task {self.task.id!r} declares that it can't be replayed")
        if shared and shared[-1].done:
            raise Unforkable(f"turn {turn} ended the episode: fork an earlier one")
        rival = Session.__new__(Session)
        rival._open(
            self.spec, self.task, self._ledger, self._attempt, self.budgets, self.snapshot_every
        )
        rival._is_fork = True
        try:
            await rival._replay(shared)
            rival._attempt = self._ledger.new_attempt(turn)
            await self._ledger.put_attempt(rival._attempt)
        except BaseException as error:
            # Cancelled while the store took it: it may be there, so its end has to be, too.
            opened = rival._attempt is not self._attempt and not isinstance(error, StoreError)
            end = rival._leave(error) if opened else rival._close_env()
            await finish_despite_cancel(end, rival._leave_seconds())
            raise
        self._forks.append(rival)
        return rival

    async def add_failed_fork(self, turn: int | None, cause: str, error: str = "") -> None:
        """Record a rival attempt that could not be opened, as ``failed:fork``."""
        await self._ledger.add_failed_fork(turn, cause, error)

    # Life cycle ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._is_fork:
            return self
        try:
            await self._ledger.begin()
            self._env = self.spec.make()
            async with asyncio.timeout(self._env.reset_seconds):
                self._conversation = await self._reset(self._env)
        except TimeoutError:
            seconds = self.spec.resolve().reset_seconds
            await self.fail("env", f"reset did not end within {seconds} s")
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            await self.fail(*fault_of(error))
        except BaseException:
            await finish_despite_cancel(
                self.cancel("cancelled during reset"), self._leave_seconds()
            )
            raise
        self._ledger.opening = self._conversation
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish_despite_cancel(self._leave(error), self._leave_seconds())

    async def _leave(self, error: BaseException | None) -> None:
        for rival in self._forks:
            await rival._leave(None)
        if isinstance(error, Exception):
            await self.fail(*fault_of(error, getattr(error, "part", None) or "caller"))
        elif error is not None:
            await self.cancel(f"{type(error).__name__} while the attempt was running")
        else:
            await self.cancel("left before the episode ended")
        await self._close_env()

    def _leave_seconds(self) -> float:
        return _GRACE + (1 + len(self._forks)) * self.spec.resolve().close_seconds

    async def _close_env(self) -> None:
        env, self._env = self._env, None
        if env is None:
            return
        try:
            async with asyncio.timeout(env.close_seconds):
                await self._worker.call(env.close)
        except Exception:  # noqa: BLE001 - boundary: a broken close must not change how the attempt ended
            _log.exception("session %s: closing the environment failed", self.id)
        finally:
            self._worker.stop()

    async def _reset(self, env: Env) -> list[Message]:
        env.labels = {"session": self.id, **self.record.labels}
        env.remaining = self._meter.remaining()
        opening = await self._worker.call(env.reset, self.task, self.record.seed)
        if isinstance(opening, ToolResult):
            keep, limit = self._ledger.keep_image, self.budgets.observation_bytes
            opening = [{"role": "user", "content": content_parts(opening.content, keep, limit)}]
        elif isinstance(opening, str):
            opening = [{"role": "user", "content": opening}]
        if not isinstance(opening, list) or not opening:
            raise TypeError(
                f"reset() returned {type(opening).__name__}; return the first message's text, or "
                "a list of messages",
            )
        for message in opening:
            check_message(message, "reset()")
        return replace_surrogates(opening)

    # One turn -----------------------------------------------------------------------------

    async def _step(self, env: Env, reply: Reply, taken: Taken | None) -> StepResult:
        started, policy_seconds = self._asked_at or time.time(), self._meter.turn_seconds
        used = self.clock.used
        usage = reply.usage or usage_of(taken)
        run = self._execution(env, reply.message, usage)
        await self._execute(run, reply)
        env_seconds = self.clock.used - used
        edge, kept, context = self._place(reply, broken=taken is not None and taken.broken)
        turn = Turn(
            index=-1,
            parent=self._turns[-1].index if self._turns else None,
            edge=edge,
            attempt=self._attempt.index,
            kept=kept,
            context=context,
            message=reply.message,
            observation=run.observation,
            calls=run.calls,
            reward=run.reward,
            done=run.done,
            signals=replace_surrogates(run.signals),
            finish=reply.finish,
            usage=usage,
            sampling=reply.sampling,
            policy=reply.policy,
            synthetic=reply.synthetic,
            tokens=None if taken is None else taken.tokens,
            started_at=started,
            policy_seconds=policy_seconds,
            env_seconds=env_seconds,
        )
        if self.snapshot_every and not run.ended:
            await self._snapshot(env, turn, run)
        await self._ledger.append(turn)
        self._advance(turn, TokenTail() if taken is None else taken.tail)
        self._attempt.leaf = turn.index
        await self._end_if_over(run)
        return StepResult(turn.observation, turn.reward, self.done)

    def _execution(self, env: Env, message: Message, usage: Usage | None) -> Execution:
        env.remaining = self._meter.remaining(1, usage)
        return Execution(
            env=env,
            worker=self._worker,
            message=message,
            keep_image=self._ledger.keep_image,
            text_limit=self.budgets.observation_bytes,
        )

    async def _execute(self, run: Execution, reply: Reply) -> None:
        if reply.finish == "length":
            run.cut = self._meter.out_of_tokens()
        elif reply.finish == "abort":
            run.fault = Fault("policy", "the engine aborted the response", "")
        else:
            try:
                async with self.clock.running(self._meter.seconds_left):
                    await run.run()
            except OutOfTime:
                run.cut = run.cut or self._meter.out_of_time()
                run.settle("timeout")
                return
        run.settle()

    def _place(self, reply: Reply, *, broken: bool) -> tuple[Edge, int | None, list[Message]]:
        """Return edge, kept messages and new context of the turn that this reply makes."""
        own = bool(self._turns) and self._turns[-1].attempt == self._attempt.index
        edge: Edge = "continue" if own or not self._attempt.index else "alternative"
        before = self._conversation
        seen = before if reply.context is None else reply.context
        if not self._turns:
            return edge, None, list(seen)
        rewritten: Edge = "rewrite" if edge == "continue" else edge
        if seen == before:
            return (rewritten if broken else edge), None, []
        pairs = zip(seen, before, strict=False)
        kept = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(seen), len(before)))
        return rewritten, kept, seen[kept:]

    def _advance(self, turn: Turn, tail: TokenTail) -> None:
        kept = self._conversation[: turn.kept] if self._turns else []
        self._conversation = [*kept, *turn.context, turn.message, *turn.observation]
        self._turns.append(turn)
        self._tail = tail
        self._meter.count(turn)
        self._asked_at = 0.0

    async def _snapshot(self, env: Env, turn: Turn, run: Execution) -> None:
        if (len(self._turns) + 1) % self.snapshot_every:
            return
        try:
            async with asyncio.timeout(env.reset_seconds):
                turn.snapshot = await self._worker.call(env.snapshot)
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            run.fault = fault_of(error)

    # Ends ---------------------------------------------------------------------------------

    async def _end_if_over(self, run: Execution) -> None:
        if run.fault is not None:
            await self.fail(*run.fault)
        elif run.cut is not None:
            await self.truncate(run.cut.budget, str(run.cut))
        elif run.done:
            await self._end(Status("completed"), "")
        elif (cut := self._meter.used_up()) is not None:
            await self.truncate(cut.budget, str(cut))

    async def _end(self, status: Status, cause: str, error: str = "") -> None:
        attempt = self._attempt
        if attempt.status.ended:
            return
        outcome = None
        if status.scored and self._env is not None:
            try:
                async with asyncio.timeout(self._env.verify_seconds):
                    outcome = as_outcome(await self._worker.call(self._env.verify))
            except TimeoutError:
                status = Status("failed", "verify")
                cause = f"verify did not end within {self._env.verify_seconds} s"
            except Exception as caught:  # noqa: BLE001 - boundary: environment code
                part, cause, error = fault_of(caught, "verify")
                status = Status("failed", part)
        attempt.outcome, attempt.status = outcome, status
        attempt.cause, attempt.error, attempt.ended_at = cause, error, time.time()
        await self._ledger.put_attempt(attempt)
        await self._close_env()

    # Forks --------------------------------------------------------------------------------

    def _shared_turns(self, turn: int | None) -> list[Turn]:
        if turn is None:
            return []
        for position, own in enumerate(self._turns):
            if own.index == turn:
                return self._turns[: position + 1]
        raise InvalidInput(
            f"session {self.id}: turn {turn} is not part of attempt {self._attempt.index}",
        )

    async def _replay(self, shared: list[Turn]) -> None:
        """Bring a fresh environment to the state after ``shared``, or raise."""
        env = self._env = self.spec.make()
        start = max((i for i, turn in enumerate(shared) if turn.snapshot), default=-1)
        async with asyncio.timeout(env.reset_seconds):
            await self._reopen(env, shared[start].snapshot if start >= 0 else None)
        tree = self.tree
        for position, turn in enumerate(shared):
            if position > start:
                await self._repeat(env, turn)
            self._advance(turn, tail_of(tree, turn))

    async def _reopen(self, env: Env, snapshot: str | None) -> None:
        if snapshot is not None:
            env.labels = {"session": self.id, **self.record.labels}
            await self._worker.call(env.restore, self.task, self.record.seed, snapshot)
            return
        self._conversation = await self._reset(env)
        if self._conversation != self._ledger.opening:
            raise ForkDiverged(
                f"session {self.id}: reset gave another opening; derive it from task and seed",
            )

    async def _repeat(self, env: Env, turn: Turn) -> None:
        run = self._execution(env, turn.message, turn.usage)
        async with asyncio.timeout(self.budgets.seconds_per_turn):
            await run.run()
        run.settle()
        if run.fault is not None:
            raise ForkDiverged(f"session {self.id}: turn {turn.index}: {run.fault.cause}")
        if run.observation != turn.observation:
            raise ForkDiverged(
                f"session {self.id}: replaying turn {turn.index} gave another observation; make "
                "the environment deterministic, take snapshots, or declare it unforkable",
            )

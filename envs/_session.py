"""Sessions: one agent at one task in one environment instance, recorded turn by turn."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import zlib
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from trajgym.envs._clock import OutOfTime
from trajgym.envs._conversation import Conversation
from trajgym.envs._delegation import Delegation
from trajgym.envs._errors import SessionEnded
from trajgym.envs._instance import Instance
from trajgym.envs._ledger import (
    Ledger,
    TokenTail,
    as_reply,
    paused_seconds,
    usage_of,
)
from trajgym.envs._meter import Meter
from trajgym.envs._others import plain_others
from trajgym.envs._plain import readable
from trajgym.envs._replay import Replay, check_forkable
from trajgym.envs._results import shown
from trajgym.envs._scoring import verified
from trajgym.envs._spec import EnvSpec
from trajgym.envs._stoppable import CANCEL_SECONDS, stoppable
from trajgym.envs._threads import Worker, finish_despite_cancel
from trajgym.envs._tools import tools_of
from trajgym.envs._turn import execute, turn_of
from trajgym.envs._waits import Waits
from trajgym.envs.faults import Fault, contained, fault_of, message_of
from trajgym.trajectory import (
    InvalidInput,
    SessionRecord,
    SessionTree,
    Status,
    StoreError,
    Task,
    Turn,
    Usage,
)
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType

    from trajgym.envs._budgets import Budgets
    from trajgym.envs._clock import AgentClock
    from trajgym.envs._env import Env
    from trajgym.envs._execute import Execution
    from trajgym.envs._ledger import Taken
    from trajgym.envs._reply import Reply, TurnLimits
    from trajgym.envs._spawn import Spawn
    from trajgym.envs._subagent import SubAgent
    from trajgym.trajectory import (
        Attempt,
        IntArray,
        Message,
        Outcome,
        Store,
        ToolSchema,
    )

__all__ = ["Session", "StepResult"]

_log = logging.getLogger(__name__)
_GRACE = 30.0
"""Seconds for recording how an attempt ended, in addition to the environment's own deadlines."""
_NAME, _CAUSE = 100, 10_000
"""Largest number of characters of a limit's or part's name, and of a cause."""


class StepResult(NamedTuple):
    """The result of a step, which is stored before it is returned."""

    observation: list[Message]
    """Tool results, or the environment's response; empty if there was none."""
    reward: float | None
    """The environment's step reward."""
    done: bool
    """The attempt has ended; see ``session.status`` and ``session.outcome``."""


class Session:
    """One agent at one task, from reset to outcome.

    ::

        async with Session(spec, task, store=store) as session:
            while not session.done:
                reply = await session.ask(policy(session.messages, session.tools))
                if reply is not None:
                    await session.step(reply)
        print(session.status, session.outcome)

    Failures are states, not exceptions: if the environment fails, the session is ``done`` with
    status ``failed:<part>``. Leaving the block always closes the environment; leaving it before the
    end records ``cancelled`` (or ``failed`` for an exception).

    Args:
        spec: builds the environment, and another instance for every fork.
        task: the problem instance.
        store: every turn is stored here before its observation is returned; None keeps the session
            in memory.
        session_id: unique in the run; random by default.
        group: id of the group, if it belongs to one.
        sample: number of the sample in its group.
        seed: the environment's seed, which is recorded; derived from the session id by default.
        budgets: replace the environment's own.
        labels: recorded with the session and passed to the environment.
        snapshot_every: take a snapshot of the environment after every k-th turn; 0 takes none.

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
        _check(spec, task)
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
        self.task = task
        self.budgets = budgets
        self.snapshot_every = snapshot_every
        self._ledger = ledger
        self._attempt = attempt
        self._meter = Meter(budgets)
        self.waits = Waits()
        """What the attempt's time is spent on."""
        self._conversation = Conversation()
        worker = Worker(
            f"trajgym-env-{self.id[:8]}",
            cancel_seconds=spec.resolve().cancel_seconds,
            on_abandoned=self._note_abandoned,
        )
        self._instance = Instance(spec, task, ledger, worker, budgets.observation_bytes)
        self._abandoned: Fault | None = None
        self._forks: list[Session] = []
        self._is_fork = False
        self._stepping = False
        self._asked_at = 0.0
        self._agent = "main"
        self._delegation: Delegation | None = None

    def __repr__(self) -> str:
        turns = len(self._conversation.turns)
        return f"<Session {self.id}: task {self.task.id}, {turns} turns, {self.status}>"

    def _repr_html_(self) -> str:
        return self.tree._repr_html_()

    # State --------------------------------------------------------------------------------

    @property
    def spec(self) -> EnvSpec:
        """Builds the environment, and another instance for every fork."""
        return self._instance.spec

    @property
    def id(self) -> str:
        """The session's id; forks share it."""
        return self._ledger.record.id

    @property
    def record(self) -> SessionRecord:
        """The session's record."""
        return self._ledger.record

    @property
    def agent(self) -> str:
        """``main``, or the name of a sub-agent."""
        return self._agent

    @property
    def tools(self) -> list[ToolSchema]:
        """JSON schemas of the environment's tools."""
        return self._ledger.record.tools

    @property
    def messages(self) -> list[Message]:
        """The conversation that the policy continues next; later steps do not change it."""
        return self._conversation.messages

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
        """The result of verification; None while running and for failures."""
        return self._attempt.outcome

    @property
    def attempt(self) -> Attempt:
        """The whole state of this attempt: status, cause, outcome, traceback."""
        return self._attempt

    @property
    def turns(self) -> list[Turn]:
        """The turns of this attempt, root first, including those shared with the forked one."""
        return list(self._conversation.turns)

    @property
    def tree(self) -> SessionTree:
        """The session with all its attempts, as recorded so far."""
        return self._ledger.tree()

    @property
    def prefix_ids(self) -> IntArray | None:
        """int32 ``[S]``: prompt and response ids of the last turn, None if it was not exact."""
        return self._conversation.tail.ids

    @property
    def prefix_messages(self) -> int:
        """How many of :attr:`messages` those ids cover: all but the last observation."""
        return self._conversation.prefix_messages

    @property
    def images(self) -> dict[str, bytes]:
        """Bytes of the images that the conversation may refer to, by hash."""
        return {name: image.data for name, image in self._ledger.images.items()}

    @property
    def limits(self) -> TurnLimits:
        """What is left of the budgets for the next policy call."""
        return self._meter.limits

    @property
    def seconds_left(self) -> float | None:
        """The agent's seconds that are left for the whole attempt, None without a limit."""
        limit = self.budgets.seconds
        return None if limit is None else max(limit - self.clock.used, 1e-3)

    @property
    def clock(self) -> AgentClock:
        """The agent's clock; hold it while the agent waits for something outside its control."""
        return self._meter.clock

    async def ask(
        self, call: Awaitable[Reply], *, cancel_seconds: float = CANCEL_SECONDS
    ) -> Reply | None:
        """Await a policy's reply, counting the agent's time.

        Args:
            call: the policy's answer.
            cancel_seconds: in which the call has to end once it is cancelled; then it is
                abandoned.

        Returns:
            The reply, to be passed to :meth:`step`; None if the agent's time ran out, in which
            case the attempt has been truncated, verified and scored. If the call had to be
            abandoned, the attempt has ended as ``failed:policy`` instead.

        Raises:
            InvalidInput: the policy did not return a :class:`Reply`.
            trajgym.envs.faults.UserCodeExit: the policy raised a ``BaseException`` that is not an
                ``Exception``, such as ``SystemExit``.
        """
        self._asked_at = time.time()
        used = self.clock.used
        try:
            async with self.clock.running(self._meter.seconds_left):
                with contained(), self.waits.at("policy"):
                    reply = await stoppable(
                        call,
                        "the policy",
                        seconds=cancel_seconds,
                        on_abandoned=self.note_abandoned_policy,
                    )
                    paused = paused_seconds(reply)
        except OutOfTime:
            cut = self._meter.out_of_time()
            await self.truncate(cut.budget, str(cut))
            return None
        self.clock.give_back(min(paused, self.clock.used - used))
        self._meter.turn_seconds += self.clock.used - used
        return reply

    async def step(self, reply: Reply | Message | str) -> StepResult:
        """Execute an assistant message and record the turn.

        Args:
            reply: a :class:`Reply`, an assistant message, or its text.

        Returns:
            The environment's response. The turn is durable when this returns.

        Raises:
            SessionEnded: the attempt has ended, or the session was not opened.
            InvalidInput: ``reply`` is not an assistant message, its ids are inconsistent, or
                another step is in progress; nothing was recorded and the attempt continues.
            StoreError: the turn could not be stored. The attempt has ended as ``failed:store``.
        """
        env = self._instance.env
        if env is None and not self.done:
            raise SessionEnded(
                f"session {self.id}: it is not open: use it as `async with Session(...) as session`"
            )
        if env is None or self.done:
            raise SessionEnded(f"session {self.id}: the attempt has ended ({self.status})")
        if self._stepping:
            raise InvalidInput(f"session {self.id}: another step is in progress")
        if self._delegation is not None:
            raise InvalidInput(
                f"session {self.id}: the last turn waits for sub-agents; run those in spawned, "
                "then call join()"
            )
        checked = as_reply(reply, len(self._ledger.turns))
        tail = self._conversation.tail
        sampled = checked.sampled
        taken = None if sampled is None else readable(lambda: tail.take(sampled), "its token ids")
        self._stepping = True
        try:
            return await self._step(env, checked, taken)
        except StoreError as error:
            # The environment has taken an action that is not recorded: nothing may follow it.
            with suppress(StoreError):
                await self.fail("store", str(error))
            raise
        finally:
            self._stepping = False

    # Sub-agents ---------------------------------------------------------------------------

    @property
    def spawned(self) -> list[SubAgent]:
        """The sub-agents that the last turn waits for, in the order of their calls.

        Run each one to its end inside ``async with``, like a session, then call :meth:`join`.
        """
        return [] if self._delegation is None else self._delegation.agents

    def spawn(self, spawn: Spawn) -> SubAgent:
        """Add a sub-agent to the last turn, besides those that its tools asked for.

        Its answer is a user message instead of a tool result.

        Raises:
            SessionEnded: the attempt is over.
            InvalidInput: there is no turn yet, or ``spawn`` names tools that there are not.
        """
        env, turns = self._instance.env, self._conversation.turns
        if env is None or self.done:
            raise SessionEnded(f"session {self.id}: the attempt is over ({self.status})")
        if not turns or self._stepping:
            raise InvalidInput(f"session {self.id}: a sub-agent is spawned after a turn")
        child = self._subagent(spawn)
        if self._delegation is None:
            self._delegation = Delegation(self._execution(env, turns[-1].message, None), [])
        self._delegation.ask(child)
        return child

    async def join(self) -> StepResult:
        """Return the sub-agents' answers to the agent, as the observation of its last turn.

        They are recorded as context of the agent's next turn, whose ``returns`` names the last
        turns of the sub-agents. If one of them failed, so does this attempt, by the same part.

        Raises:
            InvalidInput: the last turn waits for no sub-agent, or one of them has not ended.
        """
        delegation = self._delegation
        if delegation is None:
            raise InvalidInput(f"session {self.id}: the last turn waits for no sub-agent")
        if late := [agent.agent for agent in delegation.agents if not agent.done]:
            raise InvalidInput(f"session {self.id}: sub-agents {late} have not ended")
        self._delegation = None
        for agent in delegation.agents:
            self.clock.charge(agent.clock.used)
            if agent.status.kind == "failed":
                cause = f"sub-agent {agent.agent!r}: {agent.attempt.cause}"
                await self.fail(agent.status.detail, cause, agent.attempt.error)
                return StepResult([], None, self.done)
        returns = delegation.collect(self.budgets.observation_bytes)
        self._conversation.receive(delegation.results, returns)
        await self._end_if_over(delegation.run)
        return StepResult(delegation.results, None, self.done)

    async def truncate(self, budget: str, cause: str) -> None:
        """End the attempt because the agent reached a limit; it is verified and scored."""
        await self._end(Status("truncated", budget[:_NAME]), cause[:_CAUSE])

    async def fail(self, part: str, cause: str, error: str = "") -> None:
        """End the attempt without a score because something outside the agent's control failed.

        An attempt that has ended keeps its end; the failure is logged.
        """
        cause = replace_surrogates(cause[:_CAUSE])
        if self.done:
            _log.warning(
                "session %s: attempt %d had ended (%s) when its part %r failed: %s",
                *(self.id, self._attempt.index, self.status, part, error or cause),
            )
            return
        await self._end(Status("failed", part[:_NAME]), cause, error)

    async def cancel(self, cause: str) -> None:
        """End the attempt without a score because the caller abandons it."""
        await self._end(Status("cancelled"), cause[:_CAUSE])

    # Forks --------------------------------------------------------------------------------

    async def fork(self, turn: int | None) -> Session:
        """Open a rival attempt that shares this attempt's turns up to ``turn``.

        The environment is restored from the nearest snapshot, and the turns since then are
        executed again; their observations must equal the recorded ones. Use the result as a
        context manager; it is closed with this session at the latest.

        Args:
            turn: index of the turn after which to fork; None forks before the first turn.

        Raises:
            Unforkable: the environment or the task (``"replayable": false`` in its data) declares
                that it can't be forked, the turn ended the episode or was stopped when the time ran
                out, or a turn up to it spawned a sub-agent.
            ForkDiverged: the replay gave other observations than those recorded.
            InvalidInput: the turn is not part of this attempt.
        """
        own = self._conversation
        shared = own.up_to(turn)
        if shared is None:
            raise InvalidInput(
                f"session {self.id}: turn {turn} is not part of attempt {self._attempt.index}",
            )
        check_forkable(self.spec, self.task, shared, self._ledger.turns)
        rival = Session.__new__(Session)
        rival._open(
            self.spec, self.task, self._ledger, self._attempt, self.budgets, self.snapshot_every
        )
        rival._is_fork = True
        try:
            rival._conversation.others = own.others.up_to(shared)
            replay = Replay(self._ledger, rival._instance, rival._conversation, rival._meter)
            with rival.waits.at("environment"):
                await replay.run(shared)
            rival._attempt = self._ledger.new_attempt(turn)
            await self._ledger.put_attempt(rival._attempt)
        except BaseException as error:
            # Cancelled while it was being stored: if it is there, its end must be too.
            opened = rival._attempt is not self._attempt and not isinstance(error, StoreError)
            end = rival._leave(error) if opened else rival._instance.close()
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
        limit: asyncio.Timeout | None = None
        try:
            if not self._conversation.spawned:
                with self.waits.at("store"):
                    await self._ledger.begin()
            with self.waits.at("environment"):
                env = self._instance.make()
                async with asyncio.timeout(env.reset_seconds) as limit:
                    opening = await self._instance.reset(env, self._meter.remaining())
            self._conversation.messages = opening
            await self._record_others(env)
        except StoreError:
            raise
        except Exception as error:
            # boundary: environment code
            if not self._ledger.begun and self._ledger.store is not None:
                raise
            if limit is not None and limit.expired():
                seconds = self.spec.resolve().reset_seconds
                await self.fail("env", f"reset did not end within {seconds} s")
            else:
                await self.fail(*fault_of(error))
        except BaseException:
            await finish_despite_cancel(
                self.cancel("cancelled during reset"), self._leave_seconds()
            )
            raise
        if not self._conversation.spawned:
            self._ledger.opening = self._conversation.messages
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish_despite_cancel(self._leave_all(error), self._leave_seconds())

    async def _leave_all(self, error: BaseException | None) -> None:
        try:
            await self._leave(error)
        finally:
            # Rivals are only opened while the session is.
            taken = dict.fromkeys(turn.snapshot for turn in self._ledger.turns if turn.snapshot)
            if taken and not self._is_fork:
                await self._instance.discard(list(taken))

    async def _leave(self, error: BaseException | None) -> None:
        inner: list[Session] = [*self._forks, *self.spawned]
        # In reverse order, and all of them: the environments have to close even where an end can't
        # be recorded because the store failed.
        async with AsyncExitStack() as ends:
            ends.push_async_callback(self._instance.close)
            ends.push_async_callback(self._end_left, error)
            for session in reversed(inner):
                ends.push_async_callback(session._leave, None)

    async def _end_left(self, error: BaseException | None) -> None:
        """End the attempt, if it has not ended, for what its caller left it with."""
        if self.done:
            return
        if isinstance(error, Exception):
            await self.fail(*fault_of(error, getattr(error, "part", None) or "caller"))
        elif error is not None:
            await self.cancel(f"{type(error).__name__} while the attempt was running")
        else:
            await self.cancel("left before the episode ended")

    def _leave_seconds(self) -> float:
        env = self.spec.resolve()
        attempts = 1 + len(self._forks)
        return _GRACE + env.close_seconds + attempts * (env.close_seconds + env.cancel_seconds)

    def _note_abandoned(self, cause: str) -> None:
        self._abandoned = self._abandoned or Fault("env", cause, "")

    def note_abandoned_policy(self, cause: str) -> None:
        """Let the attempt end as ``failed:policy``: a part of the policy may still be running."""
        self._abandoned = self._abandoned or Fault("policy", cause, "")

    # One turn -----------------------------------------------------------------------------

    async def _step(self, env: Env, reply: Reply, taken: Taken | None) -> StepResult:
        talk, used = self._conversation, self.clock.used
        started, policy_seconds = self._asked_at or time.time(), self._meter.turn_seconds
        run = self._execution(env, reply.message, reply.usage or usage_of(taken))
        with self.waits.at("environment"):
            await execute(run, reply, self._meter)
        env_seconds = self.clock.used - used
        broken = taken is not None and taken.broken
        place = talk.place(reply, self._attempt.index, broken=broken)
        turn = turn_of(reply, taken, run, place)
        if not talk.turns:
            opening = replace_surrogates(self._instance.opening_signals)
            turn.signals = opening | turn.signals
        turn.attempt, turn.agent = self._attempt.index, self._agent
        turn.started_at, turn.policy_seconds = started, policy_seconds
        turn.env_seconds = env_seconds
        waits = bool(run.spawns) and not run.ended
        if waits:
            turn.observation = []  # it follows once the sub-agents have answered
        if self.snapshot_every and not run.ended and not waits:
            with self.waits.at("environment"):
                await self._snapshot(env, turn, run)
        try:
            with self.waits.at("store"):
                await self._ledger.append(turn)
        except InvalidInput as error:  # as_reply has checked what the policy gave
            await self.fail("env", f"the turn can't be recorded: {error}")
            return StepResult([], None, self.done)
        talk.advance(turn, TokenTail() if taken is None else taken.tail)
        self._meter.count(turn)
        self._asked_at = 0.0
        self._attempt.leaf = turn.index
        try:
            await self._record_others(env)
        except InvalidInput as error:
            await self.fail("env", f"a turn that the environment noted can't be recorded: {error}")
            return StepResult(turn.observation, turn.reward, self.done)
        if waits and self._meter.used_up() is None:
            await self._delegate(run)
        else:
            await self._end_if_over(run)
        return StepResult(turn.observation, turn.reward, self.done)

    async def _record_others(self, env: Env) -> None:
        """Record what others said since the agent's last turn; it is durable when this returns."""
        noted = readable(lambda: plain_others(env.take_others()), "take_others()")
        if not noted:
            return
        others, after = self._conversation.others, self._conversation.last
        for turn in others.made(noted, self._attempt.index):
            await self._ledger.append(turn)
            others.add(turn, after)

    def _subagent(self, spawn: Spawn) -> SubAgent:
        from trajgym.envs._subagent import SubAgent  # a sub-agent is a session itself

        return SubAgent(self, spawn)

    async def _delegate(self, run: Execution) -> None:
        """Open the sub-agents that the turn's tools asked for."""
        try:
            children = {place: self._subagent(run.spawns[place]) for place in sorted(run.spawns)}
        except Exception as error:  # noqa: BLE001 - boundary: what the environment asked for
            fault = fault_of(error)
            ours = isinstance(error, InvalidInput)
            await self.fail(fault.part, str(error) if ours else fault.cause, fault.error)
            return
        self._delegation = Delegation(run, run.observation, children)

    def _execution(self, env: Env, message: Message, usage: Usage | None) -> Execution:
        return self._instance.execution(env, message, self._meter.remaining(1, usage))

    async def _snapshot(self, env: Env, turn: Turn, run: Execution) -> None:
        if (len(self._conversation.turns) + 1) % self.snapshot_every:
            return
        try:
            turn.snapshot = await self._instance.snapshot(env)
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            run.fault = fault_of(error)

    # Ends ---------------------------------------------------------------------------------

    async def _end_if_over(self, run: Execution) -> None:
        if run.fault is not None:
            await self.fail(*run.fault)
        elif run.cut is not None:
            await self.truncate(str(run.cut.budget), message_of(run.cut))
        elif run.done:
            await self._end(Status("completed"), "")
        elif (cut := self._meter.used_up()) is not None:
            await self.truncate(cut.budget, str(cut))

    async def _end(self, status: Status, cause: str, error: str = "") -> None:
        attempt = self._attempt
        if attempt.status.ended:
            return
        outcome = None
        if self._abandoned is not None and status.kind != "cancelled":
            # Part of the attempt may still be running: there is no state that could be verified.
            part, cause, error = self._abandoned
            status = Status("failed", part)
        env = self._instance.env
        if status.scored and env is not None:
            # Scored as it will be recorded: with the status that it ends with.
            ended = replace(attempt, status=status, cause=cause)
            tree = self._ledger.tree(ended)
            with self.waits.at("verify"):
                found = await verified(env, self._instance.worker, self.task, tree, ended)
            if isinstance(found, Fault):
                part, cause, error = found
                if self._abandoned is not None:
                    cause = self._abandoned.cause
                status = Status("failed", part)
            else:
                outcome = found
        attempt.outcome, attempt.status = outcome, status
        attempt.cause, attempt.error, attempt.ended_at = cause, error, time.time()
        attempt.waits = {name: round(took, 6) for name, took in self.waits.seconds.items()}
        await self._ledger.begin_if_new()
        await self._ledger.put_attempt(attempt)
        await self._instance.close()


def _check(spec: object, task: object) -> None:
    """Check the types of a session's arguments.

    Raises:
        InvalidInput: one has another type.
    """
    if not isinstance(spec, EnvSpec):
        raise InvalidInput(f"the environment is {shown(spec)}; give EnvSpec(id=...)")
    if not isinstance(task, Task):
        raise InvalidInput(f"the task is {shown(task)}; give Task(id=...)")

"""Running one attempt from its first turn to its end, for all loops over sessions."""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.envs import Truncate
from trajgym.envs._current import current_session
from trajgym.envs.faults import (
    UserCodeExit,
    contained,
    describe,
    fault_of,
    message_of,
    stoppable,
    traceback_of,
)
from trajgym.rollout._branching import Branching
from trajgym.rollout._policy import AttemptPolicy, PolicyError, PolicyRequest
from trajgym.rollout.rules import Interrupt, Interrupted
from trajgym.trajectory import InvalidInput, StoreError, TrajgymError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractContextManager

    from trajgym.envs import Session
    from trajgym.envs.faults import Fault
    from trajgym.rollout._expansion import Expansion
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import Task

__all__ = ["SessionHooks", "derive_seed", "drive", "run_session"]

_log = logging.getLogger(__name__)


def derive_seed(seed: int, name: str) -> int:
    """Return a seed that depends on the given names only, the same in every run."""
    return zlib.crc32(f"{seed}:{name}".encode())


async def drive(
    session: Session,
    policy: Policy,
    task: Task,
    *,
    sample: int = 0,
    seed: int = 0,
    deadline: float = 6 * 3600.0,
    before_turn: Callable[[], Awaitable[object]] | None = None,
    after_turn: Callable[[Session], object] | None = None,
    interrupt: Interrupt | None = None,
) -> None:
    """Run turns until the attempt has ended.

    Sub-agents are run by the same policy, one after the other, and their answers are returned to
    the agent that spawned them. An exception in the policy ends the attempt as ``failed:policy``,
    and one in ``after_turn`` as ``failed:callback``; neither is raised. A policy that raises
    :class:`trajgym.envs.Truncate` (because its context is full) ends it as truncated.

    Args:
        session: an entered session, or a fork of one.
        policy: gives the assistant messages.
        task: the session's task, for policies that follow a script.
        sample: number of the sample in its group.
        seed: the sampling seed derives from it, and from session and turn.
        deadline: wall-clock seconds after which the attempt ends as ``failed:deadline``.
        before_turn: awaited before each turn; does not count towards the agent's time.
        after_turn: called when a turn is recorded.
        interrupt: ends the attempt from outside.

    Raises:
        StoreError: the store can't be written any more.
    """
    interrupt = interrupt or Interrupt()
    try:
        async with asyncio.timeout(deadline) as limit:
            if isinstance(policy, AttemptPolicy):
                await _whole_attempt(session, policy, seed, before_turn, after_turn, interrupt)
                return
            while not session.done:
                if before_turn is not None:
                    with session.waits.at("pause"):
                        await before_turn()
                if not await _turn(session, policy, task, sample, seed, interrupt):
                    return
                if after_turn is not None:
                    await _notify(after_turn, session)
                for child in session.spawned:
                    async with child:
                        await drive(
                            child,
                            policy,
                            child.task,
                            sample=sample,
                            seed=seed,
                            deadline=deadline,
                            before_turn=before_turn,
                            interrupt=interrupt,
                        )
                if session.spawned and not session.done:
                    await session.join()
    except TimeoutError:
        if not limit.expired():
            raise
        await session.fail("deadline", f"not finished within {deadline} s")


def _nothing(_: Session) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks:
    """Callbacks and limits that a loop applies to the sessions that it runs.

    Args:
        slots: a session holds one from its start to the end of its first attempt, and each rival
            from its fork to its end; None runs one rival at a time.
        before_turn: awaited before a session begins and before each turn; does not count towards
            the agent's time.
        around: makes a context that is entered while an attempt is running.
        on_begin: called before a session is opened.
        on_turn: called when a turn is recorded.
        on_end: called when a session has ended and has been added to its group.
        interrupt: returns what ends a session from outside; called when it is begun.
    """

    slots: asyncio.Semaphore | None = None
    before_turn: Callable[[], Awaitable[object]] | None = None
    around: Callable[[Session], AbstractContextManager[object]] = nullcontext
    on_begin: Callable[[Session], object] = _nothing
    on_turn: Callable[[Session], object] = _nothing
    on_end: Callable[[Session], object] = _nothing
    interrupt: Callable[[Session], Interrupt | None] = _nothing


async def run_session(
    session: Session,
    policy: Policy,
    task: Task,
    *,
    sample: int = 0,
    seed: int = 0,
    deadline: float = 6 * 3600.0,
    expansion: Expansion | None = None,
    hooks: SessionHooks | None = None,
) -> None:
    """Open a session, run it to its end, grow its tree, and close it.

    Failures are reported in ``session.status``, not raised. On cancellation, the environments are
    closed before ``CancelledError`` is raised.

    Args:
        session: a session that has not been entered.
        policy: gives the assistant messages.
        task: the session's task.
        sample: which sample of its group it is.
        seed: see :func:`drive`.
        deadline: wall-clock seconds of each attempt.
        expansion: forks the session once its first attempt has been scored.
        hooks: see :class:`SessionHooks`.

    Raises:
        StoreError: the store can't be written any more.
    """
    hooks = hooks or SessionHooks()
    slots = hooks.slots or asyncio.Semaphore(1)
    interrupt = hooks.interrupt(session)

    async def attempt(one: Session) -> None:
        await drive(
            one,
            policy,
            task,
            sample=sample,
            seed=seed,
            deadline=deadline,
            before_turn=hooks.before_turn,
            after_turn=hooks.on_turn,
            interrupt=interrupt,
        )

    async def rival(one: Session) -> None:
        with hooks.around(one):
            await attempt(one)

    async def run() -> None:
        if hooks.before_turn is not None:
            with session.waits.at("pause"):
                await hooks.before_turn()
        fault = _fault_in(hooks.on_begin, session)
        async with AsyncExitStack() as opened:
            async with _place(session, slots):
                with hooks.around(session):
                    if isinstance(policy, AttemptPolicy) and not await _prepared(
                        policy, session, opened
                    ):
                        return
                    await opened.enter_async_context(session)
                    if fault is not None:
                        await session.fail(*fault)
                    await attempt(session)
            if expansion is not None and session.status.scored:
                await Branching(
                    session,
                    expansion,
                    slots=slots,
                    drive=rival,
                    seed=derive_seed(seed, session.id),
                    seconds=deadline,
                ).grow()

    named = current_session.set(session.id)
    _log.info("session begun", extra={"task": task.id, "sample": sample, "env": session.spec.id})
    try:
        with contained():
            await run()
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: recorded by the session
        await session.fail("runner", describe(error), traceback_of(error))
    finally:
        _log.info("session ended", extra=_ending(session))
        current_session.reset(named)


def _ending(session: Session) -> dict[str, object]:
    """Return how a session ended, for the log."""
    attempt = session.attempt
    found: dict[str, object] = {
        "status": str(attempt.status),
        "turns": len(session.turns),
        "waits": attempt.waits,
    }
    if attempt.cause:
        found["cause"] = attempt.cause
    if attempt.outcome is not None:
        found["score"] = attempt.outcome.score
    return found


@asynccontextmanager
async def _place(session: Session, slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold one of the places; the time until there is one is counted."""
    with session.waits.at("place"):
        await slots.acquire()
    try:
        yield
    finally:
        slots.release()


async def _notify(hook: Callable[[Session], object], session: Session) -> None:
    """Call a hook; an exception in it ends the attempt as ``failed:callback``."""
    if (fault := _fault_in(hook, session)) is not None:
        await session.fail(*fault)


def _fault_in(hook: Callable[[Session], object], session: Session) -> Fault | None:
    try:
        with contained():
            hook(session)
    except Exception as error:  # noqa: BLE001 - boundary: a callback
        return fault_of(error, "callback")
    return None


class _CallbackFailed(TrajgymError):
    """A callback raised an exception while a policy was running an attempt."""

    part = "callback"


async def _prepared(policy: AttemptPolicy, session: Session, opened: AsyncExitStack) -> bool:
    """Enter the policy's context; return False if it failed, and with it the attempt."""
    try:
        with contained():
            await opened.enter_async_context(policy.prepared(session))
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: policy code
        await session.fail(*fault_of(error, "policy"))
        return False
    return True


async def _whole_attempt(
    session: Session,
    policy: AttemptPolicy,
    seed: int,
    before_turn: Callable[[], Awaitable[object]] | None,
    after_turn: Callable[[Session], object] | None,
    interrupt: Interrupt,
) -> None:
    """Let a policy run the attempt; what it raises ends the attempt."""
    if session.done:
        return

    async def before() -> None:
        if before_turn is not None:
            with session.waits.at("pause"):
                await before_turn()

    def after() -> None:
        fault = None if after_turn is None else _fault_in(after_turn, session)
        if fault is not None:
            raise _CallbackFailed(fault.cause)

    try:
        with contained():
            call = policy.attempt(session, seed=seed, before_turn=before, after_turn=after)
            bounded = stoppable(
                call,
                "the policy",
                seconds=policy.cancel_seconds,
                on_abandoned=session.note_abandoned_policy,
            )
            with session.waits.at("policy"):
                await interrupt.guard(bounded)
    except StoreError:
        raise
    except Interrupted as interrupted:
        await interrupted.ending.apply(session)
    except Truncate as cut:
        await session.truncate(str(cut.budget), message_of(cut))
    except Exception as error:  # noqa: BLE001 - boundary: policy code
        await session.fail(*fault_of(error, "policy"))
    if not session.done:
        await session.fail("policy", f"{policy.name} returned before the attempt had ended")


async def _turn(
    session: Session, policy: Policy, task: Task, sample: int, seed: int, interrupt: Interrupt
) -> bool:
    """Ask for one message and execute it; return whether a turn was recorded."""
    try:
        with contained():
            call = policy.sample(_request(session, task, sample, seed))
        guarded = interrupt.guard(call)
        reply = await session.ask(guarded, cancel_seconds=policy.cancel_seconds)
        with contained():
            if reply is not None:
                reply.policy = reply.policy or policy.name
    except StoreError:
        raise
    except Interrupted as interrupted:
        await interrupted.ending.apply(session)
        return False
    except Truncate as cut:
        await session.truncate(str(cut.budget), message_of(cut))
        return False
    except Exception as error:  # noqa: BLE001 - boundary: policy code
        ours = isinstance(error, PolicyError | UserCodeExit)
        cause = message_of(error) if ours else describe(error)
        await session.fail("policy", cause, traceback_of(error))
        return False
    if reply is None:
        return False
    try:
        await session.step(reply)
    except InvalidInput as error:
        await session.fail("policy", f"unusable reply: {message_of(error)}", traceback_of(error))
        return False
    return True


def _request(session: Session, task: Task, sample: int, seed: int) -> PolicyRequest:
    turn, attempt = len(session.turns), session.attempt.index
    name = session.id if session.agent == "main" else f"{session.id}/{session.agent}"
    place = f"{name}/{attempt}/{turn}" if attempt else f"{name}/{turn}"
    return PolicyRequest(
        session=name,
        task=task,
        sample=sample,
        attempt=attempt,
        turn=turn,
        messages=session.messages,
        tools=session.tools,
        prefix_ids=session.prefix_ids,
        prefix_messages=session.prefix_messages,
        limits=session.limits,
        seed=derive_seed(seed, place),
        images=session.images,
        agent=session.agent,
    )

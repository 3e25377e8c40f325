"""One attempt, from its first turn to its end: what every loop over sessions is made of."""

from __future__ import annotations

import asyncio
import traceback
import zlib
from typing import TYPE_CHECKING

from trajgym.envs import Truncate
from trajgym.rollout._branching import Branching
from trajgym.rollout._policy import PolicyError, PolicyRequest
from trajgym.trajectory import InvalidInput, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs import Session
    from trajgym.rollout._expansion import Expansion
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import Task

__all__ = ["derive_seed", "drive", "run_session"]


def derive_seed(seed: int, name: str) -> int:
    """Return a seed for something named, the same in every run."""
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
) -> None:
    """Let a policy speak in an open session until the attempt has ended.

    What goes wrong in the policy ends the attempt ``failed:policy``; nothing is raised for it. A
    policy that raises :class:`trajgym.envs.Truncate` (its context is full) ends it truncated.

    Args:
        session: entered, or a fork of one.
        policy: who speaks.
        task: the session's task, for policies that follow a script.
        sample: which sample of its group it is.
        seed: the sampling seed derives from it, and from session and turn.
        deadline: wall-clock seconds; then the attempt ends ``failed:deadline``.
        before_turn: awaited before each turn, off the agent's clock.
        after_turn: called when a turn is recorded.

    Raises:
        StoreError: the store can't be written any more.
    """
    try:
        async with asyncio.timeout(deadline) as limit:
            while not session.done:
                if before_turn is not None:
                    await before_turn()
                if not await _turn(session, policy, task, sample, seed):
                    return
                if after_turn is not None:
                    after_turn(session)
    except TimeoutError:
        if not limit.expired():
            raise
        await session.fail("deadline", f"not finished within {deadline} s")


async def run_session(
    session: Session,
    policy: Policy,
    task: Task,
    *,
    sample: int = 0,
    seed: int = 0,
    deadline: float = 6 * 3600.0,
    expansion: Expansion | None = None,
) -> None:
    """Open a session, take it to its end, grow its tree, and close it.

    Failures are how it ended, not exceptions: see ``session.status``. Being cancelled closes the
    environments before the cancellation goes on.

    Args:
        session: not entered yet.
        policy: who speaks.
        task: the session's task.
        sample: which sample of its group it is.
        seed: see :func:`drive`.
        deadline: wall-clock seconds of each attempt.
        expansion: forks the session once its first attempt was scored; one rival runs at a time.

    Raises:
        StoreError: the store can't be written any more.
    """

    async def attempt(one: Session) -> None:
        await drive(one, policy, task, sample=sample, seed=seed, deadline=deadline)

    try:
        async with session:
            await attempt(session)
            if expansion is not None and session.status.scored:
                await Branching(
                    session,
                    expansion,
                    slots=asyncio.Semaphore(1),
                    drive=attempt,
                    seed=derive_seed(seed, session.id),
                    seconds=deadline,
                ).grow()
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: recorded by the session
        if not session.done:
            await session.fail("runner", repr(error), traceback.format_exc())


async def _turn(session: Session, policy: Policy, task: Task, sample: int, seed: int) -> bool:
    """Ask for one message and carry it out; return whether that was recorded as a turn."""
    try:
        reply = await session.ask(policy.sample(_request(session, task, sample, seed)))
    except StoreError:
        raise
    except Truncate as cut:
        await session.truncate(cut.budget, str(cut))
        return False
    except Exception as error:  # noqa: BLE001 - boundary: policy code
        cause = str(error) if isinstance(error, PolicyError) else repr(error)
        await session.fail("policy", cause, traceback.format_exc())
        return False
    if reply is None:
        return False
    reply.policy = reply.policy or policy.name
    try:
        await session.step(reply)
    except InvalidInput as error:
        await session.fail("policy", f"unusable reply: {error}", traceback.format_exc())
        return False
    return True


def _request(session: Session, task: Task, sample: int, seed: int) -> PolicyRequest:
    turn, attempt = len(session.turns), session.attempt.index
    place = f"{session.id}/{attempt}/{turn}" if attempt else f"{session.id}/{turn}"
    return PolicyRequest(
        session=session.id,
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
    )

"""Sessions whose turns are recorded by something else than the session itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import SessionEnded, Truncate
from trajgym.trajectory import Status, text_of

if TYPE_CHECKING:
    from trajgym.envs._env import Env
    from trajgym.envs._session import Session
    from trajgym.envs._spec import EnvSpec
    from trajgym.trajectory import Attempt, SessionRecord, Store, Turn

__all__ = ["OutsideTurns"]


class OutsideTurns:
    """Gives the part that records an attempt's turns access to the session's record and budgets.

    An agent that runs as a program of its own executes its tools itself; the session still opens
    the environment, counts the budgets, verifies and records how the attempt ended.

    Args:
        session: a session whose :meth:`Session.step` is not used.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def env(self) -> Env:
        """The session's environment.

        Raises:
            SessionEnded: it is not open.
        """
        env = self._session._instance.env
        if env is None:
            raise SessionEnded(f"session {self._session.id}: the environment is not open")
        return env

    def build_from(self, spec: EnvSpec) -> None:
        """Build the environment from another spec; to be called before the session is entered."""
        self._session._instance.spec = spec

    @property
    def record(self) -> SessionRecord:
        """The session's record."""
        return self._session.record

    @property
    def attempt(self) -> Attempt:
        """The session's first attempt."""
        return self._session.attempt

    @property
    def store(self) -> Store | None:
        """Where the session is recorded; None if it is kept in memory."""
        return self._session._ledger.store

    @property
    def turns(self) -> list[Turn]:
        """The session's own list of turns: the recorder appends to it."""
        return self._session._ledger.turns

    @property
    def prompt(self) -> str:
        """The text of the environment's first messages."""
        texts = [text_of(message) for message in self._session.messages]
        return "\n\n".join(text for text in texts if text)

    def count(self, turn: Turn) -> None:
        """Count a turn that has been recorded against the budgets."""
        self._session._conversation.turns.append(turn)
        self._session._meter.count(turn)

    def exhausted(self, running: int = 0) -> Truncate | None:
        """Return the budget that does not permit another policy call, if any.

        Args:
            running: number of calls that are not recorded yet.
        """
        meter = self._session._meter
        limit = meter.budgets.turns
        if limit is not None and meter.turns + running >= limit:
            return Truncate("turns", f"{meter.turns + running} of {limit} turns used")
        return meter.used_up()

    def out_of_time(self) -> Truncate:
        """Return the budget of seconds that has expired."""
        return self._session._meter.out_of_time()

    async def complete(self) -> None:
        """End the attempt because the agent has finished; it is verified and scored."""
        await self._session._end(Status("completed"), "")

    async def add_details(self, name: str, details: dict[str, Any]) -> None:
        """Add an entry to the details of the recorded outcome, if there is one.

        Raises:
            StoreError: it can't be recorded.
        """
        outcome = self.attempt.outcome
        if outcome is not None:
            outcome.details[name] = details
            await self._session._ledger.put_attempt(self.attempt)

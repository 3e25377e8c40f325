"""The sessions of sealed groups, read from the files of a run that its processes write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.trajectory import Group, Run, SessionTree, Store

__all__ = ["MemberReader"]


class MemberReader:
    """Reads the sessions of groups; used by one thread at a time.

    Args:
        store: a file of the run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._run: Run | None = None

    def sessions(self, group: Group) -> list[SessionTree]:
        """Return the sessions that count, from whichever files they are in. Blocks."""
        members = sorted(group.counted, key=lambda member: member.sample)
        if self._run is not None:
            try:
                return [self._run.session(member.session) for member in members]
            except InvalidInput:  # in the file of a process that was started since
                self._run.close()
        self._run = self._store.read_run()
        return [self._run.session(member.session) for member in members]

    def close(self) -> None:
        """Close the files."""
        if self._run is not None:
            self._run.close()

"""Errors of search.

::

    TrajgymError
    ├── InvalidCorpus (InvalidInput)       a passage or question record that can't be used
    ├── IndexMismatch (InvalidInput)       an index made from other passages, or by another format
    └── EnvironmentFault
        └── SearchUnavailable              no answer from an engine; a session ends `failed:search`
            └── NotRecorded                a replay has no record of a query
"""

from __future__ import annotations

from trajgym.envs import EnvironmentFault
from trajgym.trajectory import InvalidInput

__all__ = ["IndexMismatch", "InvalidCorpus", "NotRecorded", "SearchUnavailable"]


class InvalidCorpus(InvalidInput):
    """A record of a passage or question that is malformed."""


class IndexMismatch(InvalidInput):
    """An index that does not belong to these passages, or that this version can't read."""


class SearchUnavailable(EnvironmentFault):
    """An engine gave no usable answer, after all retries; outside the agent's control."""

    def __init__(self, cause: str) -> None:
        super().__init__("search", cause)


class NotRecorded(SearchUnavailable):
    """The recording holds no answer to this query."""

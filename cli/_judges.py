"""Judges of turns, as the command line names them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.cli._endpoint import EndpointOptions, endpoint_policy
from trajgym.rollout.annotators import HintJudge, VoteJudge
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout.annotators import Annotator
    from trajgym.server import Judges

__all__ = ["JudgeOptions", "make_judge", "server_judges"]

_KINDS: dict[str, type[VoteJudge | HintJudge]] = {"votes": VoteJudge, "hints": HintJudge}
_PATIENCE = 10.0
"""Seconds for which a call to a server's judge is retried; the server asks again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """Options of the judges that a server asks.

    Args:
        kinds: ``votes``, ``hints``.
        url: of the judge's endpoint.
        model: see :class:`EndpointOptions`.
        api_key_env: environment variable with the judge's key; none is sent if it is not set.
        votes: how often each turn is judged.
        concurrency: most turns that are judged at the same time.
        seconds: deadline of one turn.
    """

    kinds: list[str]
    url: str | None
    model: str | None
    api_key_env: str
    votes: int
    concurrency: int
    seconds: float


def make_judge(
    kind: str, endpoint: EndpointOptions, votes: int, *, others: Sequence[str] = ()
) -> Annotator:
    """Return a judge behind an endpoint.

    Args:
        kind: ``votes``, ``hints``.
        endpoint: of the judge.
        votes: how often each turn is judged.
        others: what else the command takes, for the error.

    Raises:
        InvalidInput: there is no such judge, or the endpoint's options are incomplete.
    """
    if kind not in _KINDS:
        raise InvalidInput(f"no judge {kind!r}; there are {', '.join([*_KINDS, *others])}")
    return _KINDS[kind](endpoint_policy(endpoint), votes=votes)


def server_judges(options: JudgeOptions) -> Judges | None:
    """Return what a server asks about turns; None if no judge was named.

    Raises:
        InvalidInput: an option is missing or out of range.
    """
    if not options.kinds:
        return None
    from trajgym.server import Judges

    if options.url is None or options.model is None:
        raise InvalidInput("--judge needs --judge-url and --judge-model")
    endpoint = EndpointOptions(
        model=options.model,
        base_url=options.url,
        api_key_env=options.api_key_env if os.environ.get(options.api_key_env) else None,
        request_timeout=options.seconds,
        patience=min(options.seconds, _PATIENCE),
    )
    return Judges(
        annotators=[make_judge(kind, endpoint, options.votes) for kind in options.kinds],
        concurrency=options.concurrency,
        seconds=options.seconds,
    )

"""Which sessions may be passed to a trainer: one check, used by every adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from trajgym.trajectory import Sampling, SessionTree

__all__ = ["Allowance", "Gate"]

Allowance: TypeAlias = Literal[
    "synthetic", "raw-logprobs", "unknown-logprobs", "cut-distribution", "mixed-temperatures"
]
"""Kinds of sessions that a trainer's loss does not expect, and that a caller can allow:

- ``synthetic``: a fake engine made up the ids and log-probs;
- ``raw-logprobs``: log-probs before temperature, at a temperature other than 1;
- ``unknown-logprobs``: whether log-probs are before or after temperature was not recorded;
- ``cut-distribution``: ``top_p`` or ``top_k`` excluded part of the distribution, or the
  temperature was 0;
- ``mixed-temperatures``: turns were sampled at different temperatures, or at a temperature other
  than the trainer's.
"""

_WHAT: dict[Allowance, str] = {
    "synthetic": "synthetic: a fake engine made up its ids and log-probs",
    "raw-logprobs": "its log-probs were taken before temperature",
    "unknown-logprobs": "the kind of its log-probs was not recorded",
    "cut-distribution": "sampled with top_p, top_k or temperature 0, which cut the distribution",
    "mixed-temperatures": "sampled at several temperatures, or at one other than the trainer's",
}
_NO_CUT_K = 1_000_000
"""Servers treat a ``top_k`` from here on as unbounded."""


class Gate:
    """Refuses sessions whose recorded log-probs are not those that a trainer's loss assumes.

    The loss divides the trainer's probability of a token, over the whole vocabulary and at one
    temperature, by the recorded probability.

    Args:
        allow: kinds of sessions that are accepted nevertheless; see `Allowance`.
        temperature: the trainer's; None takes that of the first session.
        only: the checks to make; supervised training, for example, does not read log-probs.

    Raises:
        InvalidInput: ``allow`` names an unknown kind.
    """

    def __init__(
        self,
        allow: Collection[str] = (),
        *,
        temperature: float | None = None,
        only: Collection[Allowance] = get_args(Allowance),
    ) -> None:
        self._allowed = check_allowances(allow)
        self._temperature = temperature
        self._only = frozenset(only)

    def refusal(self, tree: SessionTree) -> str | None:
        """Return why a session is refused, or None if it is accepted.

        Sessions refused for the same reason get the same text, so that reasons can be counted.
        """
        for found in self._found(tree):
            if found in self._only and found not in self._allowed:
                return f"{_WHAT[found]} (allow={[found]!r} accepts it)"
        return None

    def _found(self, tree: SessionTree) -> Iterator[Allowance]:
        if any(turn.synthetic for turn in tree.turns):
            yield "synthetic"
        sampled = [turn.sampling for turn in tree.turns if turn.tokens is not None]
        if None in sampled:
            yield "unknown-logprobs"
        known = {_parameters(one) for one in sampled if one is not None}
        if any(one.cut for one in known):
            yield "cut-distribution"
        elif any(one.mode == "unknown" for one in known):
            yield "unknown-logprobs"
        if any(one.mode == "raw" and one.temperature != 1 for one in known):
            yield "raw-logprobs"
        temperatures = {one.temperature for one in known}
        if self._temperature is None:
            self._temperature = next(
                (t for t in sorted(temperatures, key=str) if t is not None), None
            )
        if temperatures - {self._temperature}:
            yield "mixed-temperatures"


def check_allowances(allow: Collection[str]) -> frozenset[str]:
    """Return the allowances as a set.

    Raises:
        InvalidInput: ``allow`` names an unknown kind.
    """
    given = {allow} if isinstance(allow, str) else set(allow)
    if unknown := sorted(given - set(get_args(Allowance))):
        raise InvalidInput(
            f"allow: unknown value {unknown[0]!r}; known are {', '.join(get_args(Allowance))}"
        )
    return frozenset(given)


class _Parameters(NamedTuple):
    temperature: float | None
    mode: str
    cut: bool


def _parameters(sampling: Sampling) -> _Parameters:
    top_k = sampling.top_k
    cut = sampling.temperature == 0 or sampling.top_p not in {None, 1.0}
    cut = cut or (top_k is not None and 0 < top_k < _NO_CUT_K)
    return _Parameters(sampling.temperature, sampling.logprob_mode, cut)

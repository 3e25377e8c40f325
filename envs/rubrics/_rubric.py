"""Rubrics: weighted reward functions, checks and judgments that determine one outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from trajgym.envs._results import as_flag, as_number
from trajgym.envs.faults import describe
from trajgym.envs.rubrics._case import Judgment
from trajgym.envs.rubrics._parsers import last_number
from trajgym.trajectory import InvalidInput, Outcome, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trajgym.envs.rubrics._case import Case

__all__ = ["MissingJudgment", "Part", "Rubric", "RubricError"]

Kind: TypeAlias = Literal["reward", "check", "judge"]
RewardFunction: TypeAlias = "Callable[[Case], float | bool]"
CheckFunction: TypeAlias = "Callable[[Case], bool]"
PromptFunction: TypeAlias = "Callable[[Case], str]"
Reader: TypeAlias = "Callable[[str], float | None]"


class RubricError(TrajgymError):
    """A function of a rubric failed, or the score is not finite."""

    part = "verify"


class MissingJudgment(RubricError):
    """A judged part has no recorded judgment; the attempt can't be scored yet."""

    part = "judge"


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of a rubric.

    Args:
        name: the name under which it is reported.
        kind: ``reward`` for a number, ``check`` for a bool, ``judge`` for a model's judgment.
        weight: factor of its value in the score.
        function: returns the value, or the prompt of a judged part.
        gate: a check that makes the whole score 0 when it fails.
        read: returns the mark in the judge's answer, a number between 0 and ``scale``.
        scale: the highest mark of the judge.
    """

    name: str
    kind: Kind
    weight: float
    function: Callable[[Case], Any]
    gate: bool = False
    read: Reader = last_number
    scale: float = 1.0

    def value(self, case: Case) -> float:
        """Return the part's value.

        Raises:
            RubricError: the function failed.
            EnvironmentFault: its value is not a finite number or, for a check, not a bool.
            MissingJudgment: no judgment is recorded.
        """
        if self.kind == "judge":
            found = case.judgments.get(self.name)
            if found is None:
                raise MissingJudgment(
                    f"rubric part {self.name!r}: no judgment is recorded; set the environment's "
                    "judge, or have the run judged before it is scored again",
                )
            return found.value
        where = f"rubric {self.kind} {self.name!r}"
        given = self._call(case)
        if self.kind == "check":
            return float(as_flag(given, where, "its answer", "verify"))
        return as_number(given, where, "verify")

    def prompt(self, case: Case) -> str:
        """Return the judge's prompt.

        Raises:
            RubricError: the function failed or returned no text.
        """
        text = self._call(case)
        if not isinstance(text, str) or not text.strip():
            raise RubricError(
                f"rubric judge {self.name!r} returned {text!r:.80}; return the judge's prompt",
            )
        return text

    def judgment(
        self, prompt: str, answer: str, policy: str, tokens: tuple[int | None, int | None]
    ) -> Judgment:
        """Return the judgment for a judge's answer.

        Args:
            prompt: the judge's prompt.
            answer: the text of its response.
            policy: the model, as ``kind:name``.
            tokens: the numbers of prompt and completion tokens, if known.

        Raises:
            MissingJudgment: the answer contains no number between 0 and ``scale``.
        """
        mark = self.read(answer)
        if mark is None or not 0 <= mark <= self.scale:
            raise MissingJudgment(
                f"rubric judge {self.name!r}: no number from 0 to {self.scale:g} in the answer "
                f"{answer!r:.200}",
            )
        return Judgment(prompt, answer, mark / self.scale, policy, *tokens)

    def _call(self, case: Case) -> Any:
        try:
            return self.function(case)
        except Exception as error:
            # boundary: an author's function
            raise RubricError(f"rubric part {self.name!r} failed: {describe(error)}") from error


class Rubric:
    """Named parts that determine one outcome: a pure function of the recorded attempt.

    ::

        rubric = Rubric()

        @rubric.reward(weight=0.8)
        def right(case: Case) -> bool:
            return last_number(case.answer) == case.task.data["answer"]

        @rubric.check
        def finished(case: Case) -> bool:
            return case.attempt.status.kind == "completed"

    Functions take a :class:`Case`. They must depend on nothing else, must not call a model and
    must not read files, so that the attempt gets the same outcome whenever it is scored. The score
    is the sum of ``weight * value``. The attempt passes if every check holds and, if any weight is
    positive, the score is at least ``passing``.

    Args:
        name: the name under which a run stores the outcomes when it is scored again.
        passing: the minimum score of an attempt that passes; the sum of all positive weights if
            None.

    Raises:
        InvalidInput: ``passing`` is not finite.
    """

    def __init__(self, name: str = "rubric", *, passing: float | None = None) -> None:
        if passing is not None and not math.isfinite(passing):
            raise InvalidInput(f"rubric {name!r}: passing is {passing!r}; it must be finite")
        self.name = name
        self._passing = passing
        self._parts: dict[str, Part] = {}

    @property
    def parts(self) -> list[Part]:
        """The parts, in the order in which they were added."""
        return list(self._parts.values())

    @property
    def judged(self) -> list[Part]:
        """The parts that a model judges."""
        return [part for part in self.parts if part.kind == "judge"]

    @property
    def passing(self) -> float:
        """The minimum score of an attempt that passes."""
        if self._passing is not None:
            return self._passing
        return math.fsum(part.weight for part in self.parts if part.weight > 0)

    @overload
    def reward(self, function: RewardFunction, /) -> RewardFunction: ...
    @overload
    def reward(
        self, /, *, weight: float = 1.0, name: str | None = None
    ) -> Callable[[RewardFunction], RewardFunction]: ...
    def reward(
        self,
        function: RewardFunction | None = None,
        /,
        *,
        weight: float = 1.0,
        name: str | None = None,
    ) -> RewardFunction | Callable[[RewardFunction], RewardFunction]:
        """Add a reward function: it returns a finite number, or a bool for 1 or 0.

        Args:
            function: the function.
            weight: factor in the score.
            name: the name under which it is reported; the function's name by default.

        Raises:
            InvalidInput: the name is taken, or the weight is not finite.
        """

        def add(f: RewardFunction) -> RewardFunction:
            self._add(Part(name or f.__name__, "reward", weight, f))
            return f

        return add if function is None else add(function)

    @overload
    def check(self, function: CheckFunction, /) -> CheckFunction: ...
    @overload
    def check(
        self, /, *, weight: float = 0.0, gate: bool = False, name: str | None = None
    ) -> Callable[[CheckFunction], CheckFunction]: ...
    def check(
        self,
        function: CheckFunction | None = None,
        /,
        *,
        weight: float = 0.0,
        gate: bool = False,
        name: str | None = None,
    ) -> CheckFunction | Callable[[CheckFunction], CheckFunction]:
        """Add a check: an attempt for which it returns False does not pass.

        Args:
            function: returns a bool.
            weight: the amount added to the score if the check holds.
            gate: set the score to 0 if the check fails.
            name: the name under which it is reported; the function's name by default.

        Raises:
            InvalidInput: the name is taken, or the weight is not finite.
        """

        def add(f: CheckFunction) -> CheckFunction:
            self._add(Part(name or f.__name__, "check", weight, f, gate=gate))
            return f

        return add if function is None else add(function)

    def judge(
        self,
        *,
        weight: float = 1.0,
        scale: float = 1.0,
        read: Reader = last_number,
        name: str | None = None,
    ) -> Callable[[PromptFunction], PromptFunction]:
        """Add a part that a model judges: the function returns the prompt.

        The value is the mark divided by ``scale``. The prompt and the answer are recorded.

        Args:
            weight: factor in the score.
            scale: the highest mark; the lowest is 0.
            read: returns the mark in the judge's answer; by default, the last number.
            name: the name under which it is reported; the function's name by default.

        Raises:
            InvalidInput: the name is taken, the weight is not finite, or the scale not positive.
        """
        if not (math.isfinite(scale) and scale > 0):
            raise InvalidInput(f"rubric {self.name!r}: scale is {scale!r}; it must be positive")

        def add(f: PromptFunction) -> PromptFunction:
            self._add(Part(name or f.__name__, "judge", weight, f, read=read, scale=scale))
            return f

        return add

    def outcome(self, case: Case) -> Outcome:
        """Return the outcome of an attempt; its details hold every part by name.

        Raises:
            RubricError: a function failed, or the score is not finite.
            EnvironmentFault: a function did not return a finite number, or a check not a bool.
            MissingJudgment: a judged part has no judgment.
            InvalidInput: the rubric has no parts.
        """
        if not self._parts:
            raise InvalidInput(f"rubric {self.name!r} has no parts: add a reward or a check")
        values = {part.name: part.value(case) for part in self.parts}
        score = _sum(part.weight * values[part.name] for part in self.parts)
        failed = [part for part in self.parts if part.kind == "check" and not values[part.name]]
        if any(part.gate for part in failed):
            score = 0.0
        if not math.isfinite(score):
            raise RubricError(f"rubric {self.name!r}: the weighted sum is {score}")
        weighted = any(part.weight > 0 for part in self.parts)
        passed = not failed and (score >= self.passing or not weighted)
        return Outcome(score=score, passed=passed, details=self._details(case, values))

    def __add__(self, other: Rubric) -> Rubric:
        """Return a rubric with the parts of both; it is named after the first.

        Raises:
            InvalidInput: both have a part of the same name.
        """
        both = Rubric(self.name)
        for part in (*self.parts, *other.parts):
            both._add(part)
        if self._passing is not None or other._passing is not None:
            both._passing = self.passing + other.passing
        return both

    def __repr__(self) -> str:
        return f"Rubric({self.name!r}: {', '.join(self._parts) or 'no parts'})"

    def _add(self, part: Part) -> None:
        if part.name in self._parts:
            raise InvalidInput(f"rubric {self.name!r}: two parts are called {part.name!r}")
        if not math.isfinite(part.weight):
            raise InvalidInput(
                f"rubric {self.name!r}: the weight of {part.name!r} is {part.weight!r}; it must be "
                "finite",
            )
        self._parts[part.name] = part

    def _details(self, case: Case, values: dict[str, float]) -> dict[str, Any]:
        parts = {
            part.name: {"kind": part.kind, "value": values[part.name], "weight": part.weight}
            for part in self.parts
        }
        details: dict[str, Any] = {"rubric": {"name": self.name, "parts": parts}}
        if case.facts:
            details["facts"] = dict(case.facts)
        used = {part.name: case.judgments[part.name].to_json() for part in self.judged}
        return details | ({"judgments": used} if used else {})


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf

"""A game with the structure of a repair task, and a policy of a few hundred numbers that plays it.

It needs no sandbox and no model, so that many seeds and initial success rates can be compared.
"""

from __future__ import annotations

import random
from bisect import bisect
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register
from trajgym.rollout import PolicyRequest, ScriptedPolicy
from trajgym.trajectory import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from trajgym.trajectory import Message, SessionTree, Turn

SPEC = EnvSpec(id="example/repairs")
KINDS = 12
"""Kinds of bugs. Each has one edit that repairs it, which is the same in all tasks."""
EDITS = 4
WORDS = (*(f"edit {n}" for n in range(EDITS)), "check", "submit")
CHECK, SUBMIT = EDITS, EDITS + 1
_HELD_OUT = 1_000_000


def right(kind: int) -> int:
    """Return the edit that repairs a kind of bug."""
    return (5 * kind + kind // EDITS) % EDITS


class Repairs:
    """A package with bugs, in which the first bug of the last check can be edited.

    The right edit repairs it. The edit after it (cyclically) makes another bug of the next kind,
    and the other two have no effect. An agent has to check before it sees what an edit did.
    """

    def __init__(self, bugs: Sequence[int]) -> None:
        self.bugs = list(bugs)
        self.first = -1  # not known before a check

    def act(self, word: str) -> str:
        """Do what the agent says, and return its observation."""
        if word == "check":
            if not self.bugs:
                return "all right"
            self.first = self.bugs[0]
            return "wrong: " + " ".join(map(str, self.bugs))
        if word.startswith("edit") and self.bugs and self.first == self.bugs[0]:
            past = (int(word[5:]) - right(self.first)) % EDITS
            if past == 0:
                self.bugs.pop(0)
                self.first = -1
            elif past == 1:
                self.bugs.append((self.first + 1) % KINDS)
                self.first = -1
        return "changed"


@register("example/repairs")
class RepairsEnv(Env):
    """The agent says one of `WORDS` in each turn; the score is 1 if no bug is left."""

    budgets: ClassVar[Budgets] = Budgets(turns=100)

    async def reset(self, task: Task, seed: int | None) -> str:
        del seed  # all samples of a group have the same bugs
        self.game = Repairs(task.data["bugs"])
        self.limit, self.turns = int(task.data["turns"]), 0
        self.planned = len(self.game.bugs)
        return "start"

    async def respond(self, message: Message) -> ToolResult:
        word = str(message.get("content"))
        self.turns += 1
        if word == "submit":
            return ToolResult(content="submitted", done=True, signals={"submitted": True})
        seen = self.game.act(word)
        signals = {"tests_failed": len(self.game.bugs)} if word == "check" else {}
        return ToolResult(content=seen, done=self.turns >= self.limit, signals=signals)

    async def verify(self) -> Outcome:
        left = len(self.game.bugs)
        share = 1 - min(left, self.planned) / self.planned
        return Outcome(score=float(not left), passed=not left, details={"f2p": share})


def tasks(n: int, bugs: int, *, seed: int, held_out: bool = False) -> list[Task]:
    """Return n tasks; an agent without mistakes needs 2 * bugs + 2 turns and has two more."""
    found = []
    for i in range(n):
        number = 10_000 * seed + i + (_HELD_OUT if held_out else 0)
        chosen = random.Random(number).sample(range(KINDS), bugs)
        found.append(Task(id=f"repairs-{number}", data={"bugs": chosen, "turns": 2 * bugs + 4}))
    return found


class Table:
    """A softmax policy with a row of logits for each state.

    States are the beginning, an unchecked change, all right, and the kind of the first bug listed.

    Args:
        skill: the probability of the right edit where a bug is listed, at the beginning. Kinds
            differ: the logit has a standard deviation of 0.5.
        seed: of these differences.
    """

    def __init__(self, skill: float, seed: int) -> None:
        chance = np.random.default_rng(seed)
        rest = np.array([0.03, 0.03])  # checks again, submits too early
        rows = np.full((KINDS + 3, len(WORDS)), 0.05 / (EDITS + 1))
        for kind in range(KINDS):
            rows[kind, :EDITS] = (1 - skill - rest.sum()) / (EDITS - 1)
            rows[kind, right(kind)] = skill
            rows[kind, EDITS:] = rest
        rows[KINDS, CHECK] = rows[KINDS + 1, CHECK] = rows[KINDS + 2, SUBMIT] = 0.95
        self.logits: npt.NDArray[np.float64] = np.log(rows / rows.sum(1, keepdims=True))
        for kind in range(KINDS):
            self.logits[kind, right(kind)] += 0.5 * chance.standard_normal()
        self._sums = self._summed()

    def chances(self, state: int) -> npt.NDArray[np.float64]:
        """Return the probability of each word."""
        powers = np.exp(self.logits[state] - self.logits[state].max())
        return powers / powers.sum()

    def policy(self, chance: random.Random) -> ScriptedPolicy:
        """Return a policy that samples from the table as it is at each turn."""

        def answer(request: PolicyRequest) -> str:
            return WORDS[bisect(self._sums[state_of(request.messages[-1])], chance.random())]

        return ScriptedPolicy(answer, name="table")

    def success(self, held_out: Sequence[Task], repeats: int, seed: int) -> list[float]:
        """Return the share of solved games of each task."""
        chance = random.Random(seed)
        return [sum(self._solves(t, chance) for _ in range(repeats)) / repeats for t in held_out]

    def step(self, turns: Sequence[tuple[int, int, float]], adam: Adam) -> None:
        """Step once along the mean over turns of advantage times the gradient of the log-prob."""
        gradient = np.zeros_like(self.logits)
        for state, word, advantage in turns:
            gradient[state] -= advantage * self.chances(state)
            gradient[state, word] += advantage
        if gradient.any():
            self.logits += adam.step(gradient / len(turns))
            self._sums = self._summed()

    def _summed(self) -> list[list[float]]:
        """Return the cumulative probabilities of all words but the last, by state."""
        return [self.chances(state).cumsum()[:-1].tolist() for state in range(len(self.logits))]

    def _solves(self, task: Task, chance: random.Random) -> bool:
        game, seen = Repairs(task.data["bugs"]), "start"
        for _ in range(int(task.data["turns"])):
            word = WORDS[bisect(self._sums[_state(seen)], chance.random())]
            if word == "submit":
                break
            seen = game.act(word)
        return not game.bugs


class Adam:
    """Adam's direction for a gradient that is to be followed (arXiv 1412.6980)."""

    def __init__(self, rate: float, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        self.rate, self.betas = rate, betas
        self.steps = 0
        self.mean: npt.NDArray[np.float64] | float = 0.0
        self.square: npt.NDArray[np.float64] | float = 0.0

    def step(self, gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the change of the parameters."""
        self.steps += 1
        slow, fast = self.betas
        self.mean = slow * self.mean + (1 - slow) * gradient
        self.square = fast * self.square + (1 - fast) * gradient**2
        mean = self.mean / (1 - slow**self.steps)
        square = self.square / (1 - fast**self.steps)
        return np.asarray(self.rate * mean / (np.sqrt(square) + 1e-8))


def choices(tree: SessionTree) -> list[tuple[int, int]]:
    """Return state and word of each turn of a session, as indices."""
    return [(state_of(_before(tree, turn)), _word(turn)) for turn in tree.turns]


def state_of(message: Message) -> int:
    """Return the index of the state that a message of the environment describes."""
    return _state(str(message["content"]))


def _before(tree: SessionTree, turn: Turn) -> Message:
    shown = turn.context if turn.parent is None else tree.turns[turn.parent].observation
    return shown[-1]


def _word(turn: Turn) -> int:
    return WORDS.index(str(turn.message["content"]))


def _state(seen: str) -> int:
    if seen.startswith("wrong: "):
        return int(seen.split()[1])
    return KINDS + ("start", "changed", "all right").index(seen)

"""Tasks of the code-interpreter environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, model_validator

from trajgym.envs import TaskData
from trajgym.envs import load_tasks as load_records
from trajgym.envs.code._answers import Match  # noqa: TC001  # pydantic reads it
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["BUILTIN", "CodeRecord", "load_tasks"]

BUILTIN = "builtin"


class CodeRecord(TaskData):
    """One task. Unknown fields are kept.

    Attributes:
        question: what the agent is asked.
        answer: the right answer, or several that count.
        match: how answers are compared, see :func:`is_right`; None leaves it to the environment.
        check: Python source that defines ``check(answer: str)`` returning a bool or a score from 0
            to 1; runs in a fresh sandbox. Instead of ``answer``.
        files: text files in the working directory, by relative path.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    question: str = Field(min_length=1)
    answer: list[str] = Field(default_factory=list)
    match: Match | None = None
    check: str = ""
    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _one_answer(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("answer"), (str, int, float)):
            return {**data, "answer": [str(data["answer"])]}
        return data

    @model_validator(mode="after")
    def _checkable(self) -> Self:
        if bool(self.answer) == bool(self.check.strip()):
            raise ValueError("give exactly one of 'answer' and 'check'")
        if any(not answer.strip() for answer in self.answer):
            raise ValueError("'answer' must not be blank")
        if self.check:
            try:
                compile(self.check, "check", "exec")
            except (SyntaxError, ValueError) as error:
                raise ValueError(f"'check' is not Python: {error}") from None
        for path in self.files:
            if path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"file {path!r} must be in the working directory")
        return self

    @classmethod
    def fields_of(cls, task: Task) -> Mapping[str, Any]:
        """Return the fields of a task; ``question`` may be in its prompt instead."""
        return {"question": task.prompt, **task.data} if task.prompt else task.data


def load_tasks(source: str) -> list[Task]:
    """Read and check tasks.

    Args:
        source: ``builtin`` (six small tasks), or a file or folder as
            :func:`trajgym.envs.load_tasks` reads them, with :class:`CodeRecord` as their data.

    Raises:
        InvalidInput: the file can't be read, or a task has neither an answer nor a check.
    """
    if source == BUILTIN:
        return [Task(id=f"trajgym-code-{name}", data=data) for name, data in _TASKS.items()]
    return load_records(source, data=CodeRecord)


_TASKS: dict[str, dict[str, Any]] = {
    "squares": {
        "question": "What is the sum of all squares n*n with 1 <= n <= 5000 whose decimal digits "
        "add up to a prime number?",
        "check": "def check(answer):\n"
        "    prime = lambda n: n > 1 and all(n % d for d in range(2, n))\n"
        "    squares = (n * n for n in range(1, 5001))\n"
        "    right = sum(s for s in squares if prime(sum(map(int, str(s)))))\n"
        "    return answer.replace(',', '').strip() == str(right)\n",
        "solution": "prime = lambda n: n > 1 and all(n % d for d in range(2, n))\n"
        "sum(s for s in (n * n for n in range(1, 5001)) if prime(sum(map(int, str(s)))))",
    },
    "change": {
        "question": "In how many ways can 100 cents be paid with coins of 1, 5, 10, 25 and 50 "
        "cents?",
        "answer": "292",
        "solution": "ways = [1] + [0] * 100\nfor coin in (1, 5, 10, 25, 50):\n"
        "    for total in range(coin, 101):\n        ways[total] += ways[total - coin]\nways[100]",
    },
    "dice": {
        "question": "Three fair dice are rolled. What is the probability that the sum is at least "
        "15? Give a fraction.",
        "answer": "5/54",
        "solution": "from fractions import Fraction\nfrom itertools import product\n"
        "rolls = list(product(range(1, 7), repeat=3))\n"
        "print(Fraction(sum(sum(r) >= 15 for r in rolls), len(rolls)))",
    },
    "ledger": {
        "question": "The file ledger.csv has a row per payment (account, amount). Which account "
        "has the highest balance?",
        "answer": "harbour",
        "files": {
            "ledger.csv": "account,amount\nmill,120.5\nharbour,90\nmill,-60\nharbour,31\nquay,75\n"
        },
        "solution": "import csv\nfrom collections import Counter\nbalance = Counter()\n"
        "for row in csv.DictReader(open('ledger.csv')):\n"
        "    balance[row['account']] += float(row['amount'])\n"
        "print(balance.most_common(1)[0][0])",
    },
    "collatz": {
        "question": "Which start below 10000 has the longest Collatz sequence?",
        "answer": "6171",
        "solution": "def length(n):\n    steps = 1\n    while n != 1:\n"
        "        n = n // 2 if n % 2 == 0 else 3 * n + 1\n        steps += 1\n    return steps\n"
        "max(range(1, 10000), key=length)",
    },
    "root": {
        "question": "To four decimal places: the positive x with x**3 = 10 - x.",
        "answer": "2.0000",
        "solution": "low, high = 0.0, 10.0\nfor _ in range(60):\n    middle = (low + high) / 2\n"
        "    low, high = (middle, high) if middle**3 < 10 - middle else (low, middle)\n"
        "print(f'{low:.4f}')",
    },
}

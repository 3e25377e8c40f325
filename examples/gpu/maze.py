"""A game for small models: find the door of a maze, with one word per turn."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register
from trajgym.trajectory import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from trajgym.rollout import PolicyRequest
    from trajgym.trajectory import Message

SPEC = EnvSpec(id="example/maze")
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SIZE = 6
TURNS = 10
_WALLS = 0.25
_NEAREST, _FARTHEST = 4, 7
_HELD_OUT = 1_000_000
"""Mazes with this seed or a larger one are not used in training."""

Cell = tuple[int, int]


class Maze(NamedTuple):
    """A maze: the distance of each open cell to the door, the start, and the door."""

    distance: dict[Cell, int]
    start: Cell
    door: Cell

    @classmethod
    def made(cls, seed: int) -> Maze:
        """Return the maze of a seed; its door is 4 to 7 steps from the start."""
        chance = random.Random(seed)
        cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
        while True:
            free = {cell for cell in cells if chance.random() >= _WALLS}
            door = chance.choice(cells)
            distance = _distances(free | {door}, door)
            starts = sorted(c for c, d in distance.items() if _NEAREST <= d <= _FARTHEST)
            if starts:
                return cls(distance, chance.choice(starts), door)

    def open_moves(self, at: Cell) -> list[str]:
        """Return the directions without a wall."""
        return [word for word in MOVES if _moved(at, word) in self.distance]

    def best_move(self, at: Cell) -> str:
        """Return a direction that reduces the distance to the door."""
        return min(self.open_moves(at), key=lambda word: self.distance[_moved(at, word)])

    def seen(self, at: Cell) -> str:
        """Return the observation at a cell: the way to the door, and directions without a wall."""
        down, right = self.door[0] - at[0], self.door[1] - at[1]
        where = [f"{abs(down)} {'down' if down > 0 else 'up'}"] if down else []
        where += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
        return f"Door: {', '.join(where)}. Open: {', '.join(self.open_moves(at))}."


@register("example/maze")
class MazeEnv(Env):
    """The agent answers up, down, left or right, at most ten times; the score is 1 at the door."""

    budgets: ClassVar[Budgets] = Budgets(turns=TURNS, seconds_per_turn=120)

    async def reset(self, task: Task, seed: int | None) -> str:
        del seed  # the task has the maze, so all sessions of a group have the same one
        self.maze = Maze.made(int(task.data["seed"]))
        self.at = self.maze.start
        self.steps = 0
        return f"Find the door. Say up, down, left or right.\n{self.maze.seen(self.at)}"

    async def respond(self, message: Message) -> ToolResult:
        self.steps += 1
        word = str(message.get("content") or "").strip().strip(".").lower()
        valid = word in MOVES
        target = _moved(self.at, word) if valid else self.at
        if target in self.maze.distance:
            self.at = target
        signals = {"format_ok": valid, "distance": self.maze.distance[self.at]}
        if self.at == self.maze.door:
            return ToolResult(content="The door!", done=True, signals=signals)
        return ToolResult(content=self.maze.seen(self.at), signals=signals)

    async def verify(self) -> Outcome:
        solved = self.at == self.maze.door
        return Outcome(score=float(solved), passed=solved, details={"steps": self.steps})


def tasks(n: int, seed: int = 0, *, held_out: bool = False) -> list[Task]:
    """Return the tasks of n mazes; training tasks and held-out tasks never have the same maze."""
    first = seed * 10_000 + (_HELD_OUT if held_out else 0)
    return [Task(id=f"maze-{first + i}", data={"seed": first + i}) for i in range(n)]


def walker(noise: float) -> Callable[[PolicyRequest], Generator[str, Sequence[Message], None]]:
    """Return a script that takes the shortest path, or with chance ``noise`` a random open move."""

    def walk(request: PolicyRequest) -> Generator[str, Sequence[Message], None]:
        assert request.task is not None
        seed = int(request.task.data["seed"])
        maze, chance = Maze.made(seed), random.Random(f"{seed} {request.sample}")
        at = maze.start
        while True:
            lost = chance.random() < noise
            word = chance.choice(maze.open_moves(at)) if lost else maze.best_move(at)
            yield word
            at = _moved(at, word)

    return walk


def _moved(at: Cell, word: str) -> Cell:
    down, right = MOVES[word]
    return at[0] + down, at[1] + right


def _distances(free: set[Cell], door: Cell) -> dict[Cell, int]:
    found, waiting = {door: 0}, deque([door])
    while waiting:
        at = waiting.popleft()
        for word in MOVES:
            cell = _moved(at, word)
            if cell in free and cell not in found:
                found[cell] = found[at] + 1
                waiting.append(cell)
    return found

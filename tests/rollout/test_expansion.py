"""Tree rollouts: sessions that are forked after their end, rivals driven like any attempt."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import load_golden
from trajgym.envs import Budgets, Env, EnvSpec, Reply, ToolResult, register, tool
from trajgym.rewards import TreeGRPO, apply
from trajgym.rewards.trees import fork_points
from trajgym.rollout import (
    EntropyExpansion,
    Expansion,
    Policy,
    PolicyRequest,
    PolicyUnavailable,
    Progress,
    Runner,
    ScriptedPolicy,
    SealedGroup,
    SurprisalExpansion,
    TokenPolicy,
    TreeExpansion,
    call,
    collect,
)
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import (
    InvalidInput,
    Run,
    SessionTree,
    Store,
    Task,
    Usage,
    build_rows,
    validate_row,
)

ROOT = Path(__file__).parent.parent.parent


@register("test/walk")
class Walk(Env):
    """Three steps, then the end; what was walked decides the score."""

    budgets = Budgets(turns=10, seconds_per_turn=200)
    live = 0
    most_live = 0

    def reset(self, task: Task, seed: int | None) -> str:
        Walk.live += 1
        Walk.most_live = max(Walk.most_live, Walk.live)
        self.at, self.is_open = 0, True
        return "Walk."

    @tool
    def step(self, to: int) -> ToolResult:
        """Take a step.

        Args:
            to: how far.
        """
        self.at += to
        return ToolResult(content=f"at {self.at}", signals={"at": self.at})

    @tool
    def stop(self) -> ToolResult:
        """End the walk."""
        return ToolResult(done=True)

    @tool
    def watch(self) -> str:
        """Tell something that never comes back."""
        return os.urandom(8).hex()

    def verify(self) -> float:
        return float(self.at % 2)

    def close(self) -> None:
        if getattr(self, "is_open", False):
            self.is_open = False
            Walk.live -= 1


@register("test/one-way")
class OneWay(Walk):
    """A walk that can't be forked."""

    forkable = False


SPEC = EnvSpec(id="test/walk")
TASKS = [Task(id="t0"), Task(id="t1")]


def walk(asked: FakeCall) -> Any:
    """Steps that depend on the seed, so that rivals differ."""
    return call("step", to=(asked.seed or 0) % 7) if asked.turn < 3 else call("stop")


def walker() -> TokenPolicy:
    return TokenPolicy.fake(walk)


def text_walk(request: PolicyRequest) -> Any:
    return call("step", to=(request.seed or 0) % 7) if request.turn < 3 else call("stop")


class At(Expansion):
    """Forks where it is told."""

    def __init__(self, *points: int | None) -> None:
        self.points = list(points)

    def plan(self, tree: SessionTree, number: int, chance: random.Random) -> list[int | None]:
        return self.points


async def sealed_groups(
    out: Path,
    expansion: Expansion,
    policy: Policy | None = None,
    spec: EnvSpec = SPEC,
    **settings: Any,
) -> list[SealedGroup]:
    settings = {"samples": 2, **settings}
    async with Store(out) as store:
        async with Runner(
            spec, TASKS, policy or walker(), store=store, expansion=expansion, **settings
        ) as runner:
            return [group async for group in runner]


def endings(tree: SessionTree) -> list[str]:
    return [str(attempt.status) for attempt in tree.attempts]


def causes(tree: SessionTree) -> list[str]:
    return [attempt.cause for attempt in tree.attempts]


def shape(tree: SessionTree) -> list[tuple[int | None, list[str]]]:
    """Where each attempt was forked, relative to others, and what it said."""
    return [
        (
            None if attempt.forked_at is None else tree.turns[attempt.forked_at].attempt,
            [str(turn.message["tool_calls"][0]["function"]) for turn in tree.trajectory(attempt)],
        )
        for attempt in tree.attempts
    ]


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize(
    ("trees", "nodes", "rounds"), [(2, 2, 1), (1, 3, 2), (3, 1, 1), (1, 7, 1), (2, 0, 1), (2, 2, 0)]
)
async def test_leaves_are_counted_as_the_paper_counts_them(
    tmp_path: Path, variant: Any, trees: int, nodes: int, rounds: int
) -> None:
    """M trees, N nodes and L rounds give M * (L * N + 1) scored attempts, in the store too."""
    expansion = TreeExpansion(nodes=nodes, rounds=rounds, variant=variant)
    groups = await sealed_groups(tmp_path, expansion, samples=trees)
    assert expansion.leaves(trees) == trees * (rounds * nodes + 1)
    assert len(groups) == len(TASKS)
    for _, sessions in groups:
        assert len(sessions) == trees
        statuses = Counter(status for tree in sessions for status in endings(tree))
        assert statuses == {"completed": expansion.leaves(trees)}
    with Run(tmp_path) as run:
        kept = {tree.record.id: tree.to_json() for tree in run.sessions()}
    assert kept == {t.record.id: t.to_json() for group in groups for t in group.sessions}


async def test_paper_takes_different_nodes_and_never_a_leaf(tmp_path: Path) -> None:
    """Three rivals of a chain of four turns begin after its three inner turns, none at the root."""
    ((_, sessions), *_) = await sealed_groups(tmp_path, TreeExpansion(nodes=3))
    for tree in sessions:
        assert sorted(str(a.forked_at) for a in tree.attempts[1:]) == ["0", "1", "2"]


async def test_official_draws_with_replacement_and_from_the_root(tmp_path: Path) -> None:
    """Of twelve rivals of a chain of four turns, some begin at the same node and some afresh."""
    expansion = TreeExpansion(nodes=12, variant="official")
    groups = await sealed_groups(tmp_path, expansion)
    drawn = Counter(a.forked_at for g in groups for t in g.sessions for a in t.attempts[1:])
    assert set(drawn) == {None, 0, 1, 2}


async def test_a_shared_prefix_is_trained_once(tmp_path: Path) -> None:
    """The rows of a tree train every sampled token of every turn exactly once."""
    for _, sessions in await sealed_groups(tmp_path, TreeExpansion(nodes=3, rounds=2)):
        for tree in sessions:
            rows, dropped = build_rows(tree)
            assert dropped == []
            trained = Counter(turn for row in rows for turn in row.turns)
            assert trained == Counter(range(len(tree.turns)))
            sampled = sum(int(t.tokens.sampled_mask.sum()) for t in tree.turns if t.tokens)
            assert sum(int(row.loss_mask.sum()) for row in rows) == sampled
            assert sum(row.weight for row in rows) == pytest.approx(1.0)


async def test_tree_grpo_from_rollout_to_rows(tmp_path: Path) -> None:
    """Each token carries the summed intra- and inter-tree advantages of the leaves below it."""
    groups = await sealed_groups(tmp_path, TreeExpansion(nodes=3, rounds=2), samples=3)
    deriver = TreeGRPO()
    sessions = [tree for group in groups for tree in group.sessions]
    values = deriver.derive(deriver.table([group.group for group in groups], sessions))
    assert np.any(values.values)
    for _, trees in groups:
        prompt = [score for tree in trees for score in scores(tree)]
        for tree in trees:
            leaf = [z(score, scores(tree)) + z(score, prompt) for score in scores(tree)]
            expected = [
                sum(
                    leaf[attempt.index]
                    for attempt in tree.attempts
                    if turn in tree.trajectory(attempt)
                )
                for turn in tree.turns
            ]
            assert values.of(tree.record.id).tolist() == pytest.approx(expected)
            for row in apply(build_rows(tree).rows, values):
                validate_row(row)
                assert row.advantage is not None
                on = row.turn_ids[row.loss_mask]
                assert row.advantage[row.loss_mask] == pytest.approx(np.float32(expected)[on])


def scores(tree: SessionTree) -> list[float]:
    return [attempt.outcome.score for attempt in tree.attempts if attempt.outcome]


def z(score: float, group: Sequence[float]) -> float:
    std = float(np.std(group))
    return (score - float(np.mean(group))) / std if std else 0.0


async def test_the_same_seed_grows_the_same_trees(tmp_path: Path) -> None:
    """The number of concurrent sessions changes neither the forks of trees nor their messages."""
    found = []
    for concurrency in (1, 5):
        out = tmp_path / str(concurrency)
        expansion = TreeExpansion(nodes=2, rounds=3)
        groups = await sealed_groups(out, expansion, concurrency=concurrency, seed=4)
        found.append({t.record.id: shape(t) for group in groups for t in group.sessions})
    assert found[0] == found[1]
    assert len({str(one) for one in found[0].values()}) > 1


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_rivals_share_the_concurrency_of_sessions(tmp_path: Path, concurrency: int) -> None:
    """Sessions and rivals together never have more environments open than asked for."""
    Walk.live = Walk.most_live = 0
    expansion = TreeExpansion(nodes=4, rounds=2)
    await sealed_groups(tmp_path, expansion, samples=4, concurrency=concurrency)
    assert (Walk.live, Walk.most_live) == (0, concurrency)


async def test_an_unforkable_environment_keeps_its_chains(tmp_path: Path) -> None:
    """Sessions that can't be forked are scored as they are, with the reason by name."""
    spec = EnvSpec(id="test/one-way")
    for group, sessions in await sealed_groups(tmp_path, TreeExpansion(), spec=spec):
        assert [m.left for m in group.members] == ["", ""]
        for tree in sessions:
            assert endings(tree) == ["completed", "failed:fork"]
            assert causes(tree)[1].startswith("Unforkable: environment 'test/one-way'")
            assert len(build_rows(tree).rows) == 1


async def test_a_fork_that_diverges_ends_only_itself(tmp_path: Path) -> None:
    """A turn that can't be repeated costs the rivals behind it, by name, and no other."""

    def watchful(asked: FakeCall) -> Any:
        return call("watch") if asked.turn == 1 else walk(asked)

    expansion = At(0, 1, None, 2, 0)
    groups = await sealed_groups(tmp_path, expansion, TokenPolicy.fake(watchful))
    for group, sessions in groups:
        assert all(not member.left for member in group.members)
        for tree in sessions:
            done, lost = "completed", "failed:fork"
            assert endings(tree) == [done, done, lost, done, lost, done]
            assert "ForkDiverged: " in causes(tree)[2]
            assert "replaying turn 1 gave another observation" in causes(tree)[2]
            assert len(scores(tree)) == 4


async def test_a_rival_whose_policy_fails_ends_only_itself(tmp_path: Path) -> None:
    """A policy that breaks in one rival leaves chain, other rivals and group as they are."""

    def moody(request: PolicyRequest) -> Any:
        if request.attempt == 2:
            raise PolicyUnavailable("no more")
        return text_walk(request)

    for group, sessions in await sealed_groups(tmp_path, At(0, 0, 1), ScriptedPolicy(moody)):
        assert all(not member.left for member in group.members)
        for tree in sessions:
            assert endings(tree) == ["completed", "completed", "failed:policy", "completed"]
            assert causes(tree)[2] == "no more"


async def test_a_progress_callback_that_fails_in_a_rival_ends_only_it(tmp_path: Path) -> None:
    """A failure of one rival does not cancel the others."""
    turns: Counter[str] = Counter()

    def note(event: Progress) -> None:
        turns[event.session] += event.kind == "turn"
        if event.kind == "turn" and turns[event.session] == 6:
            raise RuntimeError("bar is broken")

    for _, sessions in await sealed_groups(tmp_path, At(0, 0), on_progress=note):
        for tree in sessions:
            assert sorted(endings(tree)) == ["completed", "completed", "failed:callback"]


async def test_a_chain_that_failed_is_not_forked(tmp_path: Path) -> None:
    """Without a score to compare with there is nothing to expand."""

    def broken(request: PolicyRequest) -> Any:
        if request.turn == 2:
            raise PolicyUnavailable("gone")
        return text_walk(request)

    for group, sessions in await sealed_groups(tmp_path, TreeExpansion(), ScriptedPolicy(broken)):
        assert sessions == []
        assert [m.left for m in group.members] == ["failed:policy"] * 2


@pytest.mark.parametrize(
    ("points", "cause"),
    [([9], "IndexError"), ([3], "Unforkable: turn 3 ended the episode"), (["x"], "TypeError")],
)
async def test_impossible_places_are_named(tmp_path: Path, points: Any, cause: str) -> None:
    """A plan that names no turn, or one that can't be forked, costs that rival only."""
    for _, sessions in await sealed_groups(tmp_path, At(*points, 0)):
        for tree in sessions:
            assert endings(tree) == ["completed", "failed:fork", "completed"]
            assert causes(tree)[1].startswith(cause)


async def test_text_turns_have_no_surprisal(tmp_path: Path) -> None:
    """An expansion that needs log-probs reports this for a session of text turns, which is kept."""
    policy = ScriptedPolicy(text_walk)
    for _, sessions in await sealed_groups(tmp_path, SurprisalExpansion(), policy):
        for tree in sessions:
            assert endings(tree) == ["completed", "failed:fork"]
            assert "use TreeExpansion" in causes(tree)[1]


@pytest.mark.parametrize("expansion", [SurprisalExpansion(), EntropyExpansion(base=1.0)])
def test_a_turn_for_which_nothing_was_sampled_is_passed_over(expansion: Expansion) -> None:
    """The turns with ids are chosen from, as if it were not there."""
    tree, _ = load_golden("truncated")
    last = tree.turns[2]
    last.tokens, last.calls, last.message = None, [], {"role": "assistant", "content": ""}
    last.usage = Usage(prompt_tokens=9, completion_tokens=0)
    planned = expansion.plan(tree, 1, random.Random(0))
    assert set(planned) <= {tree.turns[0].parent, tree.turns[1].parent}
    last.usage = None
    with pytest.raises(InvalidInput, match="turn 2 is a text turn"):
        expansion.plan(tree, 1, random.Random(0))


async def test_surprising_turns_are_sampled_again(tmp_path: Path) -> None:
    """The turns with the least likely tokens get the rivals, as many leaves as EPTree counts."""
    expansion = SurprisalExpansion(nodes=2, rounds=1, branches=2)
    for _, sessions in await sealed_groups(tmp_path, expansion):
        assert sum(len(scores(tree)) for tree in sessions) == expansion.leaves(2) == 10
        for tree in sessions:
            chain = SessionTree(tree.record, tree.turns[:4], tree.attempts[:1])
            ranked = list(dict.fromkeys(p.turn for p in fork_points(chain, 10_000)))
            expected = [tree.turns[turn].parent for turn in ranked[:2] for _ in range(2)]
            assert [attempt.forked_at for attempt in tree.attempts[1:]] == expected


async def test_later_rounds_go_to_turns_without_rivals(tmp_path: Path) -> None:
    """Four rounds of one node resample four different turns of the tree."""
    expansion = SurprisalExpansion(nodes=1, rounds=4, branches=1)
    for _, sessions in await sealed_groups(tmp_path, expansion):
        for tree in sessions:
            assert len({attempt.forked_at for attempt in tree.attempts[1:]}) == 4


@pytest.mark.parametrize(
    ("base", "branches", "rivals"), [(1.0, 2, 2), (0.0, 2, 0), (1.0, 9, 3), (1.0, 0, 0)]
)
async def test_unsure_turns_after_tools_are_sampled_again(
    tmp_path: Path, base: float, branches: int, rivals: int
) -> None:
    """ARPO's probability decides at each turn after a tool result, up to the budget."""
    expansion = EntropyExpansion(base=base, weight=0.0, branches=branches)
    for _, sessions in await sealed_groups(tmp_path, expansion):
        for tree in sessions:
            assert [attempt.forked_at for attempt in tree.attempts[1:]] == list(range(rivals))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TreeExpansion(nodes=-1),
        lambda: SurprisalExpansion(branches=-1),
        lambda: EntropyExpansion(tokens=0),
    ],
)
def test_numbers_out_of_range(make: Callable[[], Expansion]) -> None:
    """Numbers that make no sense are refused when the expansion is made."""
    with pytest.raises(InvalidInput):
        make()


async def test_cancelled_in_the_middle_of_a_tree_and_resumed(tmp_path: Path) -> None:
    """Cancelling ends rivals by name; the sample is run again, whole, and counts once."""
    stuck = asyncio.Event()

    class Slow(Policy):
        name = "test:slow"

        async def sample(self, request: PolicyRequest) -> Reply:
            if request.attempt == 2:
                stuck.set()
                await asyncio.Event().wait()
            return Reply(message=text_walk(request))

    settings: dict[str, Any] = {"samples": 2, "expansion": TreeExpansion(nodes=2, rounds=2)}
    work = asyncio.create_task(collect(SPEC, TASKS, Slow(), tmp_path, concurrency=3, **settings))
    await stuck.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert Walk.live == 0
    with Run(tmp_path) as run:
        left = Counter(status for tree in run.sessions() for status in endings(tree))
        assert left["cancelled"] >= 1
        assert left["running"] == left["interrupted"] == 0
        assert all(not group.sealed for group in run.groups())
    settings["allow_changes"] = ["policy"]
    await collect(SPEC, TASKS, ScriptedPolicy(text_walk), tmp_path, **settings)
    check_complete(tmp_path, leaves=5, samples=2, tasks=2)
    third = await collect(SPEC, TASKS, ScriptedPolicy(text_walk), tmp_path, **settings)
    assert third.sessions == 0


def check_complete(out: Path, *, leaves: int, samples: int, tasks: int) -> None:
    """Every group is sealed, each sample counts once, and counts a whole tree."""
    with Run(out) as run:
        assert run.check() == []
        groups = list(run.groups())
        assert len(groups) == tasks
        for group in groups:
            assert group.sealed
            assert sorted(m.sample for m in group.counted) == list(range(samples))
            assert {m.left for m in group.members} <= {"", "interrupted", "cancelled"}
            for member in group.counted:
                assert endings(run.session(member.session)) == ["completed"] * leaves


COLLECT = """
import asyncio, sys
from pathlib import Path
from tests.rollout.fleet import Rationed
from tests.rollout.test_expansion import SPEC, ScriptedPolicy, TreeExpansion, text_walk
from trajgym.rollout import collect
from trajgym.trajectory import Task

def note(event):
    if event.kind == "turn":
        print(event.session, flush=True)

settings = {"samples": 2, "concurrency": 3, "on_progress": note}
expansion = TreeExpansion(nodes=2, rounds=2)
tasks = [Task(id=f"t{i}") for i in range(8)]
policy = Rationed(ScriptedPolicy(text_walk), int(sys.argv[2]), Path(sys.argv[1], "never"))
asyncio.run(collect(SPEC, tasks, policy, sys.argv[1], expansion=expansion, **settings))
print("complete", flush=True)
"""


def test_trees_survive_sigkill(tmp_path: Path) -> None:
    """Killed eight times among its rivals, a collection ends with a whole tree per sample."""
    chance = random.Random(3)
    killed = 0
    while True:
        wanted = chance.randint(5, 40)
        # A slow test must not let the collection end: a few turns more, and no other.
        most = wanted + 3 if killed < 8 else -1
        command = [sys.executable, "-c", COLLECT, str(tmp_path), str(most)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert worker.stdout is not None
        lines: list[str] = []
        if killed < 8:
            while len(lines) < wanted and (line := worker.stdout.readline()):
                lines.append(line)
            os.kill(worker.pid, signal.SIGKILL)
            killed += 1
        lines += worker.stdout.readlines()
        worker.wait()
        worker.stdout.close()
        if "complete\n" in lines:
            break
    check_complete(tmp_path, leaves=5, samples=2, tasks=8)
    with Run(tmp_path) as run:
        cut = [m.left for group in run.groups() for m in group.members if m.left]
    assert killed == 8
    assert "interrupted" in cut


async def test_runs_without_expansion_are_not_grown_later(tmp_path: Path) -> None:
    """Sessions that were finished as chains stay finished when a later call asks for trees."""
    await collect(SPEC, TASKS, ScriptedPolicy(text_walk), tmp_path, samples=2)
    report = await collect(
        SPEC,
        TASKS,
        ScriptedPolicy(text_walk),
        tmp_path,
        samples=2,
        expansion=TreeExpansion(),
        allow_changes=["expansion"],
    )
    assert report.sessions == 0

"""Several environments in one run: proportions, limits, curricula, resuming."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.rollout.mixing import EASY, HARD, Easy, mixed, parts, policy
from trajgym.cli import app
from trajgym.rollout import Progress, Runner, collect, group_id
from trajgym.rollout.evaluation import summarize
from trajgym.rollout.fleet import Fleet, collect_in_processes
from trajgym.rollout.mixture import Curriculum, Draws, Mixture, Part, load_mixture
from trajgym.rollout.mixture._draws import drawn_groups
from trajgym.trajectory import InvalidInput, Run, Store, Task


def many(n: int, prefix: str) -> list[Task]:
    return [Task(id=f"{prefix}{i}") for i in range(n)]


def part(name: str, n: int = 5, **values: Any) -> Part:
    return Part(name=name, spec=EASY, tasks=many(n, name), **values)


def name_of(mixture: Mixture, task: Task | None) -> str:
    assert task is not None
    return mixture.part_of(task).name


# Drawing ------------------------------------------------------------------------------------


@given(
    weights=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
    n=st.integers(1, 200),
)
def test_each_prefix_has_the_proportions(weights: list[float], seed: int, n: int) -> None:
    """After any number of draws, each part has its share, but for one group."""
    mixture = Mixture([part(f"p{i}x", weight=w) for i, w in enumerate(weights)], repeat=True)
    draws = Draws(mixture, seed)
    found = Counter(name_of(mixture, draws.draw()) for _ in range(n))
    for i, weight in enumerate(weights):
        assert abs(found[f"p{i}x"] - n * weight / sum(weights)) <= len(weights)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    groups=st.none() | st.integers(1, 60),
    repeat=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_tasks_are_drawn_once_a_round(
    sizes: list[int], groups: int | None, *, repeat: bool, shuffle: bool, seed: int
) -> None:
    """No task is drawn again before all others of its part; the sequence depends on the seed."""
    chosen = [part(f"p{i}x", n) for i, n in enumerate(sizes)]
    mixture = Mixture(chosen, groups=groups, repeat=repeat, shuffle=shuffle)
    draws, same = Draws(mixture, seed), Draws(mixture, seed)
    most = 80
    seen: list[Task] = []
    while len(seen) < most and not draws.over:
        task = draws.draw()
        assert task is not None
        assert same.draw() == task
        seen.append(task)
    wanted = sum(sizes) if not repeat else most
    assert len(seen) == min(wanted, groups or most, most)
    for i, size in enumerate(sizes):
        own = [task.id for task in seen if mixture.part_of(task).name == f"p{i}x"]
        rounds = [own[at : at + size] for at in range(0, len(own), size)]
        assert all(len(set(one)) == len(one) for one in rounds)
        if not shuffle:
            assert own == ([task.id for task in chosen[i].tasks] * most)[: len(own)]


@given(steps=st.lists(st.sets(st.sampled_from("ab")), min_size=1, max_size=60))
def test_a_part_without_room_is_left_out_and_does_not_catch_up(steps: list[set[str]]) -> None:
    """Others are drawn meanwhile; afterwards no part is more than one group ahead of its share."""
    mixture = Mixture([part("a"), part("b")], repeat=True)
    draws = Draws(mixture, 0)
    ahead = 0
    for full in steps:
        task = draws.draw(full)
        assert (task is None) == (full == {"a", "b"})
        if task is None:
            continue
        name = name_of(mixture, task)
        assert name not in full
        if full:
            ahead = 0
        else:
            ahead += 1 if name == "a" else -1
            assert -2 <= ahead <= 2


def outcome(task: str) -> int:
    """How many of four sessions solve a task, by its name: e(asy), h(ard) or m(iddle)."""
    return {"e": 4, "h": 0, "m": 2}[task[0]]


def play(draws: Draws, task: Task, seen: Counter[str]) -> None:
    name = group_id(task, seen[task.id])
    seen[task.id] += 1
    for sample in range(4):
        score = float(sample < outcome(task.id))
        draws.note(Progress("ended", f"{name}-{sample}", task.id, "completed", score))
    draws.end(name)


def curriculum(**values: Any) -> Mixture:
    known = [*many(6, "e"), *many(6, "h"), *many(4, "m")]
    one = Part(name="p", spec=EASY, tasks=known)
    return Mixture([one], curriculum=Curriculum(**values))


@given(seed=st.integers(0, 1000), revisit=st.integers(5, 60))
def test_tasks_without_a_difference_are_set_aside_and_revisited(seed: int, revisit: int) -> None:
    """All tasks are tried first; then mixed ones, and each other one again after a while."""
    draws = Draws(curriculum(revisit=revisit), seed)
    seen: Counter[str] = Counter()
    order: list[str] = []
    for _ in range(200):
        task = draws.draw()
        assert task is not None
        order.append(task.id)
        play(draws, task, seen)
        assert draws.counts["p"].aside <= 12
    assert set(order[:16]) == {task.id for task in curriculum().parts[0].tasks}
    for name in (f"{kind}{i}" for kind in "eh" for i in range(6)):
        at = [i for i, one in enumerate(order) if one == name]
        gaps = [b - a for a, b in pairwise(at)]
        assert all(gap >= revisit for gap in gaps)
        assert len(at) > 1 or revisit > 200 - 16 - at[0] - 24
    assert sum(one[0] == "m" for one in order[16 : 16 + revisit]) >= revisit - 16


def test_a_task_that_is_learned_comes_back() -> None:
    """A revisited task with both outcomes is drawn like others again."""
    draws = Draws(curriculum(revisit=10), 3)
    seen: Counter[str] = Counter()
    learned = False
    after: Counter[str] = Counter()
    for i in range(300):
        task = draws.draw()
        assert task is not None
        if task.id == "h0" and i > 100:
            name = group_id(task, seen[task.id])
            seen[task.id] += 1
            for sample in range(4):
                score = float(sample < 2)
                draws.note(Progress("ended", f"{name}-{sample}", task.id, "completed", score))
            draws.end(name)
            learned = True
        else:
            play(draws, task, seen)
        if learned:
            after[task.id] += 1
    assert after["h0"] > 5 * max(after["h1"], 1)


@settings(deadline=None)
@given(seed=st.integers(0, 100), shuffled=st.randoms(use_true_random=False))
def test_with_a_lag_the_sequence_does_not_depend_on_times(
    seed: int, shuffled: random.Random
) -> None:
    """Whatever the order in which results come, the same tasks are drawn for a seed."""

    def drawn(width: int) -> list[str]:
        draws = Draws(curriculum(lag=4, revisit=8), seed)
        seen: Counter[str] = Counter()
        open_: list[Task] = []
        order: list[str] = []
        while len(order) < 80:
            if len(open_) < width and draws.can_draw(set()):
                task = draws.draw()
                assert task is not None
                open_.append(task)
                order.append(task.id)
            else:
                # Groups of the same task end in their order, as their names need here.
                at = shuffled.randrange(len(open_))
                task = open_[at]
                first = next(i for i, one in enumerate(open_) if one.id == task.id)
                play(draws, open_.pop(first), seen)
        return order

    assert drawn(1) == drawn(3) == drawn(100)


def test_what_does_not_fit_is_refused() -> None:
    """Names, ids of tasks and values are checked where a mixture is made."""
    for bad, said in [
        (lambda: Mixture([]), "at least one part"),
        (lambda: Mixture([part("a"), part("a")]), "two parts of the mixture are called 'a'"),
        (lambda: part("a", 0), "part 'a': there is no task"),
        (lambda: part("a", weight=0.0), "weight is 0.0"),
        (lambda: part("a", limit=0), "limit is 0"),
        (lambda: Mixture([part("a")], groups=0), "groups is 0"),
        (lambda: Curriculum(revisit=0), "revisit is 0"),
        (lambda: Curriculum(aside_after=9), "of a window of 4"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            bad()
    same = Part(name="b", spec=HARD, tasks=many(1, "a"))
    with pytest.raises(InvalidInput, match="task 'a0' is in the parts 'a' and 'b'"):
        Mixture([part("a"), same])


# Running ------------------------------------------------------------------------------------


async def test_one_run_has_the_sessions_of_both(tmp_path: Path) -> None:
    """Each session runs in its own environment, with its part's samples; statistics are apart."""
    report = await collect(mixed(), None, policy(), tmp_path, samples=4)
    assert (report.sessions, report.groups) == (6 * 4 + 3 * 2, 9)
    with Run(tmp_path) as run:
        assert run.check() == []
        kinds = Counter((t.record.labels["part"], t.record.env_id) for t in run.sessions())
        figures = {g.env: g for g in summarize([run]).groups}
    assert kinds == {("easy", EASY.id): 24, ("hard", HARD.id): 6}
    assert sorted(figures) == ["easy", "hard"]
    assert sum(c.passed for c in figures["easy"].counts) == 24
    assert sum(c.passed for c in figures["hard"].counts) == 0


@pytest.mark.parametrize("processes", [1, 2])
async def test_limits_hold_and_are_used(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more sessions of a part run at once than its limit; the others use the rest."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def note(event: Progress) -> None:
        name = event.task[:4]
        running[name] += {"began": 1, "ended": -1}.get(event.kind, 0)
        most[name] = max(most[name], running[name])
        if running["easy"] == 2 and running["hard"] == 4:
            gate.set()

    gate = asyncio.Event()
    if processes == 1:  # nothing ends before as many run as may
        monkeypatch.setattr(Easy, "gate", gate)
    limited = Mixture(parts(limit=2, seconds=0.02))
    options: dict[str, Any] = {"samples": 3, "concurrency": 6, "on_progress": note}
    if processes == 1:
        await collect(limited, None, policy(), tmp_path, **options)
        assert most["easy"] == 2
        assert most["hard"] >= 4
    else:
        await collect_in_processes(limited, None, policy, tmp_path, processes=2, **options)
        assert most["easy"] <= 2
    with Run(tmp_path) as run:
        assert Counter(g.sealed for g in run.groups()) == {True: 9}


async def test_a_fleet_refuses_a_limit_below_its_processes(tmp_path: Path) -> None:
    """A limit that can't be divided is an error, not a limit that does not hold."""
    with pytest.raises(InvalidInput, match="limit of 2 sessions, which 3 processes can't share"):
        Fleet(Mixture(parts(limit=2)), None, policy, tmp_path, processes=3)


@pytest.mark.parametrize("rule", [None, Curriculum(revisit=4, lag=2)])
async def test_a_run_that_is_stopped_goes_on_with_the_same_tasks(
    rule: Curriculum | None, tmp_path: Path
) -> None:
    """After any number of stops, the groups are those of a run that was never stopped."""
    mixture = Mixture(parts(), groups=24, repeat=True, curriculum=rule)

    def groups(path: Path) -> tuple[list[str], dict[str, list[str]]]:
        with Run(path) as run:
            members = {g.id: sorted(m.session for m in g.members) for g in run.groups()}
            return drawn_groups(run.meta()), members

    await collect(mixture, None, policy(), tmp_path / "whole", seed=5, samples=2)
    for most in (3, 10, 17, None):
        seen = 0
        runners: list[Runner] = []

        def note(event: Progress, most: int | None = most, runners: list[Runner] = runners) -> None:
            nonlocal seen
            seen += event.kind == "ended"
            if most is not None and seen >= most:
                runners[0].stop()

        await collect(
            mixture,
            None,
            policy(),
            tmp_path / "parts",
            seed=5,
            samples=2,
            concurrency=3,
            on_progress=note,
            on_start=runners.append,
        )
    whole, pieces = groups(tmp_path / "whole"), groups(tmp_path / "parts")
    assert len(whole[0]) == 24
    assert pieces == whole


async def test_another_mixture_in_the_same_run_is_refused(tmp_path: Path) -> None:
    """The environments of a run are those of its first call."""
    await collect(mixed(), None, policy(), tmp_path)
    other = Mixture([Part(name="easy", spec=HARD, tasks=many(1, "x"))])
    with pytest.raises(InvalidInput, match="this run was collected with environment"):
        await collect(other, None, policy(), tmp_path)
    with pytest.raises(InvalidInput, match="only a Mixture has tasks"):
        await collect(EASY, None, policy(), tmp_path / "none")


async def test_the_curriculum_gets_the_results_of_the_run(tmp_path: Path) -> None:
    """Tasks that are always or never solved are set aside by what their sessions scored."""
    mixture = Mixture(parts(), groups=30, curriculum=Curriculum(revisit=50))
    async with Store(tmp_path) as store:
        async with Runner(mixture, None, policy(), store=store, samples=2) as runner:
            sealed = [one.group.task async for one in runner]
            assert runner.draws is not None
            counts = runner.draws.counts
    assert len(sealed) == 30
    assert {name: (c.drawn, c.ended) for name, c in counts.items()} == {
        "easy": (15, 15),
        "hard": (15, 15),
    }
    assert (counts["easy"].solved, counts["easy"].sessions) == (30, 30)
    assert (counts["hard"].solved, counts["hard"].sessions) == (0, 30)
    assert (counts["easy"].aside, counts["hard"].aside) == (6, 3)


# Files --------------------------------------------------------------------------------------

FILE = """
groups = 12
repeat = true

[curriculum]
revisit = 7

[[mix]]
env = "tests.rollout.mixing:Easy"
name = "easy"
tasks = "easy.jsonl"
weight = 2
limit = 3
turns = 4

[[mix]]
env = "tests.rollout.mixing:Hard"
tasks = "hard.jsonl"
samples = 2
set = { seconds = 0.5 }
"""


def test_a_file_says_what_python_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key of the file has its place in the mixture."""
    monkeypatch.chdir(tmp_path)
    for name in ("easy", "hard"):
        Path(f"{name}.jsonl").write_text(json.dumps({"id": f"{name}-1"}) + "\n")
    Path("mix.toml").write_text(FILE)
    found = load_mixture("mix.toml")
    easy, hard = found.parts
    assert (found.groups, found.repeat, found.curriculum) == (12, True, Curriculum(revisit=7))
    assert (easy.name, easy.weight, easy.limit, easy.samples) == ("easy", 2, 3, None)
    assert easy.budgets is not None
    assert easy.budgets.turns == 4
    assert (hard.name, hard.weight, hard.samples) == ("tests.rollout.mixing-Hard", 1.0, 2)
    assert hard.spec.config == {"seconds": 0.5}
    assert [task.id for task in hard.tasks] == ["hard-1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"no \[\[mix\]\] table"),
        ("[[mix]]\nenv = 'x'", r"\[\[mix\]\] 1: tasks is missing"),
        ("[[mix]]\nenv = 'x'\ntasks = 'y'\nlimits = 3", "unknown key 'limits'"),
        (FILE.replace("groups", "group"), "unknown key 'group'"),
        (FILE.replace("revisit", "again"), r"\[curriculum\] has no 'again'"),
        ("mix =", "mix.toml: "),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the file and the key."""
    monkeypatch.chdir(tmp_path)
    Path("mix.toml").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        load_mixture("mix.toml")


# On the command line ------------------------------------------------------------------------


def invoke(*arguments: object) -> Result:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


COMMAND_FILE = """
[[mix]]
env = "tests.rollout.mixing:Scripted"
name = "first"
tasks = "first.jsonl"
samples = 2

[[mix]]
env = "tests.rollout.mixing:Scripted"
name = "second"
tasks = "second.jsonl"
limit = 2
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_file_is_collected_into_one_run(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both environments are in the run and its figures; the same command finds nothing left."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        lines = [json.dumps({"id": f"{name}-{i}"}) for i in range(3)]
        Path(f"{name}.jsonl").write_text("\n".join(lines))
    Path("mix.toml").write_text(COMMAND_FILE)
    command = ["collect", "--mix", "mix.toml", "--samples", 3, "--out", "run"]
    command += ["--processes", processes, "--json"]
    first = json.loads(invoke(*command).stdout)
    figures = first["environments"]
    found = {name: (figures[name]["sealed"], figures[name]["passed"]) for name in figures}
    assert found == {"first": (3, 6), "second": (3, 9)}
    again = json.loads(invoke(*command).stdout)
    assert (again["sessions"], again["environments"]) == (0, figures)
    assert "second" in invoke("stats", "run").output
    assert "either --tasks or --mix" in invoke("collect", "--out", "run").output
    Path("endless.toml").write_text("repeat = true\n" + COMMAND_FILE)
    with pytest.raises(InvalidInput, match="the run has no end"):
        invoke("collect", "--mix", "endless.toml", "--out", "other")

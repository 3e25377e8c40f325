"""TrajgymWorkflow in AReaL's own executor, with its engine and staleness manager."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.areal.worlds import Moody, Together
from trajgym.rewards import GRPO, TurnTable, apply
from trajgym.rollout import TreeExpansion
from trajgym.trajectory import InvalidInput, Run, SessionTree, Task, TrainingRow, build_rows

WITHIN = 240.0
"""Seconds that something may take on a busy machine; nothing here is timed."""
STEPS = 6
CONTRACT = {
    "input_ids": ("int32", 2),
    "attention_mask": ("bool", 2),
    "loss_mask": ("int32", 2),
    "logprobs": ("float32", 2),
    "versions": ("int32", 2),
    "rewards": ("float32", 1),
    "values": ("float32", 2),
}


def workflow(tiny: Any, store: Path, env: str = "test/areal", **options: Any) -> Any:
    from areal.api.cli_args import GenerationHyperparameters

    from trajgym.adapters.areal import TrajgymWorkflow

    settings = {
        "samples": 3,
        "gconfig": GenerationHyperparameters(max_new_tokens=16, max_tokens=512),
        **options,
    }
    return TrajgymWorkflow(env, tiny.tokenizer, store, **settings)


def loader(tasks: list[Task], batch: int = 2) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from trajgym.adapters.areal import task_dataset

    return StatefulDataLoader(task_dataset(tasks), batch_size=batch, collate_fn=lambda x: x)


def some(n: int, **data: Any) -> list[Task]:
    name = "-".join(data) or "w"
    return [Task(id=f"{name}{i}", prompt=f"Is it {i}?", data=data) for i in range(n)]


def within(seconds: float, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call in a thread, so that a deadlock of the executor fails the test instead of hanging it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call(*args, **options)), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"not done within {seconds} s"
    return found[0]


def raised(call: Callable[[], Any]) -> str:
    """Return the words of the error that a call ends with."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def recorded(store: Path) -> tuple[list[Any], dict[str, SessionTree]]:
    """Read every run below a store: its groups and sessions."""
    groups: list[Any] = []
    trees = {}
    for folder in sorted(store.iterdir()):
        with Run(folder) as run:
            groups += list(run.groups())
            trees |= {s.record.id: run.session(s.record.id) for s in run.summaries()}
    return groups, trees


def expected(store: Path) -> dict[bytes, list[TrainingRow]]:
    """The rows of every sealed group with GRPO's advantages, by their ids.

    The small model can sample the same ids twice, by other weights.
    """
    groups, trees = recorded(store)
    rows: list[TrainingRow] = []
    for group in groups:
        members = [trees[member.session] for member in group.counted]
        if group.sealed and members:
            values = GRPO().derive(TurnTable.build([group], members))
            for tree in members:
                rows += apply(build_rows(tree).rows, values)
    found: dict[bytes, list[TrainingRow]] = defaultdict(list)
    for row in rows:
        found[row.input_ids.tobytes()].append(row)
    return dict(found)


def trained(arrays: dict[str, Any], row: TrainingRow) -> bool:
    """Whether arrays have the log-probs and the advantages of a row."""
    assert row.advantage is not None
    logprobs = np.array_equal(arrays["logprobs"], row.logprobs)
    return logprobs and np.array_equal(-arrays["values"][:-1], row.advantage[1:])


def unpadded(trajectory: dict[str, Any]) -> list[dict[str, Any]]:
    """Each row's arrays without padding."""
    found = []
    for i, mask in enumerate(trajectory["attention_mask"]):
        size = int(mask.sum())
        assert bool(mask[:size].all())
        assert not bool(trajectory["loss_mask"][i, size:].any())
        found.append(
            {
                name: value[i, :size].numpy() if value.ndim == 2 else float(value[i])
                for name, value in trajectory.items()
            }
        )
    return found


def hold(server: Any) -> None:
    """Let a response stop half-way, where the next weight update finds it."""
    server.held.clear()
    server.hold = 1


def train_step(engine: Any, server: Any) -> None:
    """What AReaL's trainer does between two batches, while responses are held half-way.

    None is held if the last one ended with its next id and all that may begin before the update
    has ended, too.
    """
    manager, ends = engine.workflow_executor.staleness_manager, time.monotonic() + WITHIN
    while not server.held.wait(0.01):
        stats, room = manager.get_stats(), manager.get_capacity() > 0
        if not (server.held.is_set() or stats.running or (stats.enqueued and room)):
            break
        assert time.monotonic() < ends, f"no response was held: {stats}"
    engine.pause()
    engine.pause_generation()
    server.update()
    engine.set_version(server.version)
    hold(server)
    engine.continue_generation()
    engine.resume()


def test_groups_train_as_they_were_recorded(
    tiny: Any, server: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Through aborts and weight updates, every row is its session's: ids, values, versions."""
    made = engine(max_head_offpolicyness=2)
    flow, data = workflow(tiny, tmp_path / "runs"), loader(some(60))
    batches = []
    hold(server)
    for step in range(STEPS):
        batches.append(within(WITHIN, made.prepare_batch, data, flow, group_size=1))
        if step < STEPS - 1:
            train_step(made, server)
    made.destroy()
    known = expected(tmp_path / "runs")
    mixed = 0
    for consumed, batch in enumerate(batches):
        assert len(batch) == 2
        for trajectory in batch:
            shapes = {
                k: (str(v.dtype).removeprefix("torch."), v.ndim) for k, v in trajectory.items()
            }
            assert shapes == CONTRACT
            rows = unpadded(trajectory)
            for arrays in rows:
                same = known[arrays["input_ids"].tobytes()]
                row = next((row for row in same if trained(arrays, row)), same[0])
                np.testing.assert_array_equal(arrays["loss_mask"], row.loss_mask)
                np.testing.assert_array_equal(arrays["logprobs"], row.logprobs)
                np.testing.assert_array_equal(arrays["versions"], row.version_low)
                assert row.advantage is not None
                np.testing.assert_array_equal(-arrays["values"][:-1], row.advantage[1:])
                assert arrays["rewards"] == 0.0
                assert row.loss_mask[-1]
                assert not row.loss_mask[0]
                versions = row.version_low[row.loss_mask]
                assert int(versions.max()) <= consumed
                mixed += any(
                    np.unique(row.version_low[row.turn_ids == turn]).size > 1 for turn in row.turns
                )
    assert server.aborted > 0
    assert mixed > 0, "no turn was sampled by two versions"


@pytest.mark.parametrize("late", [False, True])
def test_versions_and_logprobs_are_the_servers_truth(
    late: bool, tiny: Any, server: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Every trained token has its log-prob and a range with the version that really sampled it.

    Also where interrupted responses arrive after the update, one after the other in a turn.
    """
    server.late = late
    made = engine(max_head_offpolicyness=2)
    flow, data = workflow(tiny, tmp_path), loader(some(60))
    hold(server)
    for step in range(STEPS):
        within(WITHIN, made.prepare_batch, data, flow, group_size=1)
        if step < STEPS - 1:
            train_step(made, server)
    made.destroy()
    exact = 0
    for row in (row for rows in expected(tmp_path).values() for row in rows):
        ids = row.input_ids.tolist()
        for t in np.flatnonzero(row.loss_mask):
            low, high = int(row.version_low[t]), int(row.version_high[t])
            truth = server.sampled[tuple(ids[: t + 1])]
            assert any(low <= v <= high and np.float32(p) == row.logprobs[t] for v, p in truth)
            exact += low == high > 0
    assert exact > 0


@pytest.mark.parametrize("where", ["environment", "engine"])
def test_hung_sessions_do_not_stop_training(
    where: str, tiny: Any, server: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Five groups hang forever, where three block AReaL alone: training continues."""
    made = engine(max_head_offpolicyness=1)
    if where == "environment":
        flow = workflow(tiny, tmp_path / "runs", session_timeout=12.0)
        hung = some(5, hang=True)
    else:
        flow = workflow(tiny, tmp_path / "runs", turn_timeout=12.0)
        hung = [Task(id=f"mute{i}", prompt="Is it @@?") for i in range(5)]
        server.mute_on = tuple(tiny.tokenizer.encode("@@", add_special_tokens=False))
    batch = within(WITHIN, made.prepare_batch, loader(hung + some(9)), flow, group_size=1)
    assert len(batch) == 2
    stats = made.workflow_executor.staleness_manager.get_stats()
    assert stats.rejected >= 3
    made.destroy()
    groups, trees = recorded(tmp_path / "runs")
    ended = [trees[m.session] for g in groups for m in g.members if g.task in {t.id for t in hung}]
    assert {str(tree.attempts[0].status) for tree in ended} <= {
        "failed:deadline",
        "failed:policy",
        "cancelled",
    }
    known = expected(tmp_path / "runs")
    assert all(a["input_ids"].tobytes() in known for t in batch for a in unpadded(t))


def test_a_group_that_can_not_be_ended_is_given_up(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever delays a group, AReaL gets a result and its capacity back."""
    made = engine()
    made.submit(_data(some(1, hang=True))[0], workflow(tiny, tmp_path, group_timeout=1.0))
    assert within(WITHIN, made.wait, 1) == [None]
    assert made.workflow_executor.staleness_manager.get_stats().rejected == 1


def test_a_broken_member_leaves_and_its_siblings_stay(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """One sample of three breaks: two rows come back, and every environment was closed."""
    opened, closed = Moody.opened, Moody.closed
    made = engine()
    batch = within(
        WITHIN, made.rollout_batch, _data(some(1, **{"break": 1})), workflow(tiny, tmp_path)
    )
    made.destroy()
    assert [trajectory["input_ids"].shape[0] for trajectory in batch] == [2]
    (group,), trees = recorded(tmp_path)
    assert sorted((m.sample, m.left) for m in group.members) == [
        (0, ""),
        (1, "failed:env"),
        (2, ""),
    ]
    assert len(trees) == 3
    assert Moody.opened - opened == Moody.closed - closed == 3


def test_blocking_environments_run_off_areals_loop(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Three environments that block until all three are there: on one loop they never would."""
    Together.barrier.reset()
    flow = workflow(tiny, tmp_path, env="test/together")
    (trajectory,) = within(WITHIN, engine().rollout_batch, _data(some(1)), flow)
    assert trajectory["input_ids"].shape[0] == 3


def test_destroying_the_engine_closes_what_runs(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Sessions under way are recorded as cancelled, and their environments closed."""
    opened, closed = Moody.opened, Moody.closed
    made = engine()
    made.submit(_data(some(1, hang=True))[0], workflow(tiny, tmp_path))
    waiting = threading.Event()
    for _ in range(2400):
        if Moody.opened - opened == 3:
            break
        waiting.wait(0.1)
    assert Moody.opened - opened == 3
    made.destroy()
    assert Moody.closed - closed == 3
    _, trees = recorded(tmp_path)
    assert {str(tree.attempts[0].status) for tree in trees.values()} == {"cancelled"}


def test_named_by_a_string_it_shares_one_run(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """AReaL constructs the workflow for each task: all of them record into one run."""
    made = engine()
    plain = {
        "env": {"id": "test/areal", "config": {}},
        "tokenizer": tiny.path,
        "store": str(tmp_path),
        "samples": 2,
        "gconfig": {"max_new_tokens": 16, "max_tokens": 512},
        "deriver": {"name": "grpo", "settings": {}},
        "budgets": {"turns": 2},
    }
    for element in _data(some(2)):
        made.submit(element, "trajgym.adapters.areal.TrajgymWorkflow", workflow_kwargs=plain)
    found = within(WITHIN, made.wait, 2)
    assert [trajectory["input_ids"].shape[0] for trajectory in found] == [2, 2]
    made.destroy()
    assert len(list(tmp_path.iterdir())) == 1
    _, trees = recorded(tmp_path)
    assert {len(tree.turns) for tree in trees.values()} == {2}


def test_two_plans_for_one_store_are_refused(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """A second workflow with other settings gets no rows from the first one's sessions."""
    made = engine()
    first = within(WITHIN, made.rollout_batch, _data(some(1)), workflow(tiny, tmp_path))
    assert len(first) == 1
    made.submit(_data(some(1))[0], workflow(tiny, tmp_path, samples=2))
    assert within(WITHIN, made.wait, 1) == [None]


def test_a_tree_of_attempts_is_trained_once(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Sessions that are forked come back as rows that train each sampled token once."""
    flow = workflow(tiny, tmp_path, samples=2, expansion=TreeExpansion(nodes=2, rounds=1))
    made = engine()
    (trajectory,) = within(WITHIN, made.rollout_batch, _data(some(1)), flow)
    made.destroy()
    _, trees = recorded(tmp_path)
    assert {len(tree.attempts) for tree in trees.values()} == {3}
    tokens = [turn.tokens for tree in trees.values() for turn in tree.turns]
    sampled = sum(int(t.sampled_mask.sum()) for t in tokens if t is not None)
    assert int(trajectory["loss_mask"].sum()) == sampled
    assert trajectory["input_ids"].shape[0] == 6


def test_members_too_old_leave_their_group(
    tiny: Any, server: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Held through an update, a session is older than its bound, which AReaL only admits by."""
    made = engine(max_head_offpolicyness=2)
    hold(server)
    made.submit(_data(some(1))[0], workflow(tiny, tmp_path, samples=1, max_staleness=0))
    train_step(made, server)
    server.hold = 0
    assert within(WITHIN, made.wait, 1) == [None]
    made.destroy()
    (group,), _ = recorded(tmp_path)
    assert [member.left for member in group.members] == ["stale"]


def test_groups_that_teach_nothing_can_be_left_out(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """A group of one has no advantage: with skip_flat it is no batch's member."""
    made = engine()
    made.submit(_data(some(1))[0], workflow(tiny, tmp_path, samples=1, skip_flat=True))
    assert within(WITHIN, made.wait, 1) == [None]


@pytest.mark.parametrize(
    "setting",
    [{"greedy": True}, {"top_p": 0.9}, {"top_k": 40}, {"temperature": 0.0}, {"stop": ["END"]}],
    ids=str,
)
def test_bent_distributions_are_refused(setting: Any, tiny: Any, tmp_path: Path) -> None:
    """Training requires the distribution that the loss assumes; an evaluation may use any."""
    settings = {"max_new_tokens": 8, **setting}
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        workflow(tiny, tmp_path, gconfig=settings)
    workflow(tiny, tmp_path, gconfig=settings, evaluation=True)


def test_a_full_context_cuts_a_session_and_it_is_scored(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """A history longer than max_tokens is the agent's own doing: its turns are trained."""
    from trajgym.adapters.areal import TrajgymWorkflow

    long = some(1)[0].model_copy(update={"data": {"answer": "so " * 60}})
    flow = workflow(tiny, tmp_path, gconfig={"max_new_tokens": 16, "max_tokens": 400})
    assert isinstance(flow, TrajgymWorkflow)
    (trajectory,) = within(WITHIN, engine().rollout_batch, _data([long]), flow)
    assert trajectory["input_ids"].shape[0] == 3
    _, trees = recorded(tmp_path)
    for tree in trees.values():
        assert str(tree.attempts[0].status) == "truncated:context"
        assert tree.attempts[0].outcome is not None
        assert len(tree.turns) == 1


def _data(tasks: list[Task]) -> list[dict[str, str]]:
    from trajgym.adapters.areal import task_dataset

    return task_dataset(tasks)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deriver": "srl"}, "no signal 'expert_action'"),
        ({"break": "all"}, "left out: {'failed:env': 3}"),
    ],
    ids=["signals-that-are-not-recorded", "an-environment-that-fails"],
)
def test_groups_without_rows_end_the_training(
    tiny: Any,
    server: Any,
    engine: Callable[..., Any],
    tmp_path: Path,
    options: dict[str, Any],
    reason: str,
) -> None:
    """AReaL would sample for ever; after some groups without a row its executor is stopped."""
    made = engine(max_head_offpolicyness=2)
    given = {key: options.pop(key) for key in ("break",) if key in options}
    flow, data = workflow(tiny, tmp_path / "runs", give_up=4, **options), loader(some(60, **given))
    batch = partial(made.prepare_batch, data, flow, group_size=1)
    said = within(WITHIN, raised, batch)
    assert said.startswith(
        "RuntimeError: Background thread failed: 4 consecutive groups had no row"
    )
    assert reason in said
    groups, _ = recorded(tmp_path / "runs")
    assert len(groups) < 20


def test_sampling_comes_from_the_trainers_configuration(tiny: Any, tmp_path: Path) -> None:
    """The workflow samples at the configured temperature; what does not fit is refused."""
    from areal.api.cli_args import GenerationHyperparameters

    from trajgym.adapters.areal import TrajgymWorkflow, workflow_kwargs

    def config(actor: float, **gconfig: Any) -> Any:
        made = GenerationHyperparameters(**gconfig)
        actor_config = SimpleNamespace(temperature=actor)
        return SimpleNamespace(gconfig=made, tokenizer_path=tiny.path, actor=actor_config)

    own = {"env": "test/areal", "store": str(tmp_path)}
    given = workflow_kwargs(config(0.7, temperature=0.7, max_new_tokens=9), **own)
    assert json.loads(json.dumps(given)) == given
    made = TrajgymWorkflow(**given)
    assert made._settings.gconfig.temperature == 0.7
    assert made._settings.gconfig.max_new_tokens == 9
    with pytest.raises(InvalidInput, match=r"actor\.temperature is 1\.0"):
        workflow_kwargs(config(1.0, temperature=0.7), **own)
    with pytest.raises(InvalidInput, match="n_samples is 4"):
        workflow_kwargs(config(1.0, n_samples=4), **own)

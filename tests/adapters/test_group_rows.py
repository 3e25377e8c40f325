"""One path from a sealed group to rows: which derivers work where, and what is let through."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.adapters.build import exact_session, groups_of
from trajgym.adapters import Annotators, Gate, RowBuilder, as_annotators, export, group_rows
from trajgym.adapters.areal import EnvAgent
from trajgym.adapters.areal._tensors import areal_arrays
from trajgym.adapters.trl import RolloutFailed
from trajgym.adapters.trl._group_samples import SampleBuilder
from trajgym.adapters.trl._rollouts import played
from trajgym.adapters.verl import LoopSettings, Named
from trajgym.adapters.verl._advantages import group_advantages
from trajgym.adapters.verl._rows import describe_row
from trajgym.rewards import (
    Advantages,
    Deriver,
    DeriverFault,
    GiGPO,
    MissingSignals,
    Rewards,
    TurnTable,
    apply,
    as_deriver,
    get_deriver,
    list_derivers,
)
from trajgym.rollout import SealedGroup
from trajgym.rollout.annotators import Annotator
from trajgym.trajectory import (
    InvalidInput,
    Member,
    Sampling,
    SessionTree,
    Span,
    Store,
    Turn,
    build_rows,
)

SIGNALS = ("expert_action", "gold_logprob", "gold_logprob_before", "hint_gaps", "value", "vote")
SETTINGS: dict[str, dict[str, Any]] = {"gigpo": {"similarity": 0.9}}
"""Beside the defaults, settings that change what a deriver reads."""
VARIANTS = [(name, {}) for name in list_derivers()] + list(SETTINGS.items())


def sealed(*, signals: bool = True, members: int = 4) -> SealedGroup:
    """A group of exact sessions with spans, and with every signal that a deriver reads."""
    trees = [exact_session(f"s{i}", (0.0, 1.0)[i % 2], sample=i) for i in range(members)]
    rng = np.random.default_rng(0)
    for tree in trees:
        for turn in tree.turns:
            call = tree.turns[turn.index].calls[0]
            assert turn.tokens is not None
            turn.tokens = replace(turn.tokens, spans=(Span("tool_call", 1, 3, call.call_id),))
            if signals:
                turn.signals = {
                    "vote": int(rng.integers(-1, 2)),
                    "hint": "look",
                    "hint_gaps": rng.normal(size=4).tolist(),
                    "value": 0.25,
                    "gold_logprob_before": -2.0,
                    "gold_logprob": -float(rng.integers(1, 4)),
                    "expert_action": "ls /0",
                    "certificate_score": 1.0,
                    "certificate_valid": 1.0,
                }
    (group,) = groups_of(*trees)
    group.planned = members
    return SealedGroup(group, trees)


def expected(given: SealedGroup, deriver: Deriver) -> list[np.ndarray]:
    """Each row's values, derived without any adapter."""
    values = deriver.derive(deriver.table([given.group], given.sessions))
    rows = [row for tree in given.sessions for row in apply(build_rows(tree).rows, values)]
    found = [r.reward if isinstance(values, Rewards) else r.advantage for r in rows]
    return [array for array in found if array is not None]


def trl_asynchronous(given: SealedGroup, deriver: Deriver, _: Path) -> list[np.ndarray]:
    rebuilt: dict[str, np.ndarray] = {}
    for session, sample in SampleBuilder(deriver, "auto")(given).samples:
        size = max(len(row) for t in given.sessions for row in build_rows(t).rows)
        row = rebuilt.setdefault(session, np.zeros(size, dtype=np.float32))
        trained = np.flatnonzero(sample.completion_mask)
        assert not row[trained].any()
        row[trained] = sample.advantage
    return list(rebuilt.values())


def trl_synchronous(given: SealedGroup, deriver: Deriver, _: Path) -> list[np.ndarray]:
    build = RowBuilder(deriver, "StepGRPOTrainer", kind=Advantages)
    found, left = played(given, build, 0, len(given.sessions))
    assert not left
    return [np.array([0.0] * len(one.prompt_ids) + one.advantage) for one in found]


def verl_rewards(given: SealedGroup, deriver: Deriver, _: Path) -> list[np.ndarray]:
    named = Named(name=deriver.name, settings=deriver.model_dump(mode="json"))
    total = LoopSettings(rewards=(named,)).reward_deriver()
    return [row.reward for row in group_rows(given, total, kind=Rewards).rows]  # type: ignore[misc]


def verl_trainer(given: SealedGroup, deriver: Deriver, _: Path) -> list[np.ndarray]:
    named = Named(name=deriver.name, settings=deriver.model_dump(mode="json"))
    group = LoopSettings(deriver=named, trainer="trajgym_sync").group_deriver()
    assert group is not None
    carried, sizes, starts = [], [], []
    for tree in given.sessions:
        (row,) = build_rows(tree).rows
        whole = {"group": "g", "task": "t", "table": json.loads(json.dumps(group.pack(tree)))}
        carried.append(json.dumps(describe_row(row) | whole))
        starts.append(int(row.loss_mask.argmax()))
        sizes.append(len(row) - starts[-1])
    found, _counts = group_advantages(carried, sizes, group, planned=len(sizes))
    return [
        np.concatenate([np.zeros(start), one]) for start, one in zip(starts, found, strict=True)
    ]


def areal(given: SealedGroup, deriver: Deriver, _: Path) -> list[np.ndarray]:
    rows = RowBuilder(deriver, "AReaL")(given).rows
    for row in rows:
        assert areal_arrays(row, dense=True)["values"].shape == (len(row),)
    return [r.advantage if r.reward is None else r.reward for r in rows]  # type: ignore[misc]


def areal_agent(given: SealedGroup, deriver: Deriver, folder: Path) -> list[np.ndarray]:
    agent = EnvAgent("tests.worlds:Counter", folder, deriver=deriver)
    ids = {turn.index: f"c{turn.index}" for turn in given.sessions[0].turns}
    found = []
    for tree in given.sessions:
        group = replace(given.group, members=[Member(tree.record.id, 0)])
        rewards = agent._rewards(SealedGroup(group, [tree]), ids)
        (row,) = build_rows(tree).rows
        placed = np.zeros(len(row))
        placed[row.turn_ends] = [rewards[ids[turn]] for turn in row.turns]
        found.append(placed)
    return found


def parquet(name: str) -> Any:
    def write(given: SealedGroup, deriver: Deriver, folder: Path) -> list[np.ndarray]:
        build = RowBuilder(deriver, name)
        values = build.values([given.group], given.sessions)
        export(name, given.sessions, [given.group], folder, values=values)
        (file,) = folder.glob("*.parquet")
        rows = pq.read_table(file).to_pylist()
        column = "advantage" if isinstance(values, Advantages) else "reward"
        return [np.array(row[column], dtype=np.float32) for row in rows]

    return write


def export_trl(given: SealedGroup, deriver: Deriver, folder: Path) -> list[np.ndarray]:
    values = RowBuilder(deriver, "export").values([given.group], given.sessions)
    export("trl-grpo", given.sessions, [given.group], folder, values=values)
    rebuilt: dict[str, np.ndarray] = {}
    sizes = {row.session: len(row) for t in given.sessions for row in build_rows(t).rows}
    for sample in pq.read_table(folder / "trl-grpo.parquet").to_pylist():
        row = rebuilt.setdefault(sample["session"], np.zeros(sizes[sample["session"]]))
        trained = np.flatnonzero(sample["completion_mask"])
        assert not row[trained].any()
        row[trained] = sample["advantage"]
    return list(rebuilt.values())


def export_verl(given: SealedGroup, deriver: Deriver, folder: Path) -> list[np.ndarray]:
    values = RowBuilder(deriver, "export").values([given.group], given.sessions)
    all_values = [values]
    if isinstance(values, Advantages):  # they go beside the rewards that verl logs
        outcome = get_deriver("outcome")
        all_values.append(outcome.derive(outcome.table([given.group], given.sessions)))
    export("verl", given.sessions, [given.group], folder, values=all_values)
    column = "advantages" if isinstance(values, Advantages) else "rm_scores"
    rows = pq.read_table(folder / "verl.parquet").to_pylist()
    return [np.array([0.0] * len(row["prompts"]) + row[column]) for row in rows]


def export_areal(given: SealedGroup, deriver: Deriver, folder: Path) -> list[np.ndarray]:
    values = RowBuilder(deriver, "export").values([given.group], given.sessions)
    export("areal", given.sessions, [given.group], folder, values=values, dense=True)
    found = []
    for row in pq.read_table(folder / "areal.parquet").to_pylist():
        # AReaL's own formula, with discount and lambda 1 and no critic.
        gae = row["rewards"] - np.concatenate([[0.0], row["values"][:-1]])
        trained = np.array(row["loss_mask"], dtype=bool)
        if isinstance(values, Advantages):
            found.append(np.where(trained, gae, 0.0))
        else:  # from returns back to rewards
            found.append(np.where(trained, gae - np.append(gae[1:], 0.0), 0.0))
    return found


ADAPTERS: dict[str, tuple[Any, type | None]] = {
    "trl asynchronous": (trl_asynchronous, Advantages),
    "trl synchronous": (trl_synchronous, Advantages),
    "verl rewards": (verl_rewards, Rewards),
    "verl trainer": (verl_trainer, Advantages),
    "areal workflow and replay": (areal, None),
    "areal agent": (areal_agent, Rewards),
    "export rows": (parquet("rows"), None),
    "export trl-grpo": (export_trl, Advantages),
    "export verl": (export_verl, None),
    "export areal": (export_areal, None),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("name", "settings"), VARIANTS, ids=[f"{name}{settings or ''}" for name, settings in VARIANTS]
)
def test_every_deriver_works_or_is_refused_at_construction(
    adapter: str, name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """A registered deriver gives the same values through every adapter, or never begins."""
    enter, kind = ADAPTERS[adapter]
    deriver = get_deriver(name, **settings)
    given = sealed()
    wanted = expected(given, deriver)
    gives = type(deriver.derive(deriver.table([given.group], given.sessions)))
    refusal = ""
    if adapter == "verl rewards" and deriver.group_relative:
        refusal = f"{name}' compares the sessions of a group"
    elif kind is not None and gives is not kind:
        refusal = f"{name}' gives {gives.__name__.lower()}"
        if adapter.startswith("export"):
            refusal = f"{adapter} needs {kind.__name__}"
    if refusal:
        with pytest.raises(InvalidInput, match=refusal):
            enter(given, deriver, tmp_path)
        return
    found = enter(given, deriver, tmp_path)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_deriver_that_reads_more_by_its_settings_is_packed_with_it() -> None:
    """Data that an overridden `table` reads is included when sessions are packed."""

    class Own(Deriver):
        name = "test_own_table"

        def table(self, groups: Any, sessions: Any) -> TurnTable:
            return TurnTable.build(groups, sessions, texts=True, signals=["vote"])

        def derive(self, table: TurnTable) -> Advantages:
            lengths = np.array([len(text) for text in table.text.action], dtype=np.float64)
            values = np.where(table.scored, lengths + table.signal("vote").values, 0.0)
            return Advantages(table, values, self.stamp)

    given = sealed()
    for deriver in (Own(), GiGPO(similarity=0.5)):
        packed = [json.loads(json.dumps(deriver.pack(tree))) for tree in given.sessions]
        table = deriver.unpack([given.group], packed)
        direct = deriver.derive(deriver.table([given.group], given.sessions))
        np.testing.assert_array_equal(deriver.derive(table).values, direct.values)


def test_a_session_with_a_sample_over_trls_budget_is_left_out_whole() -> None:
    """TRL would drop the long samples alone, and train a session's first turns without the rest."""
    build = SampleBuilder("stepwise", "turn", longest=15)
    assert build(sealed()).samples == []
    assert dict(build.tally.dropped) == {"a sample is longer than token_budget=15": 4}
    assert len(SampleBuilder("stepwise", "turn", longest=21)(sealed()).samples) >= 12


def test_former_names_still_work() -> None:
    """A name that changed warns for one version."""
    import trajgym.adapters.trl as trl

    with pytest.warns(DeprecationWarning, match="GRPORollouts"):
        assert trl.GRPOSpec is trl.GRPORollouts


def test_several_derivers_add_up() -> None:
    """A list of rewards with weights can be passed to an estimator as plain data."""
    given = sealed()
    terms = ["outcome", {"name": "tool_calls", "weight": 0.5}]
    found = group_rows(given, terms, kind=Rewards).rows
    parts = [expected(given, get_deriver(name)) for name in ("outcome", "tool_calls")]
    for row, outcome, calls in zip(found, *parts, strict=True):
        np.testing.assert_allclose(row.reward, outcome + 0.5 * calls, atol=1e-6)
    rows = group_rows(given, {"name": "stepwise", "rewards": terms}, kind=Advantages).rows
    assert rows[0].advantage_stamp is not None
    assert rows[0].advantage_stamp.settings["rewards"]["deriver"] == "outcome + 0.5 * tool_calls"
    assert any(row.advantage is not None and row.advantage.any() for row in rows)
    with pytest.raises(InvalidInput, match="can't be added"):
        RowBuilder(["outcome", "grpo"], "a trainer")
    with pytest.raises(InvalidInput, match="does not take rewards of other derivers"):
        as_deriver({"name": "outcome", "rewards": ["tool_calls"]})


def test_a_deriver_that_fails_is_named_before_a_session_runs() -> None:
    """What a deriver raises on a generated group is raised at construction, under its name."""

    class Broken(Deriver):
        name = "test_broken"

        def derive(self, table: TurnTable) -> Advantages:
            raise ZeroDivisionError("oops")

    with pytest.raises(
        DeriverFault, match=r"test_broken: derive failed on a generated group.*oops"
    ):
        RowBuilder(Broken(), "a trainer")


@pytest.mark.parametrize(
    "name",
    [
        "certificate",
        "directive_hints",
        "igpo",
        "information_gain",
        "next_state_votes",
        "srl",
        "turn_gae",
        "vote_rewards",
    ],
)
def test_missing_signals_are_an_error_or_counted(name: str) -> None:
    """A deriver whose signals were never recorded gives no silent zeros."""
    given = sealed(signals=False)
    with pytest.raises(MissingSignals, match=r"session s0 has no signal"):
        group_rows(given, name)
    dropped = group_rows(given, name, missing_signals="drop")
    assert not dropped.sessions
    assert dropped.left.total() == 4
    if name != "turn_gae":  # it can't do without
        used = group_rows(given, name, missing_signals="zero")
        assert (len(used.sessions), used.lacking.total()) == (4, 4)


def sampled(**changes: Any) -> SessionTree:
    tree = exact_session("a", 1.0)
    for turn in tree.turns:
        assert turn.sampling is not None
        turn.sampling = replace(turn.sampling, **changes)
    return tree


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("raw-logprobs", {"logprob_mode": "raw", "temperature": 0.7}),
    ("unknown-logprobs", {"logprob_mode": "unknown"}),
    ("cut-distribution", {"top_p": 0.8}),
    ("cut-distribution", {"top_k": 50}),
    ("cut-distribution", {"temperature": 0.0}),
]


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_the_gate_refuses_log_probs_of_another_distribution(
    name: str, changes: dict[str, Any]
) -> None:
    """Each kind has one reason, and one allowance that lets it through."""
    tree = sampled(**changes)
    reason = Gate().refusal(tree)
    assert reason is not None
    assert f"allow=['{name}']" in reason
    assert Gate([name, "mixed-temperatures"]).refusal(tree) is None
    (group,) = groups_of(tree)
    found = group_rows(SealedGroup(group, [tree]), "outcome")
    assert (dict(found.left), found.sessions) == ({reason: 1}, [])


def test_the_gate_compares_temperatures() -> None:
    """One temperature for all sessions: the trainer's, or that of the first one."""
    warm, cold = sampled(), sampled(temperature=0.7)
    mixed = sampled()
    mixed.turns[1].sampling = Sampling(temperature=0.5, logprob_mode="processed")
    gate = Gate()
    assert gate.refusal(warm) is None
    assert "mixed-temperatures" in (gate.refusal(cold) or "")
    assert "mixed-temperatures" in (gate.refusal(mixed) or "")
    assert Gate(temperature=0.7).refusal(cold) is None
    assert Gate(temperature=0.7).refusal(warm) is not None
    assert Gate(["mixed-temperatures"], temperature=0.7).refusal(mixed) is None
    with pytest.raises(InvalidInput, match="unknown value 'anything'"):
        Gate(["anything"])


class Judge(Annotator):
    """Votes by the turn's number; some turns can be made to fail or hang."""

    source = "judge:test"

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self.fails, self.hangs, self.asked, self.closed = fails, hangs, 0, False
        self.now = self.most = 0

    def turns(self, tree: SessionTree) -> list[Turn]:
        return tree.turns

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(3600 if self.hangs else 0)
        finally:
            self.now -= 1
        if self.fails:
            raise ValueError("no judge")
        return {"vote": 1 - turn.index % 2}

    async def close(self) -> None:
        self.closed = True


async def test_annotators_run_between_sealing_and_deriving() -> None:
    """Signals are there when values are derived; equal turns are asked about once."""
    judge = Judge()
    given = sealed(signals=False)
    annotators = Annotators([judge], concurrency=3)
    assert await annotators(given) is given
    assert (judge.asked, judge.most) == (12, 3)
    found = group_rows(given, "next_state_votes")
    assert len(found.rows) == 4
    assert found.rows[0].advantage is not None
    assert found.rows[0].advantage.any()
    await annotators(sealed(signals=False))
    assert judge.asked == 12
    await annotators.close()
    assert judge.closed


async def test_a_hanging_judge_has_a_deadline() -> None:
    """Turns that get no answer count as failed, and their sessions lack the signal."""
    given = sealed(signals=False)
    annotators = Annotators([Judge(hangs=True)], group_seconds=0.05, concurrency=2)
    await annotators(given)
    assert annotators.failed == {"the deadline of the group": 12}
    with pytest.raises(MissingSignals):
        group_rows(given, "next_state_votes")


async def test_a_broken_judge_ends_the_training() -> None:
    """After some failures in a row, an error with the judge's message is raised."""
    annotators = Annotators([Judge(fails=True)], give_up=5)
    with pytest.raises(RolloutFailed, match=r"\d turns in a row failed, .*no judge"):
        await annotators(sealed(signals=False))


async def test_annotations_are_stored_and_not_made_again(tmp_path: Path) -> None:
    """What a judge found is in the store, and counts there for another process."""
    from tests.worlds import Counter
    from trajgym.envs import EnvSpec
    from trajgym.rollout import Runner, ScriptedPolicy
    from trajgym.trajectory import Task

    del Counter
    judge = Judge()
    policy = ScriptedPolicy(lambda _: {"role": "assistant", "content": "done"})
    async with Store(tmp_path) as store:
        spec = EnvSpec(id="tests.worlds:Counter")
        async with Runner(spec, [Task(id="a")], policy, store=store) as runner:
            (only,) = [one async for one in runner]
        await Annotators([judge])(only, store)
        asked = judge.asked
        assert asked > 0
        await Annotators([judge])(only, store)
        assert judge.asked == asked
        with store.read() as run:
            (again,) = run.sessions()
    assert "vote" in again.turns[0].signals


def make_judge(**settings: Any) -> Annotator:
    """Made by name, as configurations do."""
    return Judge(**settings)


def test_annotators_come_from_plain_data() -> None:
    """A configuration names a function that makes the annotator."""
    here = f"{__name__}:make_judge"
    assert as_annotators(None) is None
    assert isinstance(as_annotators({"make": here, "settings": {"fails": True}}), Annotators)
    with pytest.raises(InvalidInput, match="name a function"):
        as_annotators(["nowhere:nothing"])
    with pytest.raises(InvalidInput, match="give each its own"):
        as_annotators([here, here])


def test_greedy_sessions_need_one_allowance() -> None:
    """A temperature of 0 is a cut distribution, and no mix of temperatures."""
    assert Gate(["cut-distribution"]).refusal(sampled(temperature=0.0)) is None

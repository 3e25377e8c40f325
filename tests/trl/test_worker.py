"""The rollout worker on its bad days, without a trainer: this thread takes the samples."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.clock import Forward
from tests.trl import cpu
from tests.trl.runs import ByTurn
from tests.trl.server import Server, Transfer
from tests.trl.tiny import SPEC, Words, calls, said, tasks
from trajgym.adapters.trl import RolloutFailed, RolloutWorker, SampleBuffer, VersionClock
from trajgym.envs import Budgets, EnvSpec, register
from trajgym.rewards import Advantages, OutcomeReward, TurnTable
from trajgym.rollout import FakeEngine, Retry, VLLMEngine
from trajgym.rollout.engines import FakeCall
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import InvalidInput, Run, Store, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


@contextmanager
def working(
    server: Server, tiny: Any, store: Any, *, given: Any = None, **options: Any
) -> Iterator[RolloutWorker]:
    """Run a worker over the server while the block runs, and see that it leaves nothing."""
    clock = VersionClock(1)
    clock.watched = options.pop("watched", True)
    retry = Retry(tries=2, first_wait=0.01, longest_wait=0.01)
    engine = VLLMEngine(server.url, "tiny", versions=clock, retry=retry)
    settings: dict[str, Any] = {"samples": 2, "concurrency": 2, "max_tokens": 16, **options}
    spec = settings.pop("spec", SPEC)
    renderer = TemplateRenderer(tiny.tokenizer)
    given = tasks(4) if given is None else given
    worker = RolloutWorker(spec, given, engine, renderer, store, versions=clock, **settings)
    opened, closed = Words.opened, Words.closed
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        assert Words.opened - opened == Words.closed - closed
        own = ("trajgym-trl", "trajgym-env")
        assert [t.name for t in threading.enumerate() if t.name.startswith(own)] == []
        until(lambda: server.running == 0)


def until(done: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait for something that other threads do."""
    ends = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.005)


def failure(worker: RolloutWorker, part: str = "", stale_after_s: float = 60.0) -> str:
    """Wait until the worker is unhealthy for a reason that has a part, and return the reason.

    On a busy machine the event loop may get no time for some seconds, which is a reason, too.
    """
    found: list[str] = []

    def sick() -> bool:
        try:
            worker.check_health(stale_after_s)
        except RolloutFailed as error:
            found.append(str(error))
        return bool(found) and part in found[-1]

    until(sick)
    return found[-1]


def in_loop(worker: RolloutWorker, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function on the worker's event loop, after all that it was told before."""

    async def call() -> None:
        function(*arguments)

    assert worker._loop is not None
    asyncio.run_coroutine_threadsafe(call(), worker._loop).result(240)


def test_samples_are_exactly_what_the_account_says(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """Every counted session of the store's sealed groups is in the queue, with all its turns."""
    with working(server, tiny, tmp_path, given=iter(tasks(3)), deriver=ByTurn()) as worker:
        assert "no more tasks" in failure(worker)
        samples = [worker.rollout_buffer.get_nowait() for _ in range(worker.rollout_buffer.qsize())]
    with Run(tmp_path) as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
        assert all(group.sealed and len(group.counted) == 2 for group in run.groups())
    assert worker.tally.sessions == len(trees) == 6
    assert worker.tally.samples == len(samples) == sum(len(tree.turns) for tree in trees) == 18
    given = {tuple(s.input_ids[s.completion_mask > 0].tolist()) for s in samples}
    recorded = {
        tuple(t.tokens.response_ids.tolist()) for tree in trees for t in tree.turns if t.tokens
    }
    assert given == recorded


def test_a_full_queue_holds_the_sessions_back(server: Server, tiny: Any, tmp_path: Path) -> None:
    """While no samples are taken, no sessions begin; they begin again when samples are taken."""
    with working(server, tiny, tmp_path, queue_maxsize=3) as worker:
        # Three samples wait and one is being put: two groups. The rest waits behind them, sealed.
        until(lambda: worker.rollout_buffer.full() and worker.tally.groups == 2)
        last, still = -1, 0

        def quiet() -> bool:
            nonlocal last, still
            still = still + 1 if server.tokens == last and not server.running else 0
            last = server.tokens
            return still > 100

        until(quiet)
        assert worker.tally.groups == 2
        worker.check_health(60)
        before = server.tokens
        for _ in range(30):
            worker.rollout_buffer.get(timeout=240)
        assert server.tokens > before


def test_an_update_without_notice_leaves_a_range(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Without news of updates, a worker's tokens have a range that is one version wider."""
    with working(server, tiny, tmp_path, watched=False) as worker:
        worker.rollout_buffer.get(timeout=240)
    with Run(tmp_path) as run:
        tree = run.session(next(iter(run.summaries())).record.id)
    assert {
        (s.version_low, s.version_high) for t in tree.turns if t.tokens for s in t.tokens.segments
    } == {(1, 2)}


def test_an_update_in_the_middle_of_a_session(server: Server, tiny: Any, tmp_path: Path) -> None:
    """A session that an update meets keeps its oldest version on all of its samples."""
    server.pause_at[1] = 0
    with working(server, tiny, tmp_path, concurrency=1, samples=1, deriver=ByTurn()) as worker:
        clock = worker.versions
        until(lambda: server.paused)
        clock.begin_update()
        worker.update_model_version(2)
        server.resume()
        samples = [worker.rollout_buffer.get(timeout=240) for _ in range(6)]
    assert [s.model_version for s in samples[:3]] == [1, 1, 1]
    assert [s.model_version for s in samples[3:]] == [2, 2, 2]
    with Run(tmp_path) as run:
        first = run.session(sorted(run.summaries(), key=lambda s: s.record.created_at)[0].record.id)
    assert first.turns[0].tokens.version_high.max() == 1  # type: ignore[union-attr]
    assert first.turns[2].tokens.version_low.min() == 2  # type: ignore[union-attr]


def test_sessions_beyond_the_bound_leave_their_group(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """What is too old when its group is sealed gives no samples, and is named."""
    server.pause_at[1] = 0
    with working(server, tiny, tmp_path, concurrency=1, samples=1, max_staleness=0) as worker:
        until(lambda: server.paused)
        worker.update_model_version(2)
        server.resume()
        sample = worker.rollout_buffer.get(timeout=240)
        assert sample.model_version == 2
        assert worker.tally.left == Counter({"stale": 1})


@contextmanager
def playing(engine: FakeEngine, store: Any, **options: Any) -> Iterator[RolloutWorker]:
    """Run a worker over an engine without a model."""
    settings: dict[str, Any] = {"samples": 1, "concurrency": 1, "given": iter(tasks(2))}
    settings |= {"allow": ["synthetic"], **options}
    given, spec = settings.pop("given"), settings.pop("spec", SPEC)
    worker = RolloutWorker(spec, given, engine, engine.renderer, store, **settings)
    worker.update_model_version(1)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_an_update_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    """The boundary is recorded to the token; the session's samples have the older version."""
    engine = FakeEngine([said("long"), said("long"), said("long")], version=1)
    engine.update_weights(after_tokens=2, call=1)
    with playing(engine, tmp_path, deriver=ByTurn()) as worker:
        assert "no more tasks" in failure(worker)
        samples = [worker.rollout_buffer.get_nowait() for _ in range(6)]
    with Run(tmp_path) as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
    ranges = [[s[:3] for s in turn.tokens.segments] for turn in trees[0].turns if turn.tokens]
    assert ranges == [[(5, 1, 1)], [(2, 1, 1), (3, 2, 2)], [(5, 2, 2)]]
    assert [s.model_version for s in samples] == [1, 1, 1, 2, 2, 2]


@register("test/opening")
class Opening(Words):
    """Words whose run is opened when a test says so."""

    begun, go = threading.Event(), threading.Event()

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        cls.begun.set()
        await asyncio.to_thread(cls.go.wait, 240)


def test_an_update_while_the_run_is_opened(tmp_path: Path) -> None:
    """It reaches the sessions: what older weights sampled is too old."""
    engine = FakeEngine([said("long"), said("long"), said("long")], version=1)
    spec = EnvSpec(id="test/opening")
    with playing(engine, tmp_path, spec=spec, max_staleness=0) as worker:
        assert Opening.begun.wait(240)
        worker.pause()
        worker.update_model_version(2)
        worker.resume()
        in_loop(worker, Opening.go.set)
        assert "no more tasks" in failure(worker)
    assert worker.tally.left == Counter({"stale": 2})


def test_a_failing_tool_leaves_the_group(tmp_path: Path) -> None:
    """Sessions whose environment broke give no samples; the others' samples are all there."""
    spec = EnvSpec(id="test/words", config={"fail": "tool"})

    def script(call: FakeCall) -> Any:
        return calls("note", text="a") if call.session.endswith("-0") else said("long")

    engine = FakeEngine(script, version=1)
    with playing(engine, tmp_path, spec=spec, samples=3, concurrency=3) as worker:
        assert "no more tasks" in failure(worker)
        assert worker.rollout_buffer.qsize() == worker.tally.samples == 4
    assert worker.tally.left == Counter({"failed:env": 2})
    assert worker.tally.sessions == 4


def test_a_paused_server_costs_the_agents_nothing(
    server: Server, tiny: Any, tmp_path: Path, forward: Forward
) -> None:
    """An update that takes longer than a turn may take ends no session."""
    budgets = Budgets(turns=3, seconds_per_turn=100)
    server.pause_at[0] = 0  # both sessions wait there, and neither runs its environment
    with working(server, tiny, tmp_path, budgets=budgets) as worker:
        transfer = Transfer(server)
        trainer = type("T", (), {"args": worker, "weight_transfer": transfer})()
        worker.attach(trainer)
        until(lambda: server.running == 2)
        trainer.weight_transfer.pause()
        in_loop(worker, forward, 200)
        trainer.weight_transfer.send_weights(iter(()))
        trainer.weight_transfer.resume()
        worker.update_model_version(2)
        assert server.version == 1
        for _ in range(6):
            worker.rollout_buffer.get(timeout=240)
    with Run(tmp_path) as run:
        statuses = Counter(str(s.attempts[0].status) for s in run.summaries())
    assert statuses.keys() <= {"truncated:turns", "cancelled"}


def test_a_hung_environment_ends_by_its_deadline(
    server: Server, tiny: Any, tmp_path: Path, forward: Forward
) -> None:
    """Sessions whose environment never answers are truncated, scored and passed on."""
    spec = EnvSpec(id="test/words", config={"hang": True})
    hanging = Words.hanging
    with working(
        server, tiny, tmp_path, spec=spec, budgets=Budgets(seconds_per_turn=400)
    ) as worker:
        until(lambda: Words.hanging - hanging == 2)
        in_loop(worker, forward, 500)
        sample = worker.rollout_buffer.get(timeout=240)
        assert sample.completion_mask.sum() > 0
    with Run(tmp_path) as run:
        assert "truncated:seconds_per_turn" in {str(s.attempts[0].status) for s in run.summaries()}


def test_stopping_while_the_server_hangs(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Stop ends sessions in the middle of a call at once; they are recorded as cancelled."""
    server.hang = True
    # What would be waited for until the deadline takes longer than the test may.
    with working(server, tiny, tmp_path, stop_seconds=3600) as worker:
        until(lambda: server.running == 2)
        worker.stop()
        with pytest.raises(RolloutFailed, match="is not running"):
            worker.check_health(1)
        worker.stop()
    with Run(tmp_path) as run:
        assert {str(s.attempts[0].status) for s in run.summaries()} == {"cancelled"}


def test_stopping_a_worker_that_waits_for_room(server: Server, tiny: Any, tmp_path: Path) -> None:
    """A full queue does not keep a worker from stopping."""
    with working(server, tiny, tmp_path, queue_maxsize=1) as worker:
        until(lambda: worker.rollout_buffer.full())


def test_a_server_that_comes_back(server: Server, tiny: Any, tmp_path: Path) -> None:
    """While the server is away sessions fail and leave their groups; afterwards others count."""
    server.refuse = 8
    with working(server, tiny, tmp_path) as worker:
        worker.rollout_buffer.get(timeout=240)
        assert 1 <= worker.tally.left["failed:policy"] <= 4
        worker.check_health(60)


def test_a_server_that_stays_away(server: Server, tiny: Any, tmp_path: Path) -> None:
    """If every session fails, the trainer gets an error with the causes instead of waiting."""
    server.refuse = 10**9
    with working(server, tiny, tmp_path) as worker:
        text = failure(worker, "groups had none", 1.0)
    assert "failed:policy" in text


def test_a_deriver_of_rewards_is_refused(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Rewards are not advantages: the worker is refused when it is made."""
    with (
        pytest.raises(InvalidInput, match="takes advantages"),
        working(server, tiny, tmp_path, deriver=OutcomeReward()),
    ):
        pass


class CancelledDeriver(ByTurn):
    """Awaits something that is cancelled, once it is given sessions that were run."""

    name = "test_cancelled"

    def derive(self, table: TurnTable) -> Advantages:
        if any(re.fullmatch(r"[0-9a-f]{16}-\d+", session) for session in table.sessions):
            raise asyncio.CancelledError("its own")
        return super().derive(table)


def test_a_cancellation_inside_is_no_end_of_the_tasks(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """What a deriver raises is named; the worker is not taken for one that has no more tasks."""
    with working(server, tiny, tmp_path, deriver=CancelledDeriver()) as worker:
        assert "CancelledError" in failure(worker)


def test_a_store_with_sessions_is_refused(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Versions begin anew with each process: two processes never share a run."""
    with working(server, tiny, tmp_path) as worker:
        worker.rollout_buffer.get(timeout=240)
    with working(server, tiny, tmp_path) as worker:
        assert "use a separate directory" in failure(worker)


def test_an_open_store_stays_open(server: Server, tiny: Any, tmp_path: Path) -> None:
    """A store that was given belongs to the giver."""
    with Store(tmp_path) as store:
        with working(server, tiny, store) as worker:
            worker.rollout_buffer.get(timeout=240)
        store.put_task(Task(id="later")).wait()


def test_flat_groups_can_be_left_out(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Groups without a difference train nothing; they are counted, not sent."""
    settings = {"samples": 1, "skip_flat": True}
    with working(server, tiny, tmp_path, given=iter(tasks(2)), **settings) as worker:
        failure(worker, "no more tasks")
        assert worker.tally.dropped == Counter({"flat group": 2})
        assert worker.rollout_buffer.qsize() == 0


def test_metrics_have_the_form_that_the_trainer_reduces(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """Rates are pairs, counters and gauges numbers; the mean reward is that of sessions."""
    with working(server, tiny, tmp_path, given=iter(tasks(2))) as worker:
        failure(worker, "no more tasks")
        found = [worker.metrics_queue.get_nowait() for _ in range(2)]
    with Run(tmp_path) as run:
        scores = [s.attempts[0].outcome.score for s in run.summaries() if s.attempts[0].outcome]
    sums = [metrics["reward"] for metrics in found]
    assert sum(a for a, _ in sums) == pytest.approx(sum(scores))
    assert sum(n for _, n in sums) == len(scores) == 4
    assert all(isinstance(v, float | tuple) for metrics in found for v in metrics.values())


class _Sample:
    def __init__(self, version: int) -> None:
        self.model_version = version

    def for_trl(self) -> _Sample:
        return self


def test_a_stale_session_is_dropped_whole() -> None:
    """A session that aged in the queue loses all of its samples, one that was begun none here."""
    version, freed = 5, []
    buffer = SampleBuffer(0, lambda: version, 2, lambda: freed.append(1))
    for name, sampled in (("a", 3), ("a", 3), ("b", 3), ("b", 3), ("c", 5)):
        buffer.put((name, _Sample(sampled)))
    assert buffer.get().model_version == 3
    version = 6
    assert buffer.get().model_version == 3  # begun in time: the trainer decides
    assert buffer.qsize() == 1
    assert buffer.get().model_version == 5
    assert (buffer.taken, buffer.stale, buffer.cut) == (3, 2, 1)
    assert len(freed) == 4  # three were taken, and b went


def test_attach_compares_settings(server: Server, tiny: Any, tmp_path: Path) -> None:
    """A trainer with another temperature would divide by the wrong number."""
    args = cpu.config(tmp_path, temperature=0.8)
    args.vllm_server_base_url = server.url
    made = RolloutWorker.for_vllm(
        args,
        SPEC,
        tasks(1),
        model="tiny",
        tokenizer=tiny.tokenizer,
        store=tmp_path,
        temperature=1.0,
    )
    trainer = type("T", (), {"args": args, "weight_transfer": None})()
    with pytest.raises(InvalidInput, match="temperature"):
        made.attach(trainer)


@pytest.mark.parametrize("bad", [{"top_p": 0.9}, {"top_k": 20}, {"repetition_penalty": 1.1}])
def test_a_cut_distribution_is_refused(tiny: Any, tmp_path: Path, bad: dict[str, float]) -> None:
    """Log-probs of a cut distribution are not those that the trainer computes."""
    args = cpu.config(tmp_path, **bad)
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        RolloutWorker.for_vllm(
            args, SPEC, tasks(1), model="tiny", tokenizer=tiny.tokenizer, store=tmp_path
        )


def test_raw_logprobs_are_refused(tiny: Any, tmp_path: Path) -> None:
    """Raw log-probs fit only at temperature 1."""
    engine = VLLMEngine("http://127.0.0.1:9", "tiny", logprob_mode="raw")
    renderer = TemplateRenderer(tiny.tokenizer)
    with pytest.raises(InvalidInput, match="processed_logprobs"):
        RolloutWorker(SPEC, tasks(1), engine, renderer, tmp_path, temperature=0.7)
    RolloutWorker(SPEC, tasks(1), engine, renderer, tmp_path)

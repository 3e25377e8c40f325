"""Retries and limiters: one back-off and one learned rate for all sessions of an endpoint."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import Forward
from tests.rollout.server import Answer, completion, endpoint, said
from trajgym.envs import Budgets, EnvSpec, Session
from trajgym.rollout import Limiter, OpenAIPolicy, PolicyRequest, PolicyUnavailable, Retry
from trajgym.rollout._retry import Transient, of_status, retry_after, shared_limiter
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = PolicyRequest(session="s", messages=[{"role": "user", "content": "go"}])
BUSY = Answer(429, {"error": {"message": "slow down"}}, {"retry-after": "0.2"})


class Clock:
    """Monotonic seconds that pass when a call waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def start(limiter: Limiter, clock: Clock, patience: float = 900.0) -> float:
    """Let one call start as soon as it may; return when."""
    while seconds := limiter._wait(None, lambda _: patience):
        clock.now += seconds
    return clock.now


def refuse(limiter: Limiter, begun: float, asked: float | None = None) -> None:
    limiter.failed(begun, Transient("status 429", asked, throttled=True), 0.5, 30.0)


class Provider:
    """Accepts so many calls in any window, and says when the next one may come."""

    def __init__(self, calls: int, window: float) -> None:
        self.calls, self.window = calls, window
        self.accepted: list[float] = []
        self.refused = 0

    def wait(self, now: float) -> float | None:
        oldest = self.accepted[-self.calls] if len(self.accepted) >= self.calls else -1e9
        if now - oldest >= self.window:
            self.accepted.append(now)
            return None
        self.refused += 1
        return oldest + self.window - now


@pytest.mark.parametrize(("calls", "window"), [(60, 60.0), (300, 60.0), (5, 1.0)])
def test_the_rate_is_learned(calls: int, window: float) -> None:
    """Within ten minutes most of what a provider accepts is used, few calls refused."""
    clock, provider = Clock(), Provider(calls, window)
    limiter = Limiter(clock=clock)
    first = clock.now
    while clock.now < first + 600:
        begun = start(limiter, clock)
        asked = provider.wait(begun)
        if asked is None:
            limiter.answered()
        else:
            refuse(limiter, begun, asked)
    offered = calls / window * 600
    assert len(provider.accepted) > 0.75 * offered
    assert provider.refused < 0.1 * len(provider.accepted)


def test_calls_under_way_make_no_second_back_off() -> None:
    """A hundred refusals of calls that were sent together are one back-off and one cut."""
    clock = Clock()
    limiter = Limiter(clock=clock)
    begun = [start(limiter, clock) for _ in range(100)]
    clock.now += 0.05
    for at in begun:
        refuse(limiter, at)
    rate, wait = limiter.rate, limiter.backing_off
    assert 0 < rate < 100
    one = Limiter(clock=clock)
    refuse(one, start(one, clock))
    assert wait == one.backing_off


def test_a_single_bad_request_holds_nobody_back() -> None:
    """A 500 delays its own call alone; several in a row delay all, an answer ends that."""
    clock = Clock()
    limiter = Limiter(clock=clock)
    broken = Transient("status 500")
    limiter.failed(start(limiter, clock), broken, 0.5, 30.0)
    assert limiter.backing_off == 0
    waits = []
    for _ in range(8):
        clock.now += 0.01
        limiter.failed(start(limiter, clock), broken, 0.5, 30.0)
        waits.append(limiter.backing_off)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1.0, 30.0)
    limiter.answered()
    start(limiter, clock)
    assert start(limiter, clock) == clock.now
    assert limiter.rate == float("inf")


def test_a_dead_endpoint_is_not_queued_for() -> None:
    """Once nothing was answered for as long as the patience lasts, calls start at once."""
    clock = Clock()
    limiter = Limiter(clock=clock)
    for _ in range(40):
        limiter.failed(start(limiter, clock, 60.0), Transient("status 500"), 0.5, 30.0)
    assert limiter.is_down(lambda _: 60.0)
    assert [limiter._wait(None, lambda _: 60.0) for _ in range(100)] == [0.0] * 100
    limiter.answered()
    assert not limiter.is_down(lambda _: 60.0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["ok", "busy", "down", "idle"]),
            st.none() | st.floats(0, 100),
            st.floats(0, 50),
        ),
        max_size=60,
    )
)
def test_no_history_stops_a_limiter(events: list[tuple[str, float | None, float]]) -> None:
    """Whatever happened, the next call starts within the asked wait and the slowest rate."""
    clock = Clock()
    limiter = Limiter(clock=clock)
    for kind, asked, seconds in events:
        begun = clock.now if kind == "idle" else start(limiter, clock, 1e9)
        clock.now += seconds
        if kind == "ok":
            limiter.answered()
        elif kind != "idle":
            failure = Transient(kind, asked, throttled=kind == "busy")
            limiter.failed(begun, failure, 0.5, 30.0)
    before = clock.now
    assert start(limiter, clock, 1e9) - before <= 100.0 + 30.0 + 1e-6
    assert limiter.rate > 0


def test_a_limit_of_ones_own() -> None:
    """``rate=`` spaces calls although nothing was refused; it must be positive."""
    clock = Clock()
    limiter = Limiter(rate=4.0, clock=clock)
    starts = [start(limiter, clock) for _ in range(9)]
    assert starts[-1] - starts[0] == pytest.approx(2.0, abs=0.05)
    with pytest.raises(InvalidInput, match="above 0"):
        Limiter(rate=0)


@pytest.mark.parametrize("setting", [{"tries": 0}, {"total_seconds": -1}, {"first_wait": -0.5}])
def test_settings_are_checked(setting: dict[str, Any]) -> None:
    """A number out of range is refused by name."""
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        Retry(**setting)


async def test_sessions_share_one_back_off() -> None:
    """Six calls at once, refused together: the wait that was asked, then all are answered."""
    answers = [BUSY] * 6 + [completion(said())]
    loop = asyncio.get_running_loop()
    async with endpoint(*answers) as server:
        async with OpenAIPolicy("m", base_url=server.url) as asked:
            begun = loop.time()
            async with asyncio.timeout(60):
                replies = await asyncio.gather(*(asked.sample(REQUEST) for _ in range(6)))
            took = loop.time() - begun
    assert len(replies) == 6
    assert took >= 0.2
    assert len(server.requests) <= 15


async def test_policies_of_one_model_share_a_limiter() -> None:
    """Two policies of one endpoint and model wait together, another model's alone."""
    async with endpoint(completion(said())) as server:
        async with (
            OpenAIPolicy("m", base_url=server.url) as one,
            OpenAIPolicy("m", base_url=server.url) as two,
            OpenAIPolicy("n", base_url=server.url) as other,
        ):
            assert one._limiter is two._limiter is shared_limiter(f"{server.url} m")
            assert other._limiter is not one._limiter


async def test_waits_are_off_the_agents_clock(
    make_session: Callable[..., Session], forward: Forward
) -> None:
    """A session survives waits that are longer than its agent time, and they aren't counted."""
    slow = Answer(429, {"error": {"message": "later"}}, {"retry-after": "1"})
    async with endpoint(completion(said()), slow, completion(said())) as server:
        async with OpenAIPolicy("m", base_url=server.url) as asked:
            await asked.sample(REQUEST)  # opens the client
            async with make_session() as session:
                asking = asyncio.create_task(session.ask(asked.sample(REQUEST)))
                async with asyncio.timeout(60):
                    while not session.clock.held:
                        await asyncio.sleep(0.01)
                forward(300)
                assert await asking is not None
                assert session.clock.used < 200
    assert len(server.requests) == 3


@pytest.fixture
def make_session() -> Callable[..., Session]:
    from tests.worlds import Counter

    assert Counter
    return lambda: Session(EnvSpec(id="test/counter"), Task(id="t"), budgets=Budgets(seconds=200.0))


async def test_a_dead_endpoint_fails_every_session_after_one_patience() -> None:
    """Sessions that come after the patience has run out are tried once each."""
    retry = Retry(total_seconds=0.3, first_wait=0.01, longest_wait=0.02)
    async with endpoint(Answer(500, {"error": {"message": "boom"}})) as server:
        async with OpenAIPolicy("m", base_url=server.url, retry=retry) as asked:
            for _ in range(2):
                with pytest.raises(PolicyUnavailable, match="500"):
                    await asyncio.wait_for(asked.sample(REQUEST), 60)
            sent = len(server.requests)
            with pytest.raises(PolicyUnavailable, match="500"):
                await asyncio.wait_for(asked.sample(REQUEST), 60)
            assert len(server.requests) == sent + 1


async def test_no_credit_is_not_waited_for() -> None:
    """A 429 that means an unpaid account is final."""
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    async with endpoint(Answer(429, body)) as server:
        async with OpenAIPolicy("m", base_url=server.url) as asked:
            with pytest.raises(Exception, match="quota"):
                await asyncio.wait_for(asked.sample(REQUEST), 60)
    assert len(server.requests) == 1


async def test_a_cancelled_wait_leaves_the_queue() -> None:
    """A session that is cancelled while it waits holds up no other."""
    limiter = Limiter(rate=20.0)
    await limiter.turn(lambda _: 60.0)
    waiting = [asyncio.create_task(limiter.turn(lambda _: 60.0)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:9]:
        task.cancel()
    await asyncio.wait_for(waiting[9], 60)
    assert not limiter._queue


def test_one_limiter_serves_several_loops() -> None:
    """Threads with event loops of their own share the pace."""
    limiter = Limiter(rate=200.0)
    done: list[int] = []

    async def calls() -> None:
        for _ in range(10):
            await limiter.turn(lambda _: 60.0)
        done.append(1)

    threads = [threading.Thread(target=lambda: asyncio.run(calls())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 4


def test_a_back_off_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the endpoint, the reason and the wait, once for all sessions."""
    clock = Clock()
    limiter = Limiter(name="https://x/v1 m", clock=clock)
    begun = [start(limiter, clock) for _ in range(20)]
    with caplog.at_level(logging.WARNING):
        for at in begun:
            refuse(limiter, at - 1e-9, 7.0)
            clock.now += 0.001
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "https://x/v1 m: status 429; the next call starts in 7.0 s"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('{"error": {"details": [{"retryDelay": "21s"}]}}', 21.0),
        ("Rate limit reached. Please try again in 1.5s.", 1.5),
        ("Please try again in 250ms.", 0.25),
        ("busy", None),
    ],
)
def test_waits_named_in_the_body(text: str, seconds: float | None) -> None:
    """Where a server sends no header, the wait that its text names is obeyed."""
    found = of_status(429, {}, text)
    assert found is not None
    assert found.asked == seconds


def test_a_header_goes_before_the_body() -> None:
    """``Retry-After`` is obeyed whatever the text says; other 4xx are final."""
    found = of_status(503, {"retry-after": "3"}, "try again in 9s")
    assert found == Transient("status 503", 3.0, throttled=True)
    assert of_status(404, {"retry-after": "3"}) is None
    assert retry_after({"retry-after": "soon"}) is None


def test_the_earlier_name_of_tries_still_works() -> None:
    """``attempts`` is a word of its own: as a keyword it warns, and means the same."""
    with pytest.warns(DeprecationWarning, match=r"Retry\(tries=\)"):
        assert Retry(attempts=3) == Retry(tries=3)

"""MiniWoB++: every task loads, the page's reward counts, and nobody else gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gui.solver import SOLVERS, read_tree
from tests.gui.test_browser import kill
from tests.worlds import call
from trajgym.envs import EnvSpec, Session
from trajgym.envs.gui import (
    BadAction,
    Browser,
    BrowserLook,
    Click,
    GoTo,
    GuiDied,
    Point,
    Size,
    Wait,
    load_miniwob_tasks,
    miniwob_names,
)
from trajgym.envs.sandbox import Sandbox, close_shared_providers
from trajgym.trajectory import InvalidInput

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(box: Sandbox) -> AsyncIterator[Browser]:
    async with Browser(box, size=Size(320, 240)) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def shared() -> AsyncIterator[None]:
    yield
    await close_shared_providers()


async def start(browser: Browser, name: str, seed: int = 0, seconds: float = 100.0) -> str:
    return await browser.start_miniwob(name, seed, seconds, hide_query=False)


async def solve(browser: Browser, name: str, seed: int) -> BrowserLook:
    asked = await start(browser, name, seed)
    look = await browser.look()
    steps = SOLVERS[name](read_tree(asked, look.tree))
    action = next(steps)
    while True:
        look = await browser.act([action])
        assert look.errors == ("",), (name, asked)
        if look.task["done"]:
            return look
        try:
            action = steps.send(read_tree(asked, look.tree))
        except StopIteration:
            return look


async def test_every_task_loads(browser: Browser) -> None:
    """All pages of the wheel start an episode, and begin again as they were for the same seed."""
    names = miniwob_names()
    assert len(names) == 130
    for number, name in enumerate(names):
        asked = await start(browser, name, 7)
        look = await browser.look()
        assert look.task["done"] is False, name
        assert look.tree.startswith("page"), name
        if number % 10 == 0:
            assert await start(browser, name, 7) == asked
            assert (await browser.look()).digest == look.digest, name


@pytest.mark.parametrize("name", SOLVERS)
async def test_a_script_gets_the_official_reward(browser: Browser, name: str) -> None:
    """A solved task has the page's reward of 1, and a little less with time decay."""
    assert len(SOLVERS) >= 15
    look = await solve(browser, name, seed=3)
    assert (look.task["done"], look.task["raw"]) == (True, 1)
    assert 0.5 < look.task["reward"] <= 1


async def test_a_wrong_answer_gets_what_the_page_gives(browser: Browser) -> None:
    """The page's own -1 is passed on as it is."""
    asked = await start(browser, "click-test-2")
    look = await browser.look()
    assert "ONE" in asked
    look = await browser.act([Click(read_tree("", look.tree).one("button", "TWO").at)])
    assert (look.task["done"], look.task["raw"]) == (True, -1)


async def test_time_runs_out(browser: Browser) -> None:
    """The page's own limit ends the episode with -1."""
    await start(browser, "click-test", seconds=1)
    look = await browser.act([Wait(1.5)])
    assert (look.task["done"], look.task["raw"], look.task["reason"]) == (True, -1, "timed out")


async def test_an_episode_ends_once(browser: Browser) -> None:
    """After the end nothing counts: no second episode, no page, no click on the START cover."""
    await start(browser, "click-test-2")
    look = await browser.look()
    wrong = read_tree("", look.tree).one("button", "TWO").at
    # A double click could start the next episode on the cover that the page would show.
    look = await browser.act([Click(wrong, count=2)])
    assert look.task["raw"] == -1
    look = await browser.act([Click(Point(80, 105))])
    look = await browser.act([GoTo("http://miniwob.test/miniwob/click-test.html")])
    assert (look.task["done"], look.task["raw"]) == (True, -1)


@pytest.mark.parametrize(
    "url", ["javascript:core.endEpisode(1)", "data:text/html,<script>opener.core</script>"]
)
async def test_the_agent_can_not_end_the_episode_itself(browser: Browser, url: str) -> None:
    """No action runs a script in the page, so that its reward can't be called for."""
    await start(browser, "click-test")
    look = await browser.act([GoTo(url)])
    assert look.errors != ("",)
    assert look.task["done"] is False
    with pytest.raises(BadAction):
        await browser.ask("endEpisode")


async def test_leaving_the_page_ends_with_nothing(browser: Browser) -> None:
    """Whoever goes elsewhere has ended the episode without a reward."""
    await start(browser, "click-test")
    look = await browser.act([GoTo("http://miniwob.test/miniwob/click-test-2.html")])
    assert (look.task["done"], look.task["raw"], look.task["reason"]) == (True, 0, "left the page")


CALLS: dict[str, tuple[dict[str, Any], Any]] = {
    "elements": ({}, lambda at: call(("click_at", f'{{"x": {at[0]}, "y": {at[1]}}}'))),
    "openai": (
        {"shown": [640, 480]},
        lambda at: call(
            (
                "computer",
                f'{{"actions": [{{"type": "click", "x": {2 * at[0]}, "y": {2 * at[1]}}}]}}',
            )
        ),
    ),
    "anthropic": (
        {},
        lambda at: call(
            ("computer", f'{{"action": "left_click", "coordinate": [{at[0]}, {at[1]}]}}')
        ),
    ),
    "ui-tars": (
        {"thousandths": True},
        lambda at: f"Action: click(start_box='({at[0] / 0.32:.0f},{at[1] / 0.24:.0f})')",
    ),
    "browsergym": ({}, lambda at: f"mouse_click({at[0]}, {at[1]})"),
}


@pytest.mark.parametrize("space", ["openai"])
async def test_sessions(space: str, browser: Browser, shared: None) -> None:
    """A whole session in an action space: picture in, action out, the page's reward recorded."""
    await start(browser, "click-test", 5)
    look = await browser.look(boxes=True)
    button = read_tree("", look.tree).all("button")[0]
    x, y, width, height = look.boxes[button.id]
    options, say = CALLS[space]
    spec = EnvSpec(id="miniwob", config={"actions": space, "time_decay": True, **options})
    task = load_miniwob_tasks("click-test")[0]
    async with Session(spec, task, seed=5) as session:
        assert session.messages[0]["content"][1]["type"] == "image_url"
        result = await session.step(say((round(x + width / 2), round(y + height / 2))))
    assert result.done
    assert str(session.status) == "completed"
    assert session.outcome is not None
    assert session.outcome.details["raw_reward"] == 1
    assert 0.5 < session.outcome.score < 1
    assert session.turns[0].signals["screen_changed"]


@pytest.mark.slow
@pytest.mark.parametrize("space", CALLS)
async def test_sessions_in_every_space(space: str, browser: Browser, shared: None) -> None:
    """Every action space reaches the same button."""
    await test_sessions(space, browser, shared)


async def test_unknown_tasks_are_refused(browser: Browser) -> None:
    """A name that is no task is an error before anything starts, and in the browser."""
    with pytest.raises(InvalidInput, match="fly-away"):
        load_miniwob_tasks("click-test,fly-away")
    with pytest.raises(BadAction, match="fly-away"):
        await start(browser, "fly-away")
    with pytest.raises(InvalidInput, match="ui-tars"):
        EnvSpec(id="miniwob", config={"actions": "telepathy"}).resolve()
    assert len(load_miniwob_tasks("miniwob")) == 130


async def test_a_crash_is_no_reward_of_zero(browser: Browser, box: Sandbox) -> None:
    """When the page of a task crashes, that is a failure of the environment, never a score."""
    await start(browser, "click-test")
    await kill(box, "--type=renderer")
    with pytest.raises(GuiDied, match="crashed"):
        await browser.act([Wait(30)])

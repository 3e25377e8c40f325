"""MiniWoB++: every task loads, and only the page gives the reward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gui.killing import kill
from tests.gui.solver import SOLVERS, Seen, places_needed, read_tree, with_mouse
from tests.worlds import call
from trajgym.envs import EnvSpec, Session
from trajgym.envs.gui import BadAction, Browser, load_miniwob_tasks
from trajgym.envs.gui.actions import Action, Click, GoTo, Point, Scroll, Size, Wait
from trajgym.envs.gui.browser import BrowserLook, miniwob_names
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


async def start(browser: Browser, name: str, seed: int = 0, seconds: float = 3600.0) -> str:
    return await browser.start_miniwob(name, seed, seconds, hide_query=False)


async def by_ids(browser: Browser, action: Action, seen: Seen) -> BrowserLook:
    """Execute an action of the solver as it is."""
    del seen
    return await browser.act([action])


MOVING = "() => Boolean(window.jQuery && jQuery(':animated').length)"


async def by_coordinates(browser: Browser, action: Action, seen: Seen) -> BrowserLook:
    """Execute an action of the solver with mouse and keyboard; no action names an element."""
    async with asyncio.timeout(60):
        while await browser.evaluate(MOVING):  # a place is no longer right when it is clicked
            pass
    look = await browser.look(boxes=True)
    named = places_needed(action)
    for _ in range(10):
        boxes = {one.id: one.box for one in look.elements if not one.covered}
        if all(name in boxes for name in named):
            break
        look = await browser.act([Scroll(Point(160, 120), dy=60)], boxes=True)
    return await browser.act(with_mouse(action, seen, boxes))


HANDS = {"ids": by_ids, "coordinates": by_coordinates}
ONLY_BY_IDS = {"click-scroll-list"}
"""Several options of a list that has to be scrolled in between."""


async def solve(browser: Browser, name: str, seed: int, hand: str) -> BrowserLook:
    asked = await start(browser, name, seed)
    seen = read_tree(asked, (await browser.look()).tree)
    steps = SOLVERS[name](seen)
    action = next(steps)
    while True:
        look = await HANDS[hand](browser, action, seen)
        assert not any(look.errors), (name, asked, action, look.errors)
        if look.task["done"]:
            return look
        seen = read_tree(asked, look.tree)
        try:
            action = steps.send(seen)
        except StopIteration:
            return look


async def test_every_task_loads(browser: Browser) -> None:
    """All pages of the wheel start an episode, which is the same again for the same seed."""
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


@pytest.mark.parametrize(
    ("name", "hand"),
    [(n, h) for n in SOLVERS for h in HANDS if h == "ids" or n not in ONLY_BY_IDS],
)
async def test_a_script_gets_the_official_reward(browser: Browser, name: str, hand: str) -> None:
    """A solved task has the page's reward of 1, and a little less with time decay."""
    assert len(SOLVERS) - len(ONLY_BY_IDS) >= 40
    look = await solve(browser, name, 3, hand)
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
    look = await browser.act([Wait(1.0)])
    async with asyncio.timeout(60):
        while not look.task["done"]:
            look = await browser.act([Wait(0.1)])
    assert (look.task["done"], look.task["raw"], look.task["reason"]) == (True, -1, "timed out")


async def test_an_episode_ends_once(browser: Browser) -> None:
    """Actions after the end have no effect: no second episode, page or click on START counts."""
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
    """No action can run a script in the page, which could request a reward."""
    await start(browser, "click-test")
    look = await browser.act([GoTo(url)])
    assert look.errors != ("",)
    assert look.task["done"] is False
    with pytest.raises(BadAction):
        await browser.ask("endEpisode")


async def test_leaving_the_page_ends_with_nothing(browser: Browser) -> None:
    """An agent that navigates to another page ends the episode without a reward."""
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
    """The same button can be clicked in every action space."""
    await test_sessions(space, browser, shared)


async def test_unknown_tasks_are_refused(browser: Browser) -> None:
    """An unknown task is an error before anything is started, and in the browser."""
    with pytest.raises(InvalidInput, match="fly-away"):
        load_miniwob_tasks("click-test,fly-away")
    with pytest.raises(BadAction, match="fly-away"):
        await start(browser, "fly-away")
    with pytest.raises(InvalidInput, match="ui-tars"):
        EnvSpec(id="miniwob", config={"actions": "telepathy"}).resolve()
    assert len(load_miniwob_tasks("miniwob")) == 130


async def test_a_crash_of_the_page_ends_the_episode(browser: Browser, box: Sandbox) -> None:
    """An episode whose page crashed is scored, without a reward."""
    await start(browser, "click-test")
    await kill(box, "--type=renderer")
    await browser.act([Wait(0.1)])
    while not (episode := await browser.task())["done"]:
        await browser.act([Wait(0.1)])
    assert (episode["raw"], episode["reward"]) == (0, 0)
    assert episode["reason"] in {"the page crashed or stopped responding", "left the page"}

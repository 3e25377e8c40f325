"""The browser environment: own sites, verified by their state; signals; forks; WebArena's shape."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gui.solver import read_tree
from tests.worlds import call
from trajgym.envs import EnvSpec, ForkDiverged, Session, Unforkable, tools_of
from trajgym.envs.gui import (
    BrowserEnv,
    BrowserRecord,
    Condition,
    goal_distance,
    load_browser_tasks,
    webarena_tasks,
)
from trajgym.envs.gui._webarena import answer_matches, contents_match, url_matches
from trajgym.envs.sandbox import close_shared_providers
from trajgym.trajectory import InvalidInput, Message, Task, text_of

TASKS = {task.id: task for task in load_browser_tasks("builtin")}
QUICK = ["shop-basket", "wizard-infeasible"]
loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def engine(browser_image: None) -> AsyncIterator[None]:
    yield
    await close_shared_providers()


def does(name: str, **arguments: Any) -> dict[str, Any]:
    return call((name, json.dumps(arguments)))


def spec(**config: Any) -> EnvSpec:
    return EnvSpec(id="browser", config={"picture": "none", **config})


def find(message: Message, role: str, name: str) -> str:
    """Return the id of an element that a message shows."""
    return read_tree("", text_of(message)).one(role, name).id


async def play(task: Task, sample: int) -> Session:
    async with Session(spec(picture="jpeg"), task) as session:
        for message in BrowserEnv.script(task, sample):
            if not session.done:
                await session.step(message)
    return session


@pytest.mark.docker
@loop
@pytest.mark.parametrize("name", QUICK)
async def test_scripts_solve_own_tasks(name: str, engine: None) -> None:
    """A scripted agent reaches the wanted state, and the distance to it falls to nothing."""
    session = await play(TASKS[name], 0)
    assert str(session.status) == "completed", session.attempt.cause
    assert session.outcome is not None
    assert session.outcome.score == 1
    distances = [turn.signals["goal_distance"] for turn in session.turns]
    assert distances[-1] == 0
    assert distances == sorted(distances, reverse=True)


@pytest.mark.docker
@pytest.mark.slow
@loop
@pytest.mark.parametrize("name", sorted(set(TASKS) - set(QUICK)))
async def test_scripts_solve_all_own_tasks(name: str, engine: None) -> None:
    """Every built-in task can be solved, and an agent that ends too early is not rewarded."""
    solved, early = await play(TASKS[name], 0), await play(TASKS[name], 2)
    assert solved.outcome is not None
    assert early.outcome is not None
    assert (solved.outcome.score, early.outcome.score) == (1, 0)


@pytest.mark.docker
@loop
async def test_signals_and_mistakes(engine: None) -> None:
    """Turns tell whether the element was there, something changed, or was done again in vain."""
    async with Session(spec(marks=True, picture="png", shown=[640, 360]), TASKS["mail-tidy"]) as s:
        content = s.messages[0]["content"]
        assert "Archive the newsletter" in content[0]["text"]
        assert content[1]["type"] == "image_url"
        await s.step(does("click", element="999"))
        await s.step(does("click", element="999"))
        result = await s.step(does("goto", url="http://mail.test/message/4"))
        await s.step(does("click_at", x=5000, y=1))
        assert [turn.signals.get("element_found") for turn in s.turns] == [False, False, None, None]
        assert [turn.signals.get("repeated_action") for turn in s.turns[:3]] == [False, True, False]
        assert [turn.signals.get("screen_changed") for turn in s.turns[:3]] == [False, False, True]
        assert s.turns[0].signals["actions"][0]["at"] == "999"
        assert "http://mail.test/message/4" in result.observation[0]["content"][0]["text"]
        assert "outside of the screen, which is 640 x 360" in str(s.turns[3].observation)
        assert not s.done


@pytest.mark.docker
@loop
async def test_a_fork_from_storage_is_the_same_page(engine: None) -> None:
    """A rival attempt finds the basket as it was, with the same element ids, and goes its way."""
    async with Session(spec(), TASKS["shop-basket"], snapshot_every=1) as first:
        result = await first.step(does("goto", url="http://shop.test/product/kettle"))
        button = find(result.observation[0], "button", "Add to basket")
        bought = await first.step(does("click", element=button))
        assert "27.50 EUR" in str(bought.observation), bought.observation
        async with await first.fork(first.turns[-1].index) as rival:
            await first.step(does("goto", url="http://shop.test/orders"))
            result = await rival.step(does("goto", url="http://shop.test/basket"))
            assert "27.50 EUR" in str(result.observation)
            assert rival.turns[-1].signals["fork"] == {"by": "storage", "same_picture": True}
            assert rival.turns[-1].signals["goal_distance"] == 0.5


PAGE = """<title>Count</title><button onclick="this.textContent = 1 + +this.textContent">0</button>
<p id="when"></p>"""
CLOCK = PAGE + "<script>document.title = Math.random()</script>"


@pytest.mark.docker
@loop
async def test_a_fork_of_a_page_with_its_own_state_is_replayed(engine: None) -> None:
    """Where storage does not hold what a page shows, its actions are carried out again."""
    data = {"instruction": "Count.", "pages": {"index.html": PAGE}}
    task = Task(id="count", data={**data, "start_url": "http://pages.test/"})
    async with Session(spec(), task, snapshot_every=1) as session:
        for _ in range(2):
            await session.step(does("click", element="1"))
        async with await session.fork(session.turns[-1].index) as rival:
            result = await rival.step(does("click", element="1"))
            assert 'button "3"' in str(result.observation)
            assert rival.turns[-1].signals["fork"]["by"] == "replay"


@pytest.mark.docker
@pytest.mark.slow
@loop
async def test_a_fork_that_would_be_another_world_is_an_error(engine: None) -> None:
    """A page that differs by chance can't be forked; a task that says so is not even tried."""
    data = {"instruction": "Count.", "start_url": "http://pages.test/"}
    task = Task(id="chance", data={**data, "pages": {"index.html": CLOCK}})
    async with Session(spec(), task, snapshot_every=1) as session:
        await session.step(does("click", element="1"))
        with pytest.raises(ForkDiverged, match="neither"):
            await session.fork(session.turns[-1].index)
    once = Task(id="once", data={**task.data, "replayable": False})
    async with Session(spec(), once) as session:
        with pytest.raises(Unforkable, match="can't be replayed"):
            await session.fork(None)


def test_action_spaces_have_their_tools() -> None:
    """The configuration chooses the tools; the class stays the same for the same choice."""
    named = {
        space: set(tools_of(spec(actions=space).resolve()))
        for space in ("elements", "openai", "anthropic", "browsergym", "ui-tars")
    }
    assert {"click", "fill", "goto", "answer"} < named["elements"]
    assert named["openai"] == named["anthropic"] == {"computer", "answer", "give_up"}
    assert named["browsergym"] == named["ui-tars"] == set()
    assert spec(actions="openai").resolve() is spec(actions="openai").resolve()
    assert issubclass(spec(actions="openai").resolve(), BrowserEnv)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"actions": "telepathy"}, "telepathy"),
        ({"size": [10, 10]}, "size"),
        ({"shown": [640, 640]}, "proportions"),
        ({"picture": "gif"}, "gif"),
        ({"picture": "none", "marks": True}, "marks"),
    ],
)
def test_bad_settings_are_refused(config: dict[str, Any], said: str) -> None:
    """A setting that makes no sense is named before anything starts."""
    with pytest.raises(InvalidInput, match=said):
        EnvSpec(id="browser", config=config).make()


def test_bad_tasks_are_refused(tmp_path: Path) -> None:
    """A task with an unknown field is named when it is loaded."""
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"id": "x", "data": {"instruction": "Go.", "colour": 1}}))
    with pytest.raises(InvalidInput, match="colour"):
        load_browser_tasks(str(file))


STATES = {"shop.test": {"orders": [{"city": "Leeds", "items": {"pan": 1}}], "note": "A b"}}


@pytest.mark.parametrize(
    ("path", "how", "value", "holds"),
    [
        ("orders.0.city", "equals", "Leeds", True),
        ("orders.-1.items", "equals", {"pan": 1}, True),
        ("orders.1.city", "equals", "Leeds", False),
        ("orders", "count", 1, True),
        ("orders", "some", {"city": "Leeds"}, True),
        ("orders", "some", {"city": "York"}, False),
        ("orders.0.items", "contains", "pan", True),
        ("note", "contains", "a B", True),
        ("no.such.path", "contains", "", False),
    ],
)
def test_conditions(path: str, how: Any, value: Any, holds: bool) -> None:
    """A condition looks at one place of a site's state; what is not there holds nothing."""
    condition = Condition(site="shop", path=path, is_=how, value=value)
    assert condition.holds(STATES) is holds
    other = Condition(site="mail", path="x", value=1)
    assert goal_distance([condition, other], STATES) == (0.5 if holds else 1.0)


def test_answers() -> None:
    """Answers are compared without case, spaces and a full stop, and only where one is wanted."""
    record = BrowserRecord(instruction="?", answer="Garden hose")
    assert record.said(" garden  HOSE.")
    assert not record.said("hose")
    assert BrowserRecord(instruction="?").said("")
    assert not BrowserRecord(instruction="?", answer_includes=["12"]).said("room 11")


# WebArena's shape -------------------------------------------------------------------------


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "sites": ["shopping"],
        "task_id": number,
        "require_login": False,
        "storage_state": None,
        "start_url": "__SHOPPING__/product/pan",
        "intent": "Put the pan into the basket and tell me its price.",
        "eval": {
            "eval_types": ["string_match", "url_match", "program_html"],
            "reference_answers": {"must_include": ["32.00"]},
            "reference_url": "__SHOPPING__/basket",
            "program_html": [
                {
                    "url": "__SHOPPING__/basket",
                    "locator": "document.querySelector('table').innerText",
                    "required_contents": {"must_include": ["frying pan"]},
                }
            ],
        },
        **changes,
    }


def loaded(tmp_path: Path, *records: dict[str, Any]) -> Any:
    file = tmp_path / "records.json"
    file.write_text(json.dumps(records))
    return webarena_tasks(str(file), {"__SHOPPING__": "http://shop.test"})


def test_webarena_records_that_can_not_run_are_refused_by_name(tmp_path: Path) -> None:
    """A judge, a helper function, a login and an unknown site are each a reason."""
    answers = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["x"]}}
    helper = {"eval_types": ["program_html"], "program_html": [{"url": "func:shop_order()"}]}
    found = loaded(
        tmp_path,
        record(0),
        record(1, eval=answers),
        record(2, eval=helper),
        record(3, storage_state="./.auth/shopping.json"),
        record(4, start_url="__REDDIT__/f/books"),
        record(5, eval={"eval_types": ["vision_match"]}),
    )
    assert [task.id for task in found.tasks] == ["webarena-0"]
    reasons = list(found.refused.values())
    words = ["judge", "function", "login", "__REDDIT__", "vision_match"]
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))
    with pytest.raises(InvalidInput, match="intent"):
        loaded(tmp_path, {"task_id": 1})


@pytest.mark.docker
@loop
async def test_a_webarena_record_end_to_end(tmp_path: Path, engine: None) -> None:
    """A record runs on a site of one's own: answer, address and page are compared."""
    task = loaded(tmp_path, record(0)).tasks[0]
    config = {"own_sites": ["shop"], "actions": "browsergym", "picture": "none"}
    env = EnvSpec(id="trajgym.envs.gui:WebArenaEnv", config=config)
    async with Session(env, task) as session:
        number = find(session.messages[0], "button", "Add to basket")
        await session.step(f"I add it.\n```\nclick('{number}')\n```")
        await session.step("send_msg_to_user('It costs 32.00 EUR.')")
    assert session.outcome is not None
    held = {"string_match": True, "url_match": True, "program_html": True}
    assert session.outcome.details["held"] == held
    assert session.outcome.score == 1


def test_webarena_comparisons() -> None:
    """The comparisons are those of the benchmark: words, paths with queries, alternatives."""
    assert answer_matches("10 orders", {"must_include": ["10"]})
    assert not answer_matches("10 orders", {"must_include": ["0"]})
    assert answer_matches("'Done'", {"exact_match": "done"})
    assert url_matches("http://a/b/c?x=1&y=2", "http://a/b/c?x=1")
    assert not url_matches("http://a/b/c?x=2", "http://a/b/c?x=1")
    assert url_matches("http://a/d", "http://a/b |OR| http://a/d")
    assert contents_match("Total: 5 EUR", {"must_include": ["total |OR| sum"]})
    assert not contents_match("", {"must_include": ["total"]})


@pytest.mark.docker
@pytest.mark.slow
def test_the_example_runs(tmp_path: Path, browser_image: None) -> None:
    """The example solves its task and leaves a picture of every turn."""
    script = Path(__file__).parents[2] / "examples" / "browser.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "pictures")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("score 1.0\n")
    assert len(list((tmp_path / "pictures").iterdir())) == 4

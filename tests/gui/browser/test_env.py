"""The browser environment: own sites, verified by their state; signals; forks; WebArena's shape."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image as Picture
from pydantic import JsonValue

from tests.gui.killing import kill
from tests.gui.solver import read_tree
from tests.worlds import call
from trajgym.envs import EnvSpec, ForkDiverged, Session, Unforkable, tools_of
from trajgym.envs.gui import (
    BrowserEnv,
    BrowserRecord,
    Condition,
    WebArenaEnv,
    load_browser_tasks,
    webarena_tasks,
)
from trajgym.envs.gui.browser import goal_distance
from trajgym.envs.gui.browser._webarena import answer_matches, contents_match, url_matches
from trajgym.envs.sandbox import close_shared_providers
from trajgym.trajectory import InvalidInput, Message, Task, blob_hashes, text_of

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
    """A scripted agent reaches the goal state, and the distance to it decreases to 0."""
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
    """Signals of a turn: whether its element existed, the page changed, or it was a repetition."""
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
        assert "outside the screen, which is 640 x 360" in str(s.turns[3].observation)
        assert not s.done


@pytest.mark.docker
@loop
async def test_a_fork_from_storage_is_the_same_page(engine: None) -> None:
    """A fork has the same basket and element ids, and continues independently."""
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
    """If a page's state is not in its storage, the actions are executed again."""
    data = {"instruction": "Count.", "pages": {"index.html": PAGE}, "answer": "3"}
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
    """A page that differs randomly can't be forked; a task that declares this is not tried."""
    data = {"instruction": "Count.", "start_url": "http://pages.test/", "answer": "3"}
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
    """The configuration selects the tools; equal configurations have the same class."""
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
        ({"clock": "noon"}, "noon"),
        ({"device_scale": 9}, "device_scale"),
    ],
)
def test_bad_settings_are_refused(config: dict[str, Any], said: str) -> None:
    """An invalid setting is named before anything is started."""
    with pytest.raises(InvalidInput, match=said):
        EnvSpec(id="browser", config=config).make()


def test_bad_tasks_are_refused(tmp_path: Path) -> None:
    """A task with an unknown field is named when it is loaded."""
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"id": "x", "data": {"instruction": "Go.", "colour": 1}}))
    with pytest.raises(InvalidInput, match="colour"):
        load_browser_tasks(str(file))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"sites": ["shop"], "start_url": "http://shop.test/"}, "checks nothing"),
        ({"answer": " . "}, "must not be empty"),
        ({"answer": "x", "folders": {"shop": "."}}, "not be a site"),
        ({"answer": "x", "folders": {"wiki": "/no/such/folder"}}, "there is no folder"),
        ({"answer": "x", "allow": ["a.example:80"], "network": True}, "exclude each other"),
        ({"answer_includes": [""]}, "must not be empty"),
        (
            {"checks": [{"site": "shop", "path": "orders", "value": 1}]},
            "'shop', which is not",
        ),
        ({"sites": ["shop"], "checks": [{"site": "shop", "path": "a", "is_": "some"}]}, "object"),
        ({"sites": ["shop"], "checks": [{"site": "shop", "path": "a", "is_": "count"}]}, "number"),
        ({"sites": ["shop"], "checks": [{"site": "shop", "path": "a"}]}, "needs a value"),
    ],
)
def test_a_task_that_could_not_be_missed_is_refused(
    data: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Tasks that check nothing, or compare with nothing, are refused when they are loaded."""
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"id": "x", "data": {"instruction": "Go.", **data}}))
    with pytest.raises(InvalidInput, match=said):
        load_browser_tasks(str(file))


@pytest.mark.docker
@loop
async def test_a_start_page_that_fails_is_no_score(engine: None) -> None:
    """An error page or an address that can't be reached is a failure of the environment."""
    for url, said in (("http://shop.test/no-such-page", "404"), ("http://192.0.2.1/", "net::ERR")):
        data = {"instruction": "Look.", "start_url": url, "sites": ["shop"], "answer": "x"}
        async with Session(spec(), Task(id="lost", data=data)) as session:
            pass
        assert (str(session.status), session.outcome) == ("failed:env", None)
        assert said in session.attempt.cause


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on this machine's loopback; gives the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def make_site(folder: Path) -> None:
    folder.chmod(0o755)  # the sandbox's user reads it
    (folder / "img").mkdir()
    Picture.new("RGB", (30, 20), "red").save(folder / "img" / "red.png")
    (folder / "index.html").write_text(
        "<img src='img/red.png' onload='document.title = this.naturalWidth'>"
        "<a href='http://api.example/'>Service</a>"
    )


@pytest.mark.docker
@loop
async def test_a_folder_and_a_service_of_this_machine_are_sites(
    engine: None, tmp_path: Path
) -> None:
    """Only a directory with binary files and a service of this machine can be reached."""
    make_site(tmp_path)
    posted = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            posted.append(self.headers["Host"])
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>Served here</h1>")

    data: dict[str, Any] = {
        "instruction": "Look.",
        "start_url": "http://gallery.test/",
        "folders": {"gallery": str(tmp_path)},
        "answer": "30",
    }
    with serving(Service) as port:
        data["allow"] = [f"api.example:80=127.0.0.1:{port}"]
        async with Session(spec(html_chars=2000), Task(id="own", data=data)) as session:
            opened = session._instance.env.browser  # type: ignore[union-attr]
            assert await opened.evaluate("document.title") == "30"
            result = await session.step(does("goto", url="http://api.example/"))
            assert "Served here" in text_of(result.observation[0])
            result = await session.step(does("goto", url=f"http://127.0.0.1:{port}/"))
            assert "net::ERR" in text_of(result.observation[0])
            await session.step(does("answer", text="30"))
        assert session.outcome is not None
        assert session.outcome.passed
    assert posted[0] == "api.example"


@pytest.mark.docker
@loop
async def test_a_webarena_site_on_this_machine(engine: None, tmp_path: Path) -> None:
    """The example in the docs works: a port of this machine under its own name."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<h1>Shop</h1><a href='/cart'>Cart</a>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    one = record(
        0,
        start_url="__SHOPPING__/",
        eval={"eval_types": ["string_match"], "reference_answers": {"exact_match": "Shop"}},
    )
    file = tmp_path / "records.json"
    file.write_text(json.dumps([one]))
    (task,) = webarena_tasks(str(file), {"__SHOPPING__": "http://shopping.example"}).tasks
    with serving(handler) as port:
        allow: list[JsonValue] = [f"shopping.example:80=127.0.0.1:{port}"]
        env = EnvSpec(id="trajgym.envs.gui:WebArenaEnv", config={"allow": allow, "picture": "none"})
        async with Session(env, task) as session:
            assert 'heading "Shop"' in text_of(session.messages[0])
            await session.step(does("answer", text="Shop"))
    assert session.outcome is not None
    assert session.outcome.passed


@pytest.mark.docker
@loop
async def test_a_refused_call_shows_the_page(engine: None) -> None:
    """The result of an invalid call has the reason, the elements and the picture."""
    async with Session(spec(picture="jpeg"), TASKS["mail-tidy"]) as session:
        for message in (
            does("click", element="999"),
            does("click", element="1", count=7),
            does("click"),
            does("fly", to="Leeds"),
        ):
            result = await session.step(message)
            text, picture = result.observation[0]["content"]
            assert "Error: " in text["text"]
            assert "Newsletter" in text["text"]
            assert picture["type"] == "image_url"
            assert session.turns[-1].signals["action_ok"] is False
        assert not session.done


@pytest.mark.docker
@loop
async def test_zoom_shows_an_area_in_full_resolution(engine: None) -> None:
    """The picture shows an area as the screen has it, scrolled or not; nothing has changed."""
    squares = "".join(
        f"<p style='margin:0;width:100px;height:100px;background:rgb({n},0,0)'>" for n in range(40)
    )
    data = {
        "instruction": "x",
        "start_url": "http://pages.test/",
        "pages": {"index.html": squares},
        "answer": "y",
    }
    config = {"actions": "anthropic", "picture": "png", "shown": [640, 360], "marks": True}
    zoom = {"action": "zoom", "region": [4, 4, 49, 24]}
    async with Session(spec(**config), Task(id="zoom", data=data)) as session:
        pictures = []
        for said in (
            {"action": "screenshot"},
            zoom,
            {"action": "scroll", "coordinate": [300, 200], "scroll_direction": "down",
             "scroll_amount": 5},
            zoom,
        ):  # fmt: skip
            result = await session.step(does("computer", **said))
            (blob,) = blob_hashes(result.observation)
            pictures.append(Picture.open(io.BytesIO(session.images[blob])).convert("RGB"))
        changed = [turn.signals["screen_changed"] for turn in session.turns]
    _, first, _, second = pictures
    assert first.size == second.size == (640, 284)
    assert [picture.getpixel((300, 100)) for picture in (first, second)] == [(0, 0, 0), (5, 0, 0)]
    assert changed[1:] == [False, True, False]


@pytest.mark.docker
@loop
async def test_the_end_of_chromium_is_scored(engine: None) -> None:
    """If the browser exits after the first action, the attempt is truncated, and scored."""
    data = {
        **TASKS["shop-basket"].data,
        "checks": [{"site": "shop", "path": "basket", "value": {}}],
    }
    async with Session(spec(), Task(id="dies", data=data)) as session:
        sandbox = session._instance.env.sandbox  # type: ignore[union-attr]
        await kill(sandbox, "^/usr/lib/chromium/chromium")
        await session.step(does("goto", url="http://shop.test/"))
    assert str(session.status) == "truncated:screen", session.attempt.cause
    assert session.outcome is not None
    assert session.outcome.passed


@pytest.mark.docker
@loop
async def test_the_end_of_the_sandbox_is_a_failure(engine: None) -> None:
    """If the sandbox is removed from outside, there is no score."""
    async with Session(spec(), TASKS["shop-basket"]) as session:
        name = session._instance.env.sandbox.container  # type: ignore[union-attr]
        subprocess.run(["docker", "kill", name], check=True, capture_output=True)
        await session.step(does("goto", url="http://shop.test/"))
    assert (str(session.status), session.outcome) == ("failed:sandbox", None)


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
        ("no.such.path", "contains", "x", False),
    ],
)
def test_conditions(path: str, how: Any, value: Any, holds: bool) -> None:
    """A condition reads one path of a site's state; a missing path satisfies no condition."""
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


@pytest.mark.parametrize(
    "checks",
    [
        {"eval_types": []},
        {"eval_types": ["string_match"], "reference_answers": {}},
        {"eval_types": ["url_match"], "reference_url": ""},
        {"eval_types": ["program_html"], "program_html": []},
        {"eval_types": ["program_html"], "program_html": [{"url": "last"}]},
    ],
)
def test_webarena_records_that_check_nothing_are_refused(
    checks: dict[str, Any], tmp_path: Path
) -> None:
    """A comparison with nothing would hold for every attempt; task files are checked as well."""
    found = loaded(tmp_path, record(0, eval=checks))
    assert found.tasks == []
    data = {"record": record(0, eval=checks), "places": {"__SHOPPING__": "http://shop.test"}}
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"id": "x", "data": data}))
    with pytest.raises(InvalidInput, match=r"checks nothing|to compare with"):
        WebArenaEnv.load_tasks(str(file))


@pytest.mark.docker
@loop
async def test_a_webarena_record_end_to_end(tmp_path: Path, engine: None) -> None:
    """A record runs on another site: answer, address and page are compared."""
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
    """The example solves its task and saves a picture of every turn."""
    script = Path(__file__).parents[3] / "examples" / "browser.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "pictures")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("score 1.0\n")
    assert len(list((tmp_path / "pictures").iterdir())) == 4

"""BrowserGym's own task classes in BrowserGym's own environment, in a container."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.images_needed import need_image
from trajgym.envs import EnvSpec, Session
from trajgym.envs.gui.browsergym import BROWSERGYM_IMAGE, BrowserGymEnv, load_browsergym_tasks
from trajgym.envs.sandbox import close_shared_providers
from trajgym.trajectory import InvalidInput, Task, text_of

loop = pytest.mark.asyncio(loop_scope="module")

TASKS = '''
from browsergym.core.task import AbstractBrowserTask


class CountTask(AbstractBrowserTask):
    """Press the button a number of times, then tell the number."""

    def __init__(self, seed, times=2):
        super().__init__(seed)
        self.times = times

    def setup(self, page):
        page.set_content("<button onclick='this.textContent = 1 + +this.textContent'>0</button>")
        return f"Press {self.times} times and tell the number.", {"times": self.times}

    def validate(self, page, chat_messages):
        pressed = page.locator("button").text_content()
        told = [m["message"] for m in chat_messages[2:] if m["role"] == "assistant"]
        done = bool(told)
        right = done and told[-1] == pressed == str(self.times)
        return (1.0 if right else 0.0), done, "", {"pressed": pressed}
'''


@pytest_asyncio.fixture(loop_scope="module")
async def engine() -> AsyncIterator[None]:
    need_image(BROWSERGYM_IMAGE, "scripts/browsergym-image.sh")
    yield
    await close_shared_providers()


def spec(**config: Any) -> EnvSpec:
    return EnvSpec(id="trajgym.envs.gui.browsergym:BrowserGymEnv", config={"delay": 0, **config})


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def bid(text: str, role: str, name: str = "") -> str:
    found = re.search(rf"\[(\w+)\] {role} '{name}", text)
    assert found, text
    return found[1]


@pytest.mark.docker
@loop
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_miniwob_task_of_browsergym(engine: None, seed: int) -> None:
    """Its goal, its elements, its actions and its reward; a wrong click ends it without one."""
    (task,) = BrowserGymEnv.load_tasks("miniwob.click-test-2")
    async with Session(spec(), task, seed=seed) as session:
        shown = session.messages[0]["content"]
        assert "Click button ONE" in shown[0]["text"]
        assert shown[1]["type"] == "image_url"
        right, wrong = (bid(shown[0]["text"], "button", name) for name in ("ONE", "TWO"))
        await session.step(says(f"click('{right if seed == 1 else wrong}')"))
        assert session.done
    assert session.outcome is not None
    assert session.outcome.passed == (seed == 1)
    assert session.outcome.score == float(seed == 1)
    assert session.outcome.details["info"]["DONE_GLOBAL"] is True
    assert session.turns[0].signals["reward"] == float(seed == 1)


@pytest.mark.docker
@loop
async def test_a_task_class_of_one_s_own(engine: None, tmp_path: Path) -> None:
    """A class of a folder: arguments, several actions, errors, the chat as the answer."""
    (tmp_path / "counting.py").write_text(TASKS)
    tmp_path.chmod(0o755)  # noqa: ASYNC240
    task = Task(id="count", data={"task": "counting:CountTask", "arguments": {"times": 3}})
    env = spec(packages=[str(tmp_path)], picture="none", html_chars=1000)
    async with Session(env, task) as session:
        text = text_of(session.messages[0])
        assert "Press 3 times" in text
        assert "<button" in text
        button = bid(text, "button")
        for action in (f"click('{button}')\nclick('{button}')", "click('no-such')", "import os"):
            await session.step(says(action))
        signals = [turn.signals for turn in session.turns]
        assert [one["action_ok"] for one in signals] == [True, False, False]
        assert [one["screen_changed"] for one in signals] == [True, False, False]
        assert "Error: " in text_of(session.turns[1].observation[0])
        await session.step(says(f"click('{button}')"))
        assert not session.done
        await session.step(says("send_msg_to_user('3')"))
        assert session.done
    assert session.outcome is not None
    assert session.outcome.passed
    assert session.outcome.details["info"] == {"pressed": "3"}


@pytest.mark.docker
@loop
async def test_what_can_t_be_opened_is_no_score(engine: None) -> None:
    """A task that BrowserGym does not have, or that can't be set up, is a failure."""
    for name, arguments, status, said in (
        ("miniwob.no-such-task", {}, "failed:env", "no task"),
        ("no_module:Task", {}, "failed:env", "No module"),
        ("openended", {"start_url": "http://192.0.2.1/"}, "failed:gui", "net::ERR"),
    ):
        task = Task(id="x", data={"task": name, "arguments": arguments})
        async with Session(spec(), task) as session:
            assert session.done
        assert (str(session.status), said in str(session.attempt.cause)) == (status, True)
        assert session.outcome is None


def test_tasks_are_checked_when_they_are_loaded(tmp_path: Path) -> None:
    """All MiniWoB++ tasks have names; a name that is neither an id nor a class is refused."""
    assert len(load_browsergym_tasks("miniwob")) > 100
    with pytest.raises(InvalidInput, match="neither a file"):
        load_browsergym_tasks("miniwob/click test")
    file = tmp_path / "tasks.json"
    file.write_text('{"id": "x", "data": {"task": "a b"}}')
    with pytest.raises(InvalidInput, match=r"neither a task.s id"):
        load_browsergym_tasks(str(file))
    with pytest.raises(InvalidInput, match="there is no folder"):
        BrowserGymEnv(packages=["/no/such/folder"])

"""`trajgym watch`: the page in a real Chromium, while a session is recorded."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image as Picture

from tests.pictures import click
from trajgym.cli.watch import WatchApp
from trajgym.envs import Budgets, EnvSpec, Session
from trajgym.envs.gui import Browser, PictureForm, browser_spec
from trajgym.envs.gui.actions import Click, GoTo, Point, Size
from trajgym.envs.sandbox import DockerProvider
from trajgym.server import running
from trajgym.trajectory import InvalidInput, Store, Task

SCREEN = EnvSpec(id="test/screen")
TOKEN = {"Authorization": "Bearer secret"}
SHOWN = """() => [document.querySelector('img').naturalWidth,
    document.getElementById('message').textContent,
    document.getElementById('status').textContent,
    document.getElementById('turns').childElementCount]"""


async def eventually(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Wait until this is found, two minutes at most."""
    end = time.monotonic() + 120
    while (found := await look()) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.1)  # the page asks about once a second
    assert found == wanted


async def test_only_the_token_opens_a_run(tmp_path: Path) -> None:
    """The page has no data and no foreign part; sessions and pictures need the token."""
    app = WatchApp(tmp_path / "run", "secret")
    async with running(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        page = await client.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text
        assert "https://" not in page.text
        for path in ("/api/sessions", "/api/sessions/a", "/api/sessions/a/frames/0"):
            assert (await client.get(path)).status_code == 401
        found = (await client.get("/api/sessions", headers=TOKEN)).json()
        assert found["sessions"] == []  # nothing was recorded yet
        async with (
            Store(tmp_path / "run") as store,
            Session(SCREEN, Task(id="a"), store=store) as session,
        ):
            await session.step(click(30, 40))
            await session.step(click(50, 20))
            (one,) = (await client.get("/api/sessions", headers=TOKEN)).json()["sessions"]
            assert (one["task"], one["turns"], one["status"]) == ("a", 2, "running")
            path = f"/api/sessions/{one['id']}"
            seen = (await client.get(path, headers=TOKEN)).json()
            assert [frame["actions"] for frame in seen["frames"]] == [["click 50,20"], []]
            drawn = await client.get(f"{path}/frames/0", headers=TOKEN)
            image: Any = Picture.open(io.BytesIO(drawn.content)).convert("RGB")
            assert image.getpixel((50, 20)) == (230, 30, 30)
            for wrong in (f"{path}/frames/9", "/api/sessions/none"):
                assert (await client.get(wrong, headers=TOKEN)).status_code == 404


async def test_other_machines_need_a_token_of_the_user_s(tmp_path: Path) -> None:
    """A token that only the terminal shows is good for this machine only."""
    with pytest.raises(InvalidInput, match=r"0\.0\.0\.0 is reachable"):
        async with running(WatchApp(tmp_path, "secret"), host="0.0.0.0"):
            pass


async def test_the_command_prints_an_address_that_works(tmp_path: Path) -> None:
    """The token is in the fragment of the address; Ctrl-C ends the command."""
    command = [sys.executable, "-m", "trajgym", "watch", str(tmp_path / "run"), "--port", "0"]
    watching = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert watching.stderr is not None
        async with asyncio.timeout(120):
            said = (await watching.stderr.readline()).decode()
        found = re.search(r"(http://127\.0\.0\.1:\d+/)#([\w-]{16,})\.", said)
        assert found, said
        headers = {"Authorization": f"Bearer {found[2]}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            assert (await client.get(f"{found[1]}api/sessions")).json()["sessions"] == []
        watching.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            await watching.wait()
    finally:
        if watching.returncode is None:
            watching.kill()


@pytest.mark.docker
async def test_the_page_follows_a_session(tmp_path: Path, browser_image: None) -> None:
    """Pictures, actions and the status appear in the open page as the session goes on."""
    app = WatchApp(tmp_path / "run", "secret")
    async with running(app) as url, DockerProvider() as provider:
        port = url.rpartition(":")[2]
        spec = browser_spec(allow=[f"watch.example:80=127.0.0.1:{port}"])
        async with (
            await provider.start(spec) as sandbox,
            Browser(sandbox, size=Size(1000, 600)) as browser,
            Store(tmp_path / "run") as store,
        ):
            await browser.act([GoTo("http://watch.example/#secret")])
            patient = Budgets(seconds=600)
            async with Session(SCREEN, Task(id="a"), store=store, budgets=patient) as session:

                async def shown() -> Any:
                    return await browser.evaluate(SHOWN)

                await session.step(click(30, 40))
                await eventually(shown, [96, "turn-000", "running", 1])
                await session.step(click(50, 20))
                await eventually(shown, [96, "turn-001", "running", 2])
                look = await browser.act([Click(Point(90, 80))], PictureForm(), boxes=True)
                back = next(one for one in look.elements if one.name == "Back")
                x, y, width, height = back.box
                await browser.act([Click(Point(round(x + width / 2), round(y + height / 2)))])
                await eventually(shown, [96, "click 50,20", "running", 2])
                await session.step(click(5, 5))
            await eventually(shown, [96, "click 50,20", "completed (score 1)", 3])
            # A wrong token is reported, not retried silently.
            await browser.act([GoTo("about:blank")])
            await browser.act([GoTo("http://watch.example/#wrong")])
            said = lambda: browser.evaluate(  # noqa: E731
                "() => document.getElementById('message').textContent"
            )
            await eventually(said, "401: missing or wrong token")

"""A browser in a container: observations, actions and failures."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from tests.gui.killing import kill
from tests.gui.solver import Item, read_tree
from tests.sandbox.outside import end_from_outside
from trajgym.envs.gui import BadAction, Browser, GuiDied, PictureForm, browser_spec
from trajgym.envs.gui.actions import (
    Click,
    CloseTab,
    Drag,
    Element,
    Fill,
    FocusTab,
    GoBack,
    GoTo,
    Move,
    NewTab,
    Point,
    PressKeys,
    Scroll,
    SelectOption,
    SetChecked,
    Size,
    TypeText,
    UploadFile,
    Wait,
)
from trajgym.envs.gui.browser import BrowserLook, draw_marks, launch_browser
from trajgym.envs.sandbox import DockerProvider, Sandbox, SandboxDied, WarmPool

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

PAGES = {
    "index.html": """<title>Start</title><h1>Start</h1>
        <input aria-label="Name"><select aria-label="Colour"><option>red<option>blue</select>
        <label><input type="checkbox"> Agreed</label>
        <button onclick="document.title = 'clicked'">Press</button>
        <p id="later"></p>
        <button onclick="later.innerHTML = '<button>New</button>'">More</button>""",
    "events": """<button onclick="alert('Hello'); document.title = 'after'">Alert</button>
        <button onclick="document.title = prompt('Who?', 'nobody')">Prompt</button>
        <button onclick="while (true) {}">Hang</button>
        <button onclick="console.log('said'); throw new Error('thrown')">Log</button>
        <a href="/index.html" target="_blank">Other tab</a>
        <a href="/self-closing" target="_blank">Short tab</a>
        <a download="../../report 1.csv" href="data:text/csv,a%2Cb">Download</a>
        <button onclick="picker.click()">Choose</button><input type="file" id="picker"
        style="display:none" onchange="document.title = picker.files[0].size">
        <input type="file" aria-label="Field" onchange="document.title = this.files[0].name">""",
    "self-closing": "<script>setTimeout(() => window.close(), 50)</script>",
    "covered": """<button style="position:absolute;top:50px">Below</button>
        <div id="over" style="position:absolute;top:0;width:300px;height:300px"></div>""",
    "long": """<div style="height:3000px">top</div><button onclick="document.title = 'end'">End
        </button>""",
    "frame": "<h1>Outer</h1><iframe src='/inner' title='In' width=300 height=200></iframe>",
    "inner": "<button onclick=\"top.document.title = 'inner'\">Inside</button>",
    "mouse": """<div id="pad" style="width:400px;height:300px;background:#ddd"></div><script>
        const seen = [];
        for (const kind of ['mousedown', 'mouseup', 'dblclick', 'contextmenu', 'mousemove'])
          pad.addEventListener(kind, e => {
            if (kind != 'mousemove' || e.buttons) seen.push(kind + ':' + e.button);
            document.title = seen.join(' ') + (e.shiftKey ? ' shift' : '');
          });</script>""",
    "unread": "<script>fetch('/big')</script><button onclick='fetch(\"/big?\" + Math.random())'>Go"
    "</button>",
    "big": "x" * (4 << 20),
    "links": "<a href='#x'>Go</a>",
    "scripts": "<a href='javascript:void(document.title = 1)'>Go</a>",
    "hashes": "<button onclick='location.hash = Math.random()'>Go</button>",
    "frames": "<iframe></iframe><iframe src='about:blank'></iframe><iframe srcdoc='<p>hi'></iframe>"
    "<button>Go</button>",
    "redirects": "<script>location = '/redirects?' + Math.random()</script>",
    "refresh": "<meta http-equiv='refresh' content='0'>again",
    "reload": "<script>location.reload()</script>",
    "reload-often": "<button>b</button><script>setInterval(() => location.reload(), 20)</script>",
    **{
        # Each frame takes longer than a second, and so does the time between two documents.
        f"slow-reload-{frames}": f"""<h1>Again</h1><script>let n = 0;
        function draw() {{
          if (++n == {frames}) location.reload();
          const end = performance.now() + 1200;
          while (performance.now() < end);
          requestAnimationFrame(draw);
        }}
        onload = () => requestAnimationFrame(draw);</script>"""
        for frames in (1, 2)
    },
    "ping": "<script>location = '/pong'</script>",
    "pong": "<script>location.replace('/ping')</script>",
    "map": """<div style="height:900px">far</div><canvas id=c width=100 height=100></canvas>
        <map name=m><area shape=rect coords='0,0,50,50' href='#area' alt='Corner'>
        <area shape=circle coords='75,75,20' href='#round' alt='Round'></map>
        <img id=i usemap=#m width=100 height=100><script>i.src = c.toDataURL()</script>""",
    "framed-map": """<p>above<iframe src=/map onload="this.contentWindow.onhashchange = e =>
        document.title = e.newURL.slice(e.newURL.indexOf('#'))"></iframe>""",
    "popups": """<button onclick="for (let i = 0; i < 14; i++) window.open('/other?' + i)">Open
        </button>""",
    "pushes": "<p>p<script>setInterval(() => history.pushState({}, '', '?' + Math.random()), 1)"
    "</script>",
    "mirror": """<input aria-label="Search"><button onclick="document.title = 'pressed'">Go</button>
        <script>document.querySelector('input').oninput = event => {
          for (const part of 'abcde')
            history.replaceState({}, '', `?${part}=${encodeURIComponent(event.target.value)}`);
        };</script>""",
    "hash-often": "<p>h<script>setInterval(() => location.hash = Math.random(), 1)</script>",
    "posts": "<form action='/posts'></form><script>document.forms[0].submit()</script>",
    "touch": """<meta name="viewport" content="width=device-width"><button>Tap</button><script>
        const seen = [];
        for (const kind of ['touchstart', 'click'])
          document.addEventListener(kind, () => {
            seen.push(kind);
            document.title = seen.join(' ');
          });</script>""",
    "frame-reload": "<iframe src='/reload'></iframe><button onclick='document.title = 1'>Go",
    "shadow": """<x-closed></x-closed><input type="date" aria-label="Day"><details>
        <summary onclick="document.title = 'opened'">More</summary>text</details><script>
        customElements.define('x-closed', class extends HTMLElement {
          constructor() {
            super();
            const root = this.attachShadow({mode: 'closed'});
            root.innerHTML = '<button>Inner</button>';
            root.querySelector('button').onclick = () => document.title = 'inner';
          }
        });</script>""",
    "icons": """<style>td, i, div {width: 40px; height: 30px; display: inline-block}</style>
        <table><tr><td><td></table>
        <div id="box"></div><i class="icon-trash"></i><svg width="200" height="60">
        <circle cx="30" cy="30" r="20" fill="red"/>
        <circle cx="90" cy="30" r="20" fill="blue"/></svg>
        <label><input type="checkbox" style="display:none">Hidden box</label><script>
        for (const one of document.querySelectorAll('td, i, #box, circle, label'))
          one.addEventListener('click', event => document.title += one.tagName + ',');
        </script>""",
    "modal": """<button>Behind</button><iframe src="/inner" width="300" height="100"></iframe>
        <div style="position:fixed;inset:0;background:#0008"><button>Confirm</button></div>""",
    "huge": "<button onclick='document.title = 1'>Top</button>"
    + "".join(f"<p><a href='#{n}'>Item {n}</a> <b>text {n}</b>" for n in range(5000)),
    "many": "<script>for (let i = 0; i < 500; i++) console.log('x'.repeat(2000))</script>"
    + "<button>b</button>" * 2000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(box: Sandbox) -> AsyncIterator[Browser]:
    async with Browser(box, pages=PAGES) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def browser(shared: Browser) -> Browser:
    await shared.act([GoTo("http://pages.test/")])
    return shared


async def at(browser: Browser, page: str) -> BrowserLook:
    return await browser.act([GoTo(f"http://pages.test/{page}")])


def item(look: BrowserLook, role: str, name: str) -> Element:
    return read_tree("", look.tree).one(role, name).at


async def event(browser: Browser, look: BrowserLook, kind: str) -> str:
    """Return the text of an event of this kind, in this look or a later one."""
    async with asyncio.timeout(60):
        while True:
            for one in look.events:
                if one.kind == kind:
                    return one.text
            look = await browser.act([Wait(0.1)])


def kinds(look: BrowserLook) -> list[str]:
    return [event.kind for event in look.events]


async def test_elements_are_used_by_their_ids(browser: Browser) -> None:
    """Actions on fields, lists, boxes and buttons have their effects, and the tree shows them."""
    look = await browser.look()
    look = await browser.act(
        [
            Fill(item(look, "textbox", "Name"), "Ann"),
            SelectOption(item(look, "combobox", "Colour"), ("blue",)),
            SetChecked(item(look, "checkbox", "Agreed"), checked=True),
            Click(item(look, "button", "Press")),
        ]
    )
    assert look.errors == ("", "", "", "")
    assert look.found == (True, True, True, True)
    assert look.title == "clicked"
    for line in ('textbox "Name" value="Ann"', 'combobox "Colour" value="blue"', "checked=true"):
        assert line in look.tree
    assert look.focused == item(look, "button", "Press").id


async def test_ids_stay_with_their_elements(browser: Browser) -> None:
    """Elements that the page adds get new ids; ids of a page end with it."""
    before = await browser.look()
    after = await browser.act([Click(item(before, "button", "More"))])
    old, new = read_tree("", before.tree).items, read_tree("", after.tree).items

    def plain(items: list[Item]) -> set[tuple[str, str, str]]:
        return {(one.id, one.role, one.name) for one in items}

    assert plain(old) < plain(new)
    gone = item(after, "button", "New")
    again = await browser.act([GoTo("http://pages.test/"), Click(gone)])
    assert again.found == (False,)
    assert "no element" in again.errors[1]
    assert not {one.id for one in read_tree("", again.tree).items} & {one.id for one in new}


async def test_equal_pages_have_equal_digests(browser: Browser) -> None:
    """The digest differs between pages, not between visits, whose pictures are equal."""
    form = PictureForm(form="png")
    one = await browser.look(form)
    two = await browser.act([GoTo("http://pages.test/")], form)
    assert (one.digest, one.picture) == (two.digest, two.picture)
    three = await browser.act([Fill(item(two, "textbox", "Name"), "x")], form)
    assert three.digest != two.digest
    assert three.mark != two.mark


async def test_pictures(browser: Browser) -> None:
    """A picture has the requested format and size; marks are drawn on the elements."""
    for form, size in (("png", None), ("jpeg", Size(640, 360))):
        wanted = PictureForm(form=form, size=size)  # type: ignore[arg-type]
        look = await browser.look(wanted, boxes=True)
        assert look.picture is not None
        with Image.open(io.BytesIO(look.picture.data)) as picture:
            assert picture.format == form.upper()
            assert picture.size == (size or Size(1280, 720))
        marked = draw_marks(look.picture, look.boxes, browser.size)
        assert marked.data != look.picture.data
    assert item(look, "button", "Press").id in look.boxes
    assert len(look.boxes) == 5


async def test_dialogs_are_answered_and_told(browser: Browser) -> None:
    """An alert does not block the page, and the agent reads its text."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"
    assert [event.text for event in look.events] == ["alert: Hello (accepted)"]


async def test_a_dialog_can_wait_for_the_agent(box: Sandbox) -> None:
    """With `ask` a dialog stays open over the page until keys answer it."""
    async with Browser(box, pages=PAGES, dialogs="ask") as browser:
        look = await at(browser, "events")
        prompt = item(look, "button", "Prompt")
        look = await browser.act([Click(prompt)], PictureForm())
        assert look.dialog == ("prompt", "Who?")
        assert look.picture is None
        look = await browser.act([Click(prompt)])
        assert "a dialog is open" in look.errors[0]
        look = await browser.act([TypeText("Ann")])
        assert (look.dialog, look.title) == (None, "Ann")
        look = await browser.act([Click(item(look, "button", "Alert"))])
        look = await browser.act([PressKeys(("Enter",))])
        assert look.title == "after"


async def test_tabs(browser: Browser) -> None:
    """A tab that a page opens becomes the current one; the last one is replaced when it closes."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Other tab"))])
    assert (look.active, len(look.tabs), look.title) == (1, 2, "Start")
    look = await browser.act([FocusTab(0)])
    assert look.url.endswith("/events")
    look = await browser.act([FocusTab(1), CloseTab(), CloseTab()])
    assert look.tabs == ("about:blank",)
    assert "tab" in kinds(look)
    look = await browser.act([FocusTab(7)])
    assert "no tab 7" in look.errors[0]


async def test_a_tab_that_closes_itself(browser: Browser) -> None:
    """When a tab closes itself, the previous one becomes the current one."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Short tab"))])
    while len(look.tabs) > 1:
        look = await browser.act([Wait(0.1)])
    assert look.url.endswith("/events")


async def test_downloads_stay_in_the_sandbox(browser: Browser, box: Sandbox) -> None:
    """A download is saved in the sandbox under a plain name, and can be uploaded again."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Download"))])
    told = await event(browser, look, "download")
    found = re.match(r"/work/(downloads/[\w .-]+) \(3 bytes\)", told)
    assert found
    assert await box.read_file(found[1]) == b"a,b"

    field = item(look, "button", "Field")
    look = await browser.act([UploadFile(field, (found[1],))])
    assert look.title == found[1].removeprefix("downloads/")
    look = await browser.act([Click(item(look, "button", "Choose"))])
    assert "asks for a file" in await event(browser, look, "chooser")
    look = await browser.act([UploadFile(None, (found[1],))])
    assert look.title == "3"
    look = await browser.act([UploadFile(field, ("../etc/passwd",))])
    assert "no file" in look.errors[0]


async def test_pages_that_can_not_be_reached(browser: Browser) -> None:
    """A failed navigation is an error that the agent reads; the browser can be used afterwards."""
    for url in ("http://192.0.2.1/", "http://no-such-host.example/", "http://127.0.0.1:4/"):
        look = await browser.act([GoTo(url)], PictureForm())
        assert "net::ERR" in look.errors[0]
        assert "navigation" in kinds(look)
    look = await at(browser, "index.html")
    assert look.errors == ("",)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "chrome://version", "data:text/html,x"]
)
async def test_only_the_web_can_be_opened(browser: Browser, url: str) -> None:
    """No address runs a script or reads a file."""
    look = await browser.act([GoTo(url)])
    assert look.errors != ("",)
    assert look.url == "http://pages.test/"


async def test_a_page_that_hangs_is_interrupted(browser: Browser) -> None:
    """An endless script is stopped at the deadline, and the page can be used again."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Hang"))], PictureForm())
    assert kinds(look) == ["hang"]
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


async def test_a_page_that_crashes_is_loaded_anew(browser: Browser, box: Sandbox) -> None:
    """When a renderer crashes, the agent is informed, the page is lost, the session continues."""
    await at(browser, "events")
    await kill(box, "--type=renderer")
    look = await browser.act([Wait(0.1)], PictureForm())
    assert "reloaded" in await event(browser, look, "crash")
    look = await browser.look()
    assert look.url.endswith("/events")
    assert "Alert" in look.tree
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


async def test_a_browser_that_dies_is_a_failure(browser_image: None) -> None:
    """If Chromium exits, pending calls raise an error with the cause; if the sandbox is gone, that.

    The first is brought about by a page, and its attempt is scored; the second is not.
    """
    async with DockerProvider() as provider, asyncio.timeout(200):
        sandbox = await provider.start(browser_spec())
        async with Browser(sandbox, pages=PAGES) as browser:
            await kill(sandbox, "^/usr/lib/chromium/chromium")
            with pytest.raises(GuiDied, match=r"Chromium|closed"):
                await browser.act([Wait(60)])
        async with Browser(sandbox, pages=PAGES) as browser:
            waiting = asyncio.ensure_future(browser.act([Wait(60)]))
            await sandbox.close()
            with pytest.raises(SandboxDied, match="closed"):
                await waiting
        sandbox = await provider.start(browser_spec())
        async with Browser(sandbox, pages=PAGES) as browser:
            waiting = asyncio.ensure_future(browser.act([Wait(60)]))
            end_from_outside(sandbox)
            with pytest.raises(SandboxDied):
                await waiting
        await sandbox.close()


async def test_console_and_errors_are_told_and_bounded(browser: Browser) -> None:
    """Console messages of pages are reported, and too many are truncated and counted."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Log"))])
    assert ("console", "log: said") in look.events
    assert any(event.kind == "error" and "thrown" in event.text for event in look.events)
    look = await at(browser, "many")
    assert len(look.events) <= 50
    assert look.dropped >= 400
    assert max(len(event.text) for event in look.events) <= 500
    assert len(look.tree) < 13_000
    assert "more elements left out" in look.tree


async def test_what_lies_under_something_is_not_clicked(browser: Browser) -> None:
    """The error of a click on a covered element names the element that covers it."""
    look = await at(browser, "covered")
    look = await browser.act([Click(item(look, "button", "Below"))])
    assert look.errors[0].endswith("is covered by div #over")


async def test_elements_are_scrolled_into_view(browser: Browser) -> None:
    """An element outside of the view can be used by its id, and the wheel scrolls the page."""
    look = await at(browser, "long")
    look = await browser.act([Click(item(look, "button", "End"))])
    assert look.title == "end"
    await browser.act([Scroll(Point(100, 100), 0, -5000), Scroll(None, 0, 700)])
    assert await browser.evaluate("() => scrollY") == 700


async def test_frames_are_part_of_the_tree(browser: Browser) -> None:
    """Elements of a frame have ids, too, and can be clicked."""
    look = await at(browser, "frame")
    look = await browser.act([Click(item(look, "button", "Inside"))])
    assert look.title == "inner"


async def test_mouse(browser: Browser) -> None:
    """The page receives buttons, double clicks, drags and modifiers."""
    await at(browser, "mouse")
    look = await browser.act([Click(Point(50, 50), "right", keys=("Shift",))])
    assert look.title == "mousedown:2 contextmenu:2 mouseup:2 shift"
    await at(browser, "mouse")
    look = await browser.act([Click(Point(50, 50), count=2)])
    assert look.title.endswith("dblclick:0")
    await at(browser, "mouse")
    look = await browser.act([Drag((Point(50, 50), Point(200, 100))), Move(Point(300, 200))])
    steps = look.title.split()
    assert (steps[0], steps[-1], set(steps[1:-1])) == ("mousedown:0", "mouseup:0", {"mousemove:0"})
    assert look.pointer == (300, 200)


async def test_history(browser: Browser) -> None:
    """Going back returns to the previous page; without one, the agent reads an error."""
    await at(browser, "long")
    look = await browser.act([GoBack()])
    assert look.url == "http://pages.test/"


async def test_nothing_outside_can_be_reached(browser: Browser) -> None:
    """A page can't reach the host, its gateway, the internet or a name."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        hosts = ["172.17.0.1", "10.0.2.2", "host.docker.internal", "192.168.0.1", "1.1.1.1"]
        urls = [f"http://{host}:{port}/" for host in hosts] + ["https://example.com/"]
        tries = f"""() => Promise.all({json.dumps(urls)}.map(url =>
            Promise.race([fetch(url, {{mode: 'no-cors'}}).then(() => 'reached', e => 'failed'),
                          new Promise(done => setTimeout(() => done('waited'), 20000))])))"""
        assert set(await browser.evaluate(tries)) == {"failed"}
        socket = f"""() => new Promise(done => {{ const s = new WebSocket('ws://172.17.0.1:{port}');
            s.onopen = () => done('reached'); s.onerror = () => done('failed'); }})"""
        assert await browser.evaluate(socket) == "failed"
        assert not seen


@pytest.mark.parametrize("page", ["unread", "links", "scripts", "hashes", "frames"])
async def test_a_quiet_page_is_not_waited_for(box: Sandbox, page: str) -> None:
    """Unread bodies, fragment addresses and empty frames are not waited for."""
    made = Browser(box, pages=PAGES, load_seconds=600)
    made._settings["settle_seconds"] = 600  # waiting for something that never comes would fail
    async with made as browser, asyncio.timeout(120):
        look = await at(browser, page)
        found = [one for one in read_tree("", look.tree).items if one.name in {"Go", "Press"}]
        assert found, (page, look)
        for _ in range(3):  # Chromium has six connections to a host: unread bodies keep theirs
            await browser.act([Click(found[0].at)], PictureForm(form="jpeg"))


@pytest.mark.parametrize(
    "page",
    ["redirects", "refresh", "reload", "reload-often", "ping", "posts", "pushes", "hash-often"],
)
@pytest.mark.parametrize("form", [None, PictureForm(form="jpeg")])
async def test_redirects_without_end_are_bounded(
    browser: Browser, page: str, form: PictureForm | None
) -> None:
    """A page that navigates endlessly is stopped, and the browser can be used afterwards."""
    async with asyncio.timeout(180):
        look = await browser.act([GoTo(f"http://pages.test/{page}")], form)
        assert look.errors == ("",)
        assert "stopped" in await event(browser, look, "navigation")
        look = await browser.act([GoTo("http://pages.test/events")], form)
        assert (look.url, look.errors, look.events) == ("http://pages.test/events", ("",), ())
        look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


@pytest.mark.parametrize("frames", [1, 2])
async def test_a_document_that_comes_during_every_look_is_shown(
    browser: Browser, frames: int
) -> None:
    """A page that moves on before it could be looked at is stopped: a look is never empty."""
    look = await browser.act([GoTo(f"http://pages.test/slow-reload-{frames}")], PictureForm())
    assert look.picture is not None
    assert look.tree
    assert look.digest
    await browser.act([CloseTab()])


async def test_a_page_may_keep_what_is_typed_in_its_address(box: Sandbox) -> None:
    """Addresses that follow the agent's keys, or the host's scripts, do not count as endless."""
    # A browser of its own: Chromium ignores further addresses after 200 in ten seconds.
    async with Browser(box, pages=PAGES) as browser:
        look = await at(browser, "mirror")
        words = "each key times five"
        look = await browser.act([Click(item(look, "textbox", "Search")), TypeText(words)])
        assert (look.errors, kinds(look)) == (("", ""), [])
        assert look.url.endswith("five")
        script = "() => { for (let n = 0; n < 60; n++) history.replaceState({}, '', `?n=${n}`); }"
        await browser.evaluate(script)
        look = await browser.act([Click(item(look, "button", "Go"))])
        assert (look.errors, look.title, kinds(look)) == (("",), "pressed", [])


async def test_a_frame_that_always_reloads_leaves_its_page_usable(browser: Browser) -> None:
    """Endless activity in a frame is not waited for, and does not stop the page."""
    async with asyncio.timeout(180):
        look = await at(browser, "frame-reload")
        assert kinds(look) == []
        look = await browser.act([Click(item(look, "button", "Go"))])
        assert (look.errors, look.title) == (("",), "1")
        look = await at(browser, "events")
    assert look.url == "http://pages.test/events"


async def test_a_crash_is_a_turn_when_no_more_tabs_may_be_opened(box: Sandbox) -> None:
    """With all tabs open, a crashed page is loaded again; another tab is refused with an error."""
    async with Browser(box, pages=PAGES) as browser:
        await browser.act([NewTab()] * 7)
        look = await browser.act([NewTab()])
        assert "8 tabs are open" in look.errors[0]
        look = await at(browser, "events")
        assert len(look.tabs) == 8
        await kill(box, "--type=renderer")
        look = await browser.act([Wait(0.1)], PictureForm())
        assert "reloaded" in await event(browser, look, "crash")
        look = await browser.look()
        assert (len(look.tabs), look.url) == (8, "http://pages.test/events")


async def test_areas_of_image_maps_are_clicked(browser: Browser) -> None:
    """Areas have places on their image, and are clicked at their middle."""
    look = await at(browser, "map")
    for name in ("Corner", "Round"):
        look = await browser.act([Click(item(look, "link", name))], boxes=True)
        assert look.errors == ("",)
        assert look.url.endswith(f"#{ {'Corner': 'area'}.get(name, 'round') }")
    framed = await at(browser, "framed-map")
    look = await browser.act([Click(item(framed, "link", "Round"))])
    assert (look.errors, look.title) == (("",), "#round")
    look = await at(browser, "map")
    look = await browser.act([Click(item(look, "link", "Round"))], boxes=True)
    left, _, width, height = next(one.box for one in look.elements if one.name == "Round")
    image = next(one.box for one in look.elements if one.role == "image")
    assert (left - image[0], width, height) == (55, 40, 40)
    assert {"Corner", "Round"} <= {one.name for one in look.elements if one.id in look.boxes}


async def test_many_tabs_at_once_are_bounded(box: Sandbox) -> None:
    """Tabs that a page opens at the same time count, too."""
    async with Browser(box, pages=PAGES) as browser:
        look = await at(browser, "popups")
        look = await browser.act([Click(item(look, "button", "Open"))])
        while not any("it was closed" in one.text for one in look.events):
            look = await browser.act([Wait(0.1)])
        assert len(look.tabs) <= 8


async def test_elements_in_shadow_trees_are_clicked(browser: Browser) -> None:
    """Listed elements of closed shadow trees and of the browser's own controls can be used."""
    look = await at(browser, "shadow")
    assert (await browser.act([Click(item(look, "button", "Inner"))])).title == "inner"
    parts = [i.at for i in read_tree("", look.tree).items if i.role in {"spinbutton", "button"}]
    look = await browser.act([Click(part) for part in parts])
    assert set(look.errors) == {""}
    look = await browser.act(
        [PressKeys(("Escape",)), Click(item(look, "DisclosureTriangle", "More"))]
    )
    assert (look.errors, look.title) == (("", ""), "opened")


async def test_whatever_can_be_clicked_has_an_id(browser: Browser) -> None:
    """Cells, boxes, icons and shapes without a text have ids, by which they can be used."""
    await at(browser, "icons")
    look = await browser.look(boxes=True, html_chars=5_000)
    able = [one for one in look.elements if one.clickable]
    unnamed = ["clickable"] * 4 + ["graphics-symbol"] * 2
    assert [one.role for one in able] == [*unnamed, "clickable"]
    for hint in ('id="box"', 'class="icon-trash"', 'fill="red"', 'fill="blue"', "Hidden box"):
        assert hint in look.tree
        assert hint in look.html
    look = await browser.act([Click(Element(one.id)) for one in able])
    assert look.title.startswith("TD,TD,DIV,I,circle,circle,LABEL,")


async def test_marks_cover_frames_and_stop_behind_a_modal(browser: Browser) -> None:
    """Positions are those on the screen, also in frames; elements behind a modal are covered."""
    await at(browser, "frame")
    look = await browser.look(boxes=True)
    (x, y, width, height) = look.boxes[item(look, "button", "Inside").id]
    look = await browser.act([Click(Point(round(x + width / 2), round(y + height / 2)))])
    assert look.title == "inner"
    await at(browser, "modal")
    look = await browser.look(boxes=True)
    assert list(look.boxes) == [item(look, "button", "Confirm").id]
    assert {one.name for one in look.elements if one.clickable and one.covered} == {
        "Behind",
        "Inside",
    }


async def test_a_large_page_is_listed_where_it_is_looked_at(browser: Browser) -> None:
    """Of 15,000 elements, those in view are listed, and scrolling lists the others."""
    look = await at(browser, "huge")
    assert "the page has 15004 elements" in look.tree
    assert (await browser.act([Click(item(look, "button", "Top"))])).title == "1"
    look = await browser.act([Scroll(None, 0, 3000)])
    names = [one.name for one in read_tree("", look.tree).items if one.role == "link"]
    assert 10 < len(names) < 100
    assert "Item 1" not in names
    assert (await browser.act([Click(item(look, "link", names[5]))])).errors == ("",)


WORLD = """() => [Math.random(), crypto.randomUUID(), new Date().toString(), navigator.language,
    devicePixelRatio, crypto.getRandomValues(new Uint8Array(4)).join()]"""


async def test_pages_see_the_world_that_was_chosen(box: Sandbox) -> None:
    """Clock, random numbers, language, time zone and device pixel ratio are as configured."""
    seen = []
    for seed in (7, 7, 8):
        async with Browser(
            box,
            pages=PAGES,
            locale="de-DE",
            timezone="Europe/Berlin",
            clock="2026-05-01T09:30:00Z",
            seed=seed,
            device_scale=2,
        ) as browser:
            look = await browser.act([GoTo("http://pages.test/")], PictureForm())
            assert look.picture is not None
            with Image.open(io.BytesIO(look.picture.data)) as picture:
                assert picture.size == (1280, 720)
            seen.append(await browser.evaluate(WORLD))
    assert seen[0] == seen[1]
    assert seen[0][:2] != seen[2][:2]
    assert seen[0][2].startswith("Fri May 01 2026 11:30:00 GMT+0200")
    assert seen[0][3:5] == ["de-DE", 2]


PHONE = """() => [innerWidth, navigator.maxTouchPoints > 0, /Android.*Mobile/.test(
    navigator.userAgent), matchMedia('(pointer: coarse)').matches]"""


async def test_pages_see_a_telephone(box: Sandbox) -> None:
    """With mobile, pages have the viewport, touch events and user agent of a telephone."""
    size = Size(390, 844)
    async with Browser(box, pages=PAGES, size=size, mobile=True, device_scale=2) as browser:
        look = await browser.act([GoTo("http://pages.test/touch")], PictureForm())
        assert look.picture is not None
        with Image.open(io.BytesIO(look.picture.data)) as picture:
            assert picture.size == size
        assert await browser.evaluate(PHONE) == [390, True, True, True]
        look = await browser.act([Click(item(look, "button", "Tap"))])
        assert look.title == "touchstart click"
    async with Browser(box, pages=PAGES, user_agent="Some Browser/1.0") as browser:
        assert await browser.evaluate("() => navigator.userAgent") == "Some Browser/1.0"


async def test_a_browser_launched_with_the_session_s_options_is_open(browser_image: None) -> None:
    """Its empty tab is the session's: options hold, nothing of the rehearsal is left."""
    spec = browser_spec()
    options: dict[str, Any] = {"size": Size(640, 480), "locale": "de-DE", "seed": 3}
    async with WarmPool(DockerProvider(), idle=1) as pool, asyncio.timeout(300):
        pool.prepare(spec, partial(launch_browser, **options))
        await pool.warm(spec)
        async with await pool.start(spec) as sandbox:
            async with Browser(sandbox, pages=PAGES, **options) as browser:
                look = await browser.look(PictureForm())
                assert (look.url, look.tabs, look.events) == ("about:blank", ("about:blank",), ())
                look = await browser.act([GoTo("http://pages.test/")], PictureForm())
                assert look.errors == ("",)
                assert look.picture is not None
                assert Image.open(io.BytesIO(look.picture.data)).size == (640, 480)
                assert await browser.evaluate(STORED) == [0, "", 2]
                assert await browser.evaluate("() => navigator.language") == "de-DE"
                look = await browser.act([GoTo("http://rehearsal.test/")])
                assert "no such site" in look.tree


STORE = "() => { localStorage.kept = '1'; document.cookie = 'kept=1'; }"
STORED = "() => [localStorage.length, document.cookie, history.length]"


async def test_a_browser_that_was_launched_ahead_serves_one_session(browser_image: None) -> None:
    """A browser launched in advance has the session's settings, and no earlier session's state."""
    spec = browser_spec()
    async with WarmPool(DockerProvider(), idle=1) as pool, asyncio.timeout(300):
        pool.prepare(spec, launch_browser)
        seen = []
        for language in ("de-DE", "fr-FR"):
            await pool.warm(spec)
            assert pool.ready(spec) == 1
            async with await pool.start(spec) as sandbox:
                running = await sandbox.run("ls /proc/*/exe -l 2>/dev/null | grep -c chromium")
                assert int(running.stdout) > 0  # before a browser is opened
                async with Browser(sandbox, pages=PAGES, locale=language) as browser:
                    await browser.act([GoTo("http://pages.test/")])
                    seen.append(await browser.evaluate(STORED))
                    assert await browser.evaluate("() => navigator.language") == language
                    await browser.evaluate(STORE)
                # The driver was used up: another browser in this sandbox starts its own.
                async with Browser(sandbox, hosts={"else.example": "127.0.0.1:9"}) as other:
                    assert await other.evaluate("() => 1") == 1
        assert seen == [[0, "", 2], [0, "", 2]]


async def test_what_is_no_request_is_refused(browser: Browser) -> None:
    """An unknown operation or a page that can't be opened is refused with an error."""
    with pytest.raises(BadAction, match="unknown operation"):
        await browser.ask("fly")
    with pytest.raises(BadAction, match="can't be opened"):
        await browser.goto("http://192.0.2.1/")


async def test_many_steps_leave_nothing_behind(browser: Browser, box: Sandbox) -> None:
    """Closed pages, tabs and dialogs leave no process and no element."""

    async def processes() -> int:
        done = await box.run("ls -d /proc/[0-9]* | wc -l")
        return int(done.stdout)

    async def once() -> None:
        look = await at(browser, "events")
        look = await browser.act([Click(item(look, "button", "Alert"))])
        look = await browser.act([Click(item(look, "link", "Other tab"))], PictureForm())
        assert len(look.tabs) == 2
        look = await browser.act([CloseTab()])
        assert len(look.tabs) == 1

    await once()
    before = await processes()
    for _ in range(15):
        await once()
    async with asyncio.timeout(60):
        while await processes() > before + 2:  # Chromium keeps a spare renderer now and then
            await browser.act([Wait(0.1)])

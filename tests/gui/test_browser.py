"""A browser in a container: what is seen, what is done, and what goes wrong."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gui.solver import Item, read_tree
from trajgym.envs.gui import (
    BadAction,
    Browser,
    BrowserLook,
    Click,
    CloseTab,
    Drag,
    Element,
    Fill,
    FocusTab,
    GoBack,
    GoTo,
    GuiDied,
    Move,
    PictureForm,
    Point,
    PressKeys,
    Scroll,
    SelectOption,
    SetChecked,
    Size,
    TypeText,
    UploadFile,
    Wait,
    browser_spec,
    draw_marks,
)
from trajgym.envs.sandbox import DockerProvider, Sandbox

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
    "many": "<script>for (let i = 0; i < 500; i++) console.log('x'.repeat(2000))</script>"
    + "<button>b</button>" * 2000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(box: Sandbox) -> AsyncIterator[Browser]:
    async with Browser(box, pages=PAGES, action_seconds=3) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def browser(shared: Browser) -> Browser:
    await shared.act([GoTo("http://pages.test/")])
    return shared


async def at(browser: Browser, page: str) -> BrowserLook:
    return await browser.act([GoTo(f"http://pages.test/{page}")])


def item(look: BrowserLook, role: str, name: str) -> Element:
    return read_tree("", look.tree).one(role, name).at


async def kill(sandbox: Sandbox, pattern: str) -> None:
    """Kill the processes inside whose command line matches."""
    line = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q -- \"$0\" && "
    line += 'kill -9 "${p#/proc/}"; done 2>/dev/null; true'
    await sandbox.run(["/bin/sh", "-c", line, pattern])


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
    """Fields, lists, boxes and buttons take what an agent does to them, and the tree shows it."""
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
    """What the page adds gets new ids; a page that was left takes its ids with it."""
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
    """The digest tells pages apart, not visits, and the picture is the same to the byte."""
    form = PictureForm(form="png")
    one = await browser.look(form)
    two = await browser.act([GoTo("http://pages.test/")], form)
    assert (one.digest, one.picture) == (two.digest, two.picture)
    three = await browser.act([Fill(item(two, "textbox", "Name"), "x")], form)
    assert three.digest != two.digest
    assert three.mark != two.mark


async def test_pictures(browser: Browser) -> None:
    """A picture has the kind and size that were asked for; marks are drawn on the elements."""
    from PIL import Image

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
    """An alert does not stop the page, and the agent reads what it said."""
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
    """A tab that a page opens is looked at; the last one that closes is replaced."""
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
    """A tab that goes away by itself leaves the one before it."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Short tab"))])
    while len(look.tabs) > 1:
        look = await browser.act([Wait(0.1)])
    assert look.url.endswith("/events")


async def test_downloads_stay_in_the_sandbox(browser: Browser, box: Sandbox) -> None:
    """A download lands in the sandbox under a plain name, and can be uploaded again."""
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
    """A failed navigation is an error that the agent reads, and the browser goes on."""
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
    """A renderer that dies costs its page, and the agent is told; the session goes on."""
    await at(browser, "events")
    await kill(box, "--type=renderer")
    look = await browser.act([Wait(0.1)], PictureForm())
    assert "loaded anew" in await event(browser, look, "crash")
    look = await browser.look()
    assert look.url.endswith("/events")
    assert "Alert" in look.tree
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


async def test_a_browser_that_dies_is_a_failure(browser_image: None) -> None:
    """When Chromium or the whole sandbox goes, whoever waits for an answer hears the cause."""
    async with DockerProvider() as provider, asyncio.timeout(200):
        sandbox = await provider.start(browser_spec())
        async with Browser(sandbox, pages=PAGES) as browser:
            await kill(sandbox, "^/usr/lib/chromium/chromium")
            with pytest.raises(GuiDied, match=r"Chromium|closed"):
                await browser.act([Wait(60)])
        async with Browser(sandbox, pages=PAGES) as browser:
            waiting = asyncio.ensure_future(browser.act([Wait(60)]))
            await sandbox.close()
            with pytest.raises(GuiDied, match="driver is gone"):
                await waiting


async def test_console_and_errors_are_told_and_bounded(browser: Browser) -> None:
    """What pages log is told, and a flood of it is cut and counted."""
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
    """A click on a covered element says what lies over it."""
    look = await at(browser, "covered")
    look = await browser.act([Click(item(look, "button", "Below"))])
    assert look.errors[0].endswith("is covered by div #over")


async def test_elements_are_scrolled_into_view(browser: Browser) -> None:
    """An element below the fold is reached by id, and the wheel moves the page."""
    look = await at(browser, "long")
    look = await browser.act([Click(item(look, "button", "End"))])
    assert look.title == "end"
    await browser.act([Scroll(Point(100, 100), 0, -5000), Scroll(None, 0, 700)])
    assert await browser.evaluate("() => scrollY") == 700


async def test_frames_are_part_of_the_tree(browser: Browser) -> None:
    """Elements of a frame have ids like all others and can be clicked."""
    look = await at(browser, "frame")
    look = await browser.act([Click(item(look, "button", "Inside"))])
    assert look.title == "inner"


async def test_mouse(browser: Browser) -> None:
    """Buttons, double clicks, drags and modifiers arrive in the page as they were meant."""
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
    """Going back returns to the page before; where there is none, the agent reads so."""
    await at(browser, "long")
    look = await browser.act([GoBack()])
    assert look.url == "http://pages.test/"


async def test_nothing_outside_can_be_reached(browser: Browser) -> None:
    """A page that tries the host, its gateway, the internet or a name gets nowhere."""
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
                          new Promise(done => setTimeout(() => done('waited'), 5000))])))"""
        assert set(await browser.evaluate(tries)) == {"failed"}
        socket = f"""() => new Promise(done => {{ const s = new WebSocket('ws://172.17.0.1:{port}');
            s.onopen = () => done('reached'); s.onerror = () => done('failed'); }})"""
        assert await browser.evaluate(socket) == "failed"
        assert not seen


async def test_what_is_no_request_is_refused(browser: Browser) -> None:
    """An unknown operation or a page that can't be opened is refused with words."""
    with pytest.raises(BadAction, match="unknown operation"):
        await browser.ask("fly")
    with pytest.raises(BadAction, match="can't be opened"):
        await browser.goto("http://192.0.2.1/")


async def test_many_steps_leave_nothing_behind(browser: Browser, box: Sandbox) -> None:
    """Pages, tabs and dialogs that come and go leave no process and no element behind."""

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
    # Chromium keeps a spare renderer now and then.
    assert await processes() <= before + 2

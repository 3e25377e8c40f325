"""The viewer's page in a real Chromium, whose only network is the viewer itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.gui.conftest import browser_image
from tests.store.records import record, turn
from tests.viewer.runs import write_long, write_run, write_screens
from trajgym.envs.gui import Browser, browser_spec
from trajgym.envs.gui.actions import GoTo, PressKeys, Size, TypeText
from trajgym.envs.sandbox import DockerProvider
from trajgym.rollout.plots import PLOTS, plot_data
from trajgym.server import running
from trajgym.server.viewer import Viewer, export_session
from trajgym.trajectory import Attempt, Outcome, Run, Status, Store

__all__ = ["browser_image"]  # a fixture

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

HOST = "http://view.example/"
ROWS = "[...document.querySelectorAll('.list-space .row .c-id')].map(e => e.textContent)"
TITLE = "document.querySelector('h1')?.textContent"
CURRENT = "document.querySelector('.turn.is-current')?.dataset.turn"


def each(selector: str) -> str:
    """Return an expression for the elements of a selector, as an array."""
    return f"[...document.querySelectorAll({json.dumps(selector)})]"


class Page:
    """The page in a browser; what a person would do, and what they would see."""

    def __init__(self, browser: Browser, runs: Path) -> None:
        self.browser, self.runs = browser, runs

    async def see(self, expression: str) -> Any:
        return await self.browser.evaluate(f"() => {expression}")

    async def until(self, expression: str, wanted: Any) -> None:
        """Wait until an expression has this value, two minutes at most."""
        end = time.monotonic() + 120
        while (found := await self.see(expression)) != wanted and time.monotonic() < end:
            await asyncio.sleep(0.05)
        assert found == wanted

    async def count(self, selector: str) -> int:
        return int(await self.see(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def open(self, route: str) -> None:
        """Go to an address within the page, from another one."""
        await self.see("void (location.hash = '#/none')")
        await self.until("document.title", "runs · trajgym")
        await self.see(f"void (location.hash = {json.dumps(route)})")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.browser.act([PressKeys((key,))])

    async def click(self, selector: str, number: int = 0) -> None:
        found = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        await self.until(f"Boolean({found})", True)
        await self.see(f"void {found}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(
    tmp_path_factory: pytest.TempPathFactory, browser_image: None
) -> AsyncIterator[Page]:
    """The page of a directory with a run, in a browser that was given the token."""
    folder = tmp_path_factory.mktemp("viewer")
    runs = folder / "runs"
    write_run(runs / "demo")
    with Store(runs / "demo") as store:
        write_screens(store)
        write_long(store, 500)
    with Run(runs / "demo") as run:
        files = {f"{name}.html": export_session(run, name) for name in ("g1-0", "hostile")}
    viewer = Viewer(runs, "secret", place=lambda run: folder / f"{run.name}.db")
    async with running(viewer) as url, DockerProvider() as provider:
        port = url.rpartition(":")[2]
        spec = browser_spec(allow=[f"view.example:80=127.0.0.1:{port}"])
        async with (
            await provider.start(spec) as sandbox,
            Browser(sandbox, size=Size(1400, 800), pages=files) as browser,
        ):
            found = Page(browser, runs)
            await browser.act([GoTo(f"{HOST}#/run/demo/sessions?token=secret")])
            await found.until("document.querySelector('.toolbar .dim')?.textContent", "16 sessions")
            yield found


async def test_sessions_are_filtered_and_sorted(page: Page) -> None:
    """Facets narrow the list, chips undo them, heads sort, and the address keeps it all."""
    await page.open("#/run/demo/sessions?group=g1")
    await page.until(ROWS, ["g1-0", "g1-1", "g1-2", "g1-3"])
    await page.click(".facet-value input[id='f-outcome-0']")
    await page.until(ROWS, ["g1-0", "g1-2"])
    assert "outcome=solved" in await page.see("location.hash")
    await page.click(".list-head .c-turns button")
    await page.click(".list-head .c-turns button")
    await page.until(ROWS, ["g1-2", "g1-0"])
    await page.click(".filter-chip[aria-label='Remove filter outcome: solved']")
    await page.until(f"{ROWS}.length", 4)
    assert "token" not in await page.see("location.href")


async def test_the_list_is_used_by_keys(page: Page) -> None:
    """A slash searches, j and k choose, Enter opens, Esc goes back."""
    await page.open("#/run/demo/sessions")
    await page.until(f"{ROWS}.length", 16)
    await page.press("/")
    await page.browser.act([TypeText('"missing from the sum"')])
    await page.until(ROWS, ["g1-0"])
    await page.press("Escape")
    await page.until(f"{ROWS}.length", 16)
    await page.press("Escape", "j", "j", "k", "j")
    chosen = "document.querySelector('.list-space [aria-selected=true] .c-id')?.textContent"
    await page.until(chosen, "golden-fork")
    assert await page.see("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.press("Enter")
    await page.until(TITLE, "t-fork")
    await page.press("Escape")
    await page.until(f"{ROWS}.length", 16)


async def test_a_session_reads_as_a_conversation(page: Page) -> None:
    """Prompt, reasoning, calls, results and diffs; j and k move, a search marks what it finds."""
    await page.open("#/run/demo/session/g1-0")
    await page.until("document.querySelectorAll('.turn .call').length", 4)
    shown = await page.see("document.querySelector('.turns').innerText")
    for text in ("Cart.total", "The count is missing", "pytest -q", "4 passed", "failed_tests"):
        assert text in shown
    added = "[...document.querySelectorAll('#turn-2 .diff-added')].map(e => e.textContent.trim())"
    assert await page.see(added) == [
        "+ item.price * item.count",
        "+        return sum(item.price * item.count for item in self.items)",
    ]
    await page.press("j", "j")
    await page.until(CURRENT, "2")
    await page.press("k")
    await page.until(CURRENT, "1")
    await page.press("/")
    await page.browser.act([TypeText("pytest"), PressKeys(("Enter",))])
    await page.until(CURRENT, "3")
    await page.until("CSS.highlights.get('found').size", 1)
    await page.press("Escape")
    await page.until(TITLE, None)


async def test_text_of_a_run_is_never_markup(page: Page) -> None:
    """Scripts, images and links in any text are shown as they are, in every view."""
    for view in ("tab=conversation", "tab=tree", "tab=rewards", "tab=tokens"):
        await page.open(f"#/run/demo/session/hostile?{view}")
        await page.until(f"{TITLE}?.startsWith('<script>window.stolen')", True)
        await page.until("document.querySelectorAll('[aria-selected=true][role=tab]').length", 1)
    for route in ("sessions", "failures", "plots"):
        await page.open(f"#/run/demo/{route}")
        await page.until("document.body.textContent.includes('<script>window.stolen')", True)
        assert await page.count("main script, main img, a[href^=javascript]") == 0
    assert await page.see("window.stolen === undefined") is True
    # And the policy would stop what a mistake let in.
    write = "document.body.innerHTML = '<b>x</b>'"
    blocked = f"(() => {{ try {{ {write}; }} catch (e) {{ return e.name; }} }})()"
    assert await page.see(blocked) == "TypeError"


async def test_pictures_show_the_next_action(page: Page) -> None:
    """The click of the turn that saw a picture is drawn where it was made."""
    await page.open("#/run/demo/session/screens")
    await page.until("document.querySelectorAll('.screen img').length", 3)
    places = "[e.getAttribute('cx'), e.getAttribute('cy')].map(Number)"
    rings = f"{each('.mark-ring')}.map(e => {places})"
    await page.until(rings, [[320, 200], [100, 50]])
    assert await page.see("document.querySelector('.screen img').naturalWidth") == 640
    assert (
        await page.see("document.querySelector('.marks').getAttribute('viewBox')") == "0 0 640 400"
    )


async def test_the_tree_is_walked_by_arrows(page: Page) -> None:
    """Forks, rewrites, sub-agents have their own edges; arrows move, Enter opens the turn."""
    await page.open("#/run/demo/session/golden-fork?tab=tree")
    await page.until("document.querySelectorAll('.tree-node').length", 3)
    assert await page.count(".tree-edge.tree-alternative") == 2  # one is the legend's
    ends = await page.see("[...document.querySelectorAll('.tree-end')].map(e => e.textContent)")
    assert ends == ["#0 solved 1", "#1 completed 0"]
    await page.see("void document.querySelector('.tree-frame').focus()")
    await page.press("ArrowRight", "ArrowDown")
    chosen = "document.querySelector('.tree-node[aria-selected=true]')?.id"
    await page.until(chosen, "tree-2")
    await page.press("ArrowLeft")
    await page.until(chosen, "tree-0")
    await page.press("Enter")
    await page.until(CURRENT, "0")
    for name, edges in (("rewrite", ["rewrite"]), ("subagent", ["spawn", "return"])):
        await page.open(f"#/run/demo/session/golden-{name}?tab=tree")
        for edge in edges:
            await page.until(f"document.querySelectorAll('.tree .tree-{edge}').length > 0", True)


async def test_rewards_stand_beside_each_other(page: Page) -> None:
    """Values of several derivers per turn, with the terms they are made of."""
    await page.open(
        "#/run/demo/session/g1-0?tab=rewards&with=outcome&with=gigpo&with=next_state_votes"
    )
    heads = "[...document.querySelectorAll('.reward-table thead th')].map(e => e.firstChild.data)"
    await page.until(heads, ["turn", "what it did", "env", "outcome", "gigpo"])
    last = await page.see(f"{each('.reward-table tbody tr')}[3].innerText")
    assert last.split()[:6] == ["3", "bash", "pytest", "-q", "+0.5", "+1"]
    assert "episode +1" in await page.see("document.querySelector('.reward-table').innerText")
    assert "no signal" in await page.see("document.querySelector('.rewards .note').textContent")


async def test_tokens_are_coloured(page: Page) -> None:
    """By log-prob, by policy version, and by loss mask."""
    await page.open("#/run/demo/session/g1-0?tab=tokens")
    first = "document.querySelector('.token-turn .token[data-at]')"
    await page.until(f"{first}?.className", "token by-logprob")
    tokens = each(".token-turn:first-child .token[data-at]")
    text = f"{tokens}.map(e => e.textContent).join('')"
    assert await page.see(text) == "I look around."
    assert "version 3" in await page.see(f"{first}.title")
    await page.click(".segmented button", 1)
    await page.until(f"{first}.className", "token by-version")
    hues = f"{each('.token.by-version[data-at]')}.map(e => e.style.getPropertyValue('--hue'))"
    assert len(set(await page.see(hues))) == 2
    await page.click(".segmented button", 2)
    await page.until(f"{first}.className", "token is-trained")


async def test_attempts_are_compared_from_where_they_part(page: Page) -> None:
    """Shared turns are one block; a solved and a failed attempt stand side by side after it."""
    await page.open("#/run/demo/group/g1")
    await page.until(
        "document.querySelector('.parted')?.textContent", "The attempts part at turn 2."
    )
    heads = "[...document.querySelectorAll('.compare-head .pill')].map(e => e.textContent)"
    assert await page.see(heads) == ["solved", "completed"]
    # Two blocks that all share, and one for each turn after them.
    assert await page.count(".map .cell-of") == 2 + 1 + 2 + 2
    await page.until("document.querySelectorAll('.compare .chip').length > 0", True)
    await page.click(".lane[aria-checked=false]")
    await page.until("document.querySelectorAll('.compare-head').length", 3)
    assert "of=" in await page.see("location.hash")
    await page.see(
        "void (s => { s.value = 'grpo'; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('select[aria-label=\"Colour turns by\"]'))"
    )
    await page.until("document.querySelectorAll('.map .cell-bad').length", 2)
    await page.click(".shared-toggle")
    await page.until("document.querySelectorAll('.shared-turns .turn').length", 2)


async def test_failures_lead_to_their_sessions(page: Page) -> None:
    """Causes are counted without what varies in them."""
    await page.open("#/run/demo/failures")
    row = f"{each('.failures tbody tr')}.find(e => e.innerText.includes('container'))"
    await page.until(f"Boolean({row})", True)
    assert "the container exited with status N after N s" in await page.see(f"{row}.innerText")
    await page.see(f"void {row}.querySelector('a').click()")
    await page.until(ROWS, ["g1-3"])


async def test_plots_are_drawn_from_the_run(page: Page) -> None:
    """Marks stand for the data, a tool leads to its sessions, and themes have their colours."""
    await page.open("#/run/demo/plots")
    await page.until("document.querySelectorAll('.plot').length", len(PLOTS))
    await page.until("document.querySelector('.plots [role=status]').textContent", "16 sessions")
    with Run(page.runs / "demo") as run:
        plots = {plot.name: plot for plot in plot_data(run)}
    for name, plot in plots.items():
        card = f"document.querySelector('.plot[data-name={name}]')"
        assert await page.see(f"{card}.querySelector('h2').textContent") == plot.title
        assert await page.see(f"{card}.innerText.includes({json.dumps(plot.note)})")
        drawn = await page.see(
            f"{card}.querySelectorAll('.plot-bar, .plot-point, .plot-hit').length"
        )
        values = [value for one in plot.series for value in one.y if value is not None]
        assert drawn == (
            len(values) if plot.kind == "lines" else sum(value > 0 for value in values)
        )
    assert not plots["tool-use"].empty
    bars = "[...document.querySelectorAll('.plot[data-name=tool-use] .plot-bar')]"
    widths = await page.see(f"{bars}.map(e => Number(e.getAttribute('width')))")
    counts = [value for one in plots["tool-use"].series for value in one.y if value]
    texts = await page.see(f"{bars}.map(e => Number(e.textContent.split(': ').at(-1)))")
    assert sorted(texts) == sorted(counts)
    assert np.allclose(np.array(widths) / widths[0], np.array(texts) / texts[0], atol=0.02)
    summary = "document.querySelector('.plot[data-name=success-by-turn] summary')"
    await page.see(f"void {summary}.click()")
    cells = each(".plot[data-name=success-by-turn] tbody tr")
    await page.until(f"{cells}.length", len(plots["success-by-turn"].x))
    colour = "getComputedStyle(document.querySelector('.plot-line')).stroke"
    seen = []
    for theme in ("light", "dark"):
        await page.see(f"void (document.documentElement.dataset.theme = '{theme}')")
        seen.append(await page.see(colour))
    await page.see("void delete document.documentElement.dataset.theme")
    assert seen[0] != seen[1]
    tool = plots["tool-use"].x[0]
    await page.click(".plot[data-name=tool-use] a")
    await page.until("location.hash", f"#/run/demo/sessions?tool={tool}")


async def test_a_long_session_is_built_where_it_is_read(page: Page) -> None:
    """All 500 turns can be reached; only those near the screen are built."""
    await page.open("#/run/demo/session/long?turn=400")
    await page.until(CURRENT, "400")
    assert await page.count(".turn") == 500
    assert await page.count(".turn[data-built]") < 60
    await page.press("j")
    await page.until(CURRENT, "401")
    visible = (
        "(() => { const a = document.querySelector('#turn-401').getBoundingClientRect();"
        " return a.top > 0 && a.top < innerHeight; })()"
    )
    await page.until(visible, True)
    await page.press("/")
    await page.browser.act([TypeText('"from line 17."'), PressKeys(("Enter",))])
    await page.until(CURRENT, "17")


async def test_the_address_follows_when_scrolling_has_ended(page: Page) -> None:
    """Each turn that passes becomes current at once; the address is not written for each."""
    await page.open("#/run/demo/session/long")
    await page.until("document.querySelectorAll('.turn').length", 500)
    scroll = """new Promise(done => {
        const current = () => document.querySelector('.turn.is-current')?.dataset.turn;
        const first = current();
        const watch = new MutationObserver(() => {
          if (!current() || current() === first) return;
          watch.disconnect();
          done(location.hash.includes('turn='));
        });
        watch.observe(document.querySelector('#session-main'),
                      { subtree: true, attributeFilter: ['class'] });
        setTimeout(() => document.querySelector('#turn-30').scrollIntoView(), 1000);
      })"""
    assert await page.see(scroll) is False
    await page.until(f"location.hash.includes(`turn=${{{CURRENT}}}`)", True)


async def test_a_view_that_is_left_keeps_off_the_address(page: Page) -> None:
    """A search that was typed just before another place was opened does not lead back."""
    await page.open("#/run/demo/session/long")
    await page.until("document.querySelectorAll('.turn').length", 500)
    typed = """(() => {
        const find = document.querySelector('.find');
        find.value = 'line';
        find.dispatchEvent(new Event('input'));
        location.hash = '#/runs';
        return new Promise(done => setTimeout(() => done(location.hash), 600));
      })()"""
    assert await page.see(typed) == "#/runs"


async def test_a_run_is_shown_while_it_is_collected(page: Page) -> None:
    """Sessions and turns appear, and the end of a session, without a reload."""
    path = page.runs / "live"
    with Store(path) as store:
        store.begin_session(record("now"))
        store.append_turn("now", turn(0, "first words")).wait()
        await page.open("#/run/live/sessions")
        await page.until(ROWS, ["now"])
        await page.until("document.querySelector('.live').textContent", "live, 1 running")
        store.begin_session(record("later")).wait()
        await page.until(ROWS, ["now", "later"])
        await page.open("#/run/live/session/now")
        await page.until("document.querySelectorAll('.turn').length", 1)
        store.append_turn("now", turn(1, "second words")).wait()
        await page.until("document.querySelectorAll('.turn').length", 2)
        end = Attempt(leaf=1, status=Status("completed"), outcome=Outcome(score=1.0, passed=True))
        store.put_attempt("now", end).wait()
        await page.until("document.querySelector('.session-title .pill').textContent", "solved")


async def test_light_and_dark(page: Page) -> None:
    """The switch overrides the system's choice, and is remembered."""
    await page.open("#/run/demo/sessions")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = await page.see(colour)
    await page.press("t")
    await page.until("document.documentElement.dataset.theme", "dark")
    assert await page.see(colour) != light
    await page.browser.act([GoTo("about:blank"), GoTo(f"{HOST}#/run/demo/sessions")])
    await page.until("document.documentElement.dataset.theme", "dark")
    await page.until(f"{ROWS}.length", 16)  # the token is remembered as well
    await page.press("t")
    await page.until(colour, light)


async def test_a_file_needs_no_server(page: Page) -> None:
    """An exported session has its tree, rewards and tokens; its texts are no markup either."""
    for name in ("hostile", "g1-0"):
        await page.browser.act([GoTo("about:blank"), GoTo(f"http://pages.test/{name}.html")])
        await page.until("document.querySelectorAll('.turn[data-built]').length > 0", True)
        assert await page.see("window.stolen === undefined") is True
        loaded = "performance.getEntriesByType('resource').filter(e => !e.name.endsWith('.ico'))"
        assert await page.see(f"{loaded}.length") == 0
    await page.press("3")
    await page.until("document.querySelectorAll('.reward-table tbody tr').length", 4)
    await page.press("4")
    await page.until("document.querySelectorAll('.token-turn .token').length > 30", True)
    await page.press("2")
    await page.until("document.querySelectorAll('.tree-node').length", 4)


async def test_a_wrong_token_is_reported(page: Page) -> None:
    """The page says what to do."""
    await page.browser.act([GoTo("about:blank"), GoTo(f"{HOST}#/run/demo/sessions?token=wrong")])
    said = "document.querySelector('.alert')?.textContent.includes('the address that the command')"
    await page.until(said, True)

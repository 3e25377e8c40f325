"""Milliseconds per step of the browser, compared with plain Playwright in the same sandbox and run.

Without options, steps on one page are compared. ``--behaviours`` opens pages on which waiting is
difficult and clicks on them, compared with plain Playwright that waits for the same events.
``--hard 20`` opens pages that never stop, and pages with 20,000 elements, 20 times each.
``--starts 5`` starts 5 sessions with new browsers and 5 with browsers launched in advance.
``--browsers 8`` runs 8 browsers at once, each with ``--steps`` steps, and reports memory and
processes at the beginning and at the end. ``--browsergym PYTHON`` adds BrowserGym, run by an
interpreter that has ``browsergym-core``, with this machine's Chromium on the same page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from trajgym.envs.gui import Browser, PictureForm, browser_spec
from trajgym.envs.gui.actions import Click, Element, Fill, GoTo, Point, Size, Wait
from trajgym.envs.gui.browser import launch_browser
from trajgym.envs.sandbox import DockerProvider, Sandbox, Stream, WarmPool

PEERS = Path(__file__).parent / "peers"
ROWS = "".join(
    f"<tr><td><a href='#{n}'>Item {n}</a></td><td>{n * 7 % 50} EUR</td></tr>" for n in range(40)
)
PAGE = (
    "<title>0</title><h1 style='margin:8px'>Page</h1><button style='position:absolute;left:20px;"
    "top:40px;width:100px;height:40px' onclick='document.title = 1 + +document.title'>Count"
    f"</button><table style='margin-top:60px'>{ROWS}</table>"
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
FORM = PictureForm(form="jpeg", quality=70)
AT = Click(Point(60, 60))
KINDS = ["shot", "tree", "click", "click+shot", "click+shot+tree"]


async def ours(browser: Browser, what: str, count: int) -> list[float]:
    picture = FORM if "shot" in what else None
    chars = 12_000 if "tree" in what else 0
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        if "click" in what:
            look = await browser.act([AT], picture, tree_chars=chars)
            assert look.errors == ("",)
        else:
            await browser.look(picture, tree_chars=chars)
        took.append(1000 * (time.perf_counter() - begun))
    return took


async def plain(stream: Stream, what: str, count: int) -> list[float]:
    stream.send(f"{what} {count}".encode())
    async with asyncio.timeout(120):
        answer: list[float] = json.loads(await stream.read())
    return answer


async def open_plain(box: Sandbox) -> Stream:
    text = await asyncio.to_thread((PEERS / "plain_playwright.py").read_bytes)
    await box.write_file("/work/plain.py", text)
    stream = await box.stream(["/opt/trajgym/venv/bin/python", "/work/plain.py"])
    stream.send(json.dumps([PAGE, FLAGS]).encode())
    async with asyncio.timeout(120):
        assert await stream.read() == b"ready"
    return stream


async def compare(rounds: int, count: int) -> dict[str, Any]:
    """Compare steps with plain Playwright's; blocks alternate, so that other load affects both."""
    async with (
        DockerProvider() as provider,
        await provider.start(browser_spec(memory=3000)) as box,
        Browser(box, pages={"index.html": PAGE}) as browser,
    ):
        await browser.act([GoTo("http://pages.test/")])
        stream = await open_plain(box)
        took: dict[str, tuple[list[float], list[float]]] = {k: ([], []) for k in KINDS}
        for what in KINDS * rounds:
            took[what][0].extend(await ours(browser, what, count))
            took[what][1].extend(await plain(stream, what, count))
        await stream.close()
    return {
        what: {
            "trajgym_ms": round(median(mine), 2),
            "playwright_ms": round(median(theirs), 2),
            "ratio": round(median(mine) / median(theirs), 2),
        }
        for what, (mine, theirs) in took.items()
    }


async def behaviours(count: int) -> dict[str, Any]:
    """Return the milliseconds of opening and clicking on each page, with plain Playwright's."""
    from peers import page_server

    hosts = {"bench.example": "127.0.0.1:8099"}
    # Plain Playwright never settles on a page that redirects endlessly; trajgym stops waiting.
    endless = {"script-redirect"}
    found: dict[str, Any] = {}
    async with (
        DockerProvider() as provider,
        await provider.start(browser_spec(memory=3000)) as box,
        Browser(box, hosts=hosts) as browser,
    ):
        for name in ("page_server", "settled_playwright"):
            text = await asyncio.to_thread((PEERS / f"{name}.py").read_bytes)
            await box.write_file(f"/work/{name}.py", text)
        server = await box.stream(["python3", "/work/page_server.py"])
        peer = await box.stream(["/opt/trajgym/venv/bin/python", "/work/settled_playwright.py"])
        peer.send(json.dumps([FLAGS, hosts]).encode())
        async with asyncio.timeout(120):
            assert await server.read() == b"ready"
            assert await peer.read() == b"ready"
        for page in page_server.PAGES:
            url = f"http://bench.example/{page}"
            begun = time.perf_counter()
            await browser.act([GoTo(url)], FORM, tree_chars=0)
            mine = [1000 * (time.perf_counter() - begun)]
            for _ in range(count):
                begun = time.perf_counter()
                await browser.act([Click(Point(60, 40))], FORM, tree_chars=0)
                mine.append(1000 * (time.perf_counter() - begun))
            row: dict[str, Any] = {"open_ms": round(mine[0]), "step_ms": round(median(mine[1:]), 1)}
            if page not in endless:
                peer.send(f"{url} {count}".encode())
                async with asyncio.timeout(120):
                    theirs: list[float] = json.loads(await peer.read())
                step = median(theirs[1:])
                row |= {
                    "playwright_open_ms": round(theirs[0]),
                    "playwright_step_ms": round(step, 1),
                }
                row["ratio"] = round(row["step_ms"] / step, 2)
                row["more_ms"] = round(row["step_ms"] - step, 1)
            found[page] = row
            print(page, row, flush=True)
        await peer.close()
        await server.close()
    return found


async def hard(count: int) -> dict[str, Any]:
    """Return the milliseconds of steps on pages that never stop, or have 20,000 elements.

    Every repetition opens the page with a picture and the elements, waits one step on it, and opens
    a quiet page, all of which must succeed.
    """
    from peers import page_server

    found: dict[str, Any] = {}
    async with (
        DockerProvider() as provider,
        await provider.start(browser_spec(memory=3000)) as box,
        Browser(box, hosts={"bench.example": "127.0.0.1:8099"}) as browser,
    ):
        text = await asyncio.to_thread((PEERS / "page_server.py").read_bytes)
        await box.write_file("/work/page_server.py", text)
        server = await box.stream(["python3", "/work/page_server.py"])
        async with asyncio.timeout(120):
            assert await server.read() == b"ready"
        for page in (*page_server.ENDLESS, *page_server.LARGE):
            steps: dict[str, list[float]] = {"open": [], "step": [], "leave": []}
            reported = 0
            for _ in range(count):
                for kind, action in (
                    ("open", GoTo(f"http://bench.example/{page}")),
                    ("step", Wait(0)),
                    ("leave", GoTo("http://bench.example/quiet")),
                ):
                    begun = time.perf_counter()
                    look = await browser.act([action], FORM, boxes=True)
                    steps[kind].append(1000 * (time.perf_counter() - begun))
                    reported += any(event.kind == "navigation" for event in look.events)
                assert look.url.endswith("/quiet"), look
                assert "Go" in look.tree
            found[page] = {
                f"{kind}_ms": {"median": round(median(took)), "most": round(max(took))}
                for kind, took in steps.items()
            }
            found[page]["reported"] = reported
            print(page, found[page], flush=True)
        await server.close()
    return {"repetitions": count, "pages": found}


async def starts(count: int) -> dict[str, Any]:
    """Time until a session sees its first page: started from nothing, and launched ahead.

    The lower bound is the same page once more in the open browser.
    """
    spec = browser_spec()
    took: dict[str, list[float]] = {"from nothing": [], "launched ahead": [], "page again": []}
    async with WarmPool(DockerProvider(), idle=1) as pool:
        pool.prepare(spec, launch_browser)
        for _ in range(count):
            await pool.warm(spec)
            for kind, provider in (("launched ahead", pool), ("from nothing", pool.inner)):
                begun = time.perf_counter()
                box = await provider.start(spec)
                async with box, Browser(box, sites=["shop"]) as browser:
                    await browser.act([GoTo("http://shop.test/")], FORM)
                    took[kind].append(1000 * (time.perf_counter() - begun))
                    begun = time.perf_counter()
                    await browser.act([GoTo("http://shop.test/")], FORM)
                    if kind == "launched ahead":
                        took["page again"].append(1000 * (time.perf_counter() - begun))
    medians = {kind: round(median(times), 1) for kind, times in took.items()}
    best = {kind: round(min(times), 1) for kind, times in took.items()}
    return {
        "start": medians,
        "fastest": best,
        "ratio": round(medians["launched ahead"] / medians["from nothing"], 3),
        "ratio_to_page": round(medians["launched ahead"] / medians["page again"], 2),
    }


async def resident(box: Sandbox) -> tuple[float, int]:
    """Return the MiB of resident memory and the number of processes in a sandbox."""
    done = await box.run("cat /proc/[0-9]*/statm; true")
    pages = [int(line.split()[1]) for line in done.stdout.decode().splitlines() if line.strip()]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / (1 << 20), len(pages)


async def one_browser(box: Sandbox, steps: int) -> dict[str, Any]:
    marks = []
    async with Browser(box, sites=["shop", "mail"], size=Size(800, 600)) as browser:
        for number in range(steps):
            page = ("shop.test/", "mail.test/", "shop.test/product/pan")[number % 3]
            look = await browser.act([GoTo(f"http://{page}")], FORM)
            assert look.errors == ("",), look.errors
            if page.endswith("pan"):
                field = next(
                    line.split("]")[0].strip(" [")
                    for line in look.tree.splitlines()
                    if "spinbutton" in line
                )
                look = await browser.act([Fill(Element(field), "3")], FORM)
                assert look.errors == ("",), look.errors
            if number in {steps // 5, steps - 1}:
                marks.append(await resident(box))
    (first, before), (last, after) = marks
    return {"mib": [round(first), round(last)], "processes": [before, after]}


async def many(browsers: int, steps: int) -> dict[str, Any]:
    """Run concurrent browsers; memory is measured after a fifth of the steps and at the end."""
    async with DockerProvider() as provider:
        spec = browser_spec(memory=1024)
        boxes = [await provider.start(spec) for _ in range(browsers)]
        begun = time.perf_counter()
        found = await asyncio.gather(*(one_browser(box, steps) for box in boxes))
        seconds = time.perf_counter() - begun
        left = [await box.run("ls -d /proc/[0-9]*/exe | wc -l") for box in boxes]
        handles = len([*os.scandir("/proc/self/fd")])
    return {
        "browsers": browsers,
        "steps_each": steps,
        "steps_per_second": round(browsers * steps / seconds, 1),
        "each": found,
        "processes_left_inside": [int(done.stdout) for done in left],
        "handles_of_the_host_process": handles,
    }


def browsergym(python: str) -> dict[str, Any]:
    """Time a step of BrowserGym in another interpreter."""
    done = subprocess.run(
        [python, str(PEERS / "browsergym_step.py")],
        input=json.dumps([PAGE, FLAGS]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        return {"error": done.stderr[-500:]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--behaviours", action="store_true")
    parser.add_argument("--hard", type=int, default=0)
    parser.add_argument("--starts", type=int, default=0)
    parser.add_argument("--browsers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--browsergym", default="")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    if given.behaviours:
        found = asyncio.run(behaviours(given.count))
    elif given.hard:
        found = asyncio.run(hard(given.hard))
    elif given.starts:
        found = asyncio.run(starts(given.starts))
    elif given.browsers:
        found = asyncio.run(many(given.browsers, given.steps))
    else:
        found = asyncio.run(compare(given.rounds, given.count))
        if given.browsergym:
            found["browsergym"] = browsergym(given.browsergym)
    print(json.dumps({"load": [round(load, 1), round(os.getloadavg()[0], 1)], **found}, indent=1))


if __name__ == "__main__":
    main()

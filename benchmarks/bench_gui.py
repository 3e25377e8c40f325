"""Milliseconds per step of the browser, beside plain Playwright in the same sandbox and run.

``python benchmarks/bench_gui.py`` compares; ``--browsers 8 --steps 500`` runs that many browsers
at once and reports memory and processes at the beginning and at the end; ``--browsergym PYTHON``
adds BrowserGym, from an interpreter that has ``browsergym-core``, with this machine's Chromium on
the same page.
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

from trajgym.envs.gui import (
    Browser,
    Click,
    Element,
    Fill,
    GoTo,
    PictureForm,
    Point,
    Size,
    browser_spec,
)
from trajgym.envs.sandbox import DockerProvider, Sandbox, Stream

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
    """Alternate short blocks, so that whatever else runs slows down both."""
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


async def resident(box: Sandbox) -> tuple[float, int]:
    """MiB of resident memory and number of processes in a sandbox."""
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
    """Run browsers at once; memory is looked at after a fifth of the steps and at the end."""
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
    """Time BrowserGym and plain Playwright in one process of another interpreter."""
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
    parser.add_argument("--browsers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--browsergym", default="")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    if given.browsers:
        found = asyncio.run(many(given.browsers, given.steps))
    else:
        found = asyncio.run(compare(given.rounds, given.count))
        if given.browsergym:
            found["browsergym"] = browsergym(given.browsergym)
    print(json.dumps({"load": [round(load, 1), round(os.getloadavg()[0], 1)], **found}, indent=1))


if __name__ == "__main__":
    main()

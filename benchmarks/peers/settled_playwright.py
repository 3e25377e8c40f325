"""Plain Playwright that waits for the effects of a click: the lower bound of a settled step.

Reads lines ``url count`` and prints the milliseconds of opening the page and of each click with a
picture. It waits as a careful script would: until the page has loaded, and for at most a second
until the requests that the click started are answered. It does not wait again for a URL that was
once not answered within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

from playwright.async_api import Page, Request, async_playwright

BLOCKING = {"document", "stylesheet", "script", "image", "font", "xhr", "fetch"}


class Settled:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.waiting: set[Request] = set()
        self.never: set[str] = set()
        page.on("request", self.begins)
        page.on("response", lambda response: self.waiting.discard(response.request))
        page.on("requestfailed", lambda request: self.waiting.discard(request))

    def begins(self, request: Request) -> None:
        if request.resource_type in BLOCKING and self.name(request) not in self.never:
            self.waiting.add(request)

    @staticmethod
    def name(request: Request) -> str:
        return request.url.partition("?")[0]

    async def rest(self, begun: set[Request]) -> None:
        with contextlib.suppress(Exception):  # the page may navigate during the call
            await self.page.evaluate("new Promise(done => setTimeout(done))")
        with contextlib.suppress(Exception):
            await self.page.wait_for_load_state("load", timeout=15_000)
        end = time.monotonic() + 1
        mine = self.waiting - begun
        while mine & self.waiting and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        self.never |= {self.name(request) for request in mine & self.waiting}
        self.waiting -= mine


async def main() -> None:
    flags, hosts = json.loads(sys.stdin.readline())
    rules = ",".join(f"MAP {name} {to}" for name, to in hosts.items())
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=[*flags, f"--host-resolver-rules={rules}"]
        )
        context = await browser.new_context(viewport={"width": 1280, "height": 720})
        page = await context.new_page()
        settled = Settled(page)

        async def timed(action: Any) -> float:
            begun, before = time.perf_counter(), set(settled.waiting)
            with contextlib.suppress(Exception):  # a failed navigation shows an error page
                await action
            await settled.rest(before)
            await page.screenshot(type="jpeg", quality=70)
            return 1000 * (time.perf_counter() - begun)

        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            url, count = line.split()
            took = [await timed(page.goto(url, timeout=15_000))]
            took += [await timed(page.mouse.click(60, 40)) for _ in range(int(count))]
            print(json.dumps(took), flush=True)
        await browser.close()


asyncio.run(main())

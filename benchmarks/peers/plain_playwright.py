"""Milliseconds of steps of plain Playwright; reads lines ``what count`` and prints a JSON list."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from playwright.async_api import async_playwright


async def main() -> None:
    page_html, flags = json.loads(sys.stdin.readline())
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        context = await browser.new_context(viewport={"width": 1280, "height": 720})
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        await page.set_content(page_html)

        async def step(what: str) -> None:
            if "click" in what:
                await page.mouse.click(60, 60)
                await page.evaluate("document.title")
            if "shot" in what:
                await page.screenshot(type="jpeg", quality=70)
            if "tree" in what:
                await session.send("Accessibility.getFullAXTree")

        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, count = line.split()
            took = []
            for _ in range(int(count)):
                begun = time.perf_counter()
                await step(what)
                took.append(1000 * (time.perf_counter() - begun))
            print(json.dumps(took), flush=True)
        await browser.close()


asyncio.run(main())

"""BrowserGym's step beside plain Playwright, in one process: prints milliseconds as JSON.

Reads ``[page, flags]`` on stdin. Both do the same: click at a point and observe. BrowserGym's fixed
wait before it observes (half a second by default) is set to nothing, and is told apart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from browsergym.core.env import BrowserEnv
from browsergym.core.task import OpenEndedTask

COUNT = 40


def main() -> None:
    html, flags = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(html)
        env = BrowserEnv(
            task_entrypoint=OpenEndedTask,
            task_kwargs={"start_url": f"file://{file}"},
            headless=True,
            viewport={"width": 1280, "height": 720},
            pre_observation_delay=0.0,
            pw_chromium_kwargs={"executable_path": "/usr/bin/chromium", "args": flags},
        )
        env.reset()
        steps = []
        for _ in range(COUNT):
            begun = time.perf_counter()
            env.step("mouse_click(60, 60)")
            steps.append(1000 * (time.perf_counter() - begun))
        page = env.unwrapped.page
        plain = []
        session = page.context.new_cdp_session(page)
        for _ in range(COUNT):
            begun = time.perf_counter()
            page.mouse.click(60, 60)
            page.evaluate("document.title")
            page.screenshot(type="jpeg", quality=70)
            session.send("Accessibility.getFullAXTree")
            plain.append(1000 * (time.perf_counter() - begun))
        env.close()
    print(
        json.dumps({"step_ms": round(median(steps), 1), "playwright_ms": round(median(plain), 1)})
    )


main()

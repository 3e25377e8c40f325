"""Milliseconds of BrowserGym's step, a click at a point with its observation, printed as JSON.

Reads ``[page, flags]`` from stdin. The fixed delay before an observation, half a second by default,
is set to 0.
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
from playwright.sync_api import BrowserType

COUNT = 40
CHROMIUM = "/usr/bin/chromium"

# BrowserGym's chat window starts another browser, whose path can't be configured.
launch = BrowserType.launch
BrowserType.launch = lambda self, **options: launch(self, executable_path=CHROMIUM, **options)


def main() -> None:
    html, _ = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(html)
        env = BrowserEnv(
            task_entrypoint=OpenEndedTask,
            task_kwargs={"start_url": f"file://{file}", "goal": "Count."},
            headless=True,
            viewport={"width": 1280, "height": 720},
            pre_observation_delay=0.0,
        )
        env.reset()
        steps = []
        for _ in range(COUNT):
            begun = time.perf_counter()
            env.step("mouse_click(60, 60)")
            steps.append(1000 * (time.perf_counter() - begun))
        env.close()
    print(json.dumps({"step_ms": round(median(steps), 1)}))


main()

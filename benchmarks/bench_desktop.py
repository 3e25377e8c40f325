"""Milliseconds per step of the desktop, compared with a lower bound in the same run.

Needs a Docker engine and the image that scripts/desktop-image.sh builds. The lower bound is the
time of bare calls of XTEST, mss and Pillow in the container, without trajgym's driver and protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from trajgym.envs.gui import DESKTOP_IMAGE, Desktop, PictureForm
from trajgym.envs.gui.actions import Click, Point, Size, TypeText
from trajgym.envs.sandbox import DockerProvider, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs.sandbox import Sandbox

CLICK = [Click(Point(640, 360))]
_BOUND = """
import io, statistics, sys, time
import mss
from PIL import Image
from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest
display, eye, times = Display(), mss.mss(), []
area = {"left": 0, "top": 0, "width": 1280, "height": 720}
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter()
    xtest.fake_input(display, X.MotionNotify, 0, x=640, y=360)
    for kind in (X.ButtonPress, X.ButtonRelease):
        xtest.fake_input(display, kind, 1)
    display.sync()
    seen = eye.grab(area)
    image = Image.frombytes("RGB", seen.size, seen.bgra, "raw", "BGRX")
    image.save(io.BytesIO(), "PNG", compress_level=1)
    times.append((time.perf_counter() - begun) * 1000)
print(statistics.median(times))
"""


async def timed(repeats: int, act: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Return the median and the 90th percentile of a call, in milliseconds."""
    await act()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        await act()
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    return {
        "p50": round(statistics.median(times), 2),
        "p90": round(times[int(len(times) * 0.9)], 2),
    }


async def beside_bound(desktop: Desktop, sandbox: Sandbox, repeats: int) -> dict[str, float]:
    """Return both medians and their ratio; rounds alternate, so that other load affects both."""
    env, rounds = {"DISPLAY": desktop.display}, 5
    ours, bounds = [], []
    for _ in range(rounds):
        each = max(5, repeats // rounds)
        ours.append((await timed(each, lambda: desktop.act(CLICK, PictureForm())))["p50"])
        done = await sandbox.run(["python3", "-c", _BOUND, str(each)], env=env)
        bounds.append(float(done.stdout))
    mine, bound = statistics.median(ours), statistics.median(bounds)
    return {"ms": round(mine, 2), "bound ms": round(bound, 2), "ratio": round(mine / bound, 2)}


async def measure(repeats: int) -> dict[str, Any]:
    """Return all figures by name."""
    found: dict[str, Any] = {}
    png, jpeg = PictureForm(), PictureForm(form="jpeg", quality=70)
    small = PictureForm(form="jpeg", quality=70, size=Size(640, 360))
    async with DockerProvider() as provider:
        begun = time.perf_counter()
        sandbox = await provider.start(SandboxSpec(image=DESKTOP_IMAGE))
        async with sandbox:
            await sandbox.settle()
            started = time.perf_counter()
            async with Desktop(sandbox, settle=0.0) as desktop:
                ready = time.perf_counter()
                await desktop.launch(["mousepad"])
                shown = time.perf_counter()
                found["container start"] = round((started - begun) * 1000)
                found["screen and window manager"] = round((ready - started) * 1000)
                found["mousepad with its window"] = round((shown - ready) * 1000)
                found["round trip (windows, no picture)"] = await timed(repeats, desktop.look)
                found["click, no picture"] = await timed(repeats, lambda: desktop.act(CLICK))
                found["click + PNG"] = await timed(repeats, lambda: desktop.act(CLICK, png))
                found["click + JPEG"] = await timed(repeats, lambda: desktop.act(CLICK, jpeg))
                found["click + JPEG 640x360"] = await timed(
                    repeats, lambda: desktop.act(CLICK, small)
                )
                found["type 10 characters + PNG"] = await timed(
                    repeats, lambda: desktop.act([TypeText("abcdefghi\n")], png)
                )
                found["click + PNG over the bound"] = await beside_bound(desktop, sandbox, repeats)
            async with Desktop(sandbox) as desktop:
                await desktop.launch(["mousepad"])
                found["click + PNG, settled"] = await timed(
                    min(repeats, 20), lambda: desktop.act(CLICK, png)
                )
    return found


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    print(json.dumps(asyncio.run(measure(parser.parse_args().repeats)), indent=1))


if __name__ == "__main__":
    main()

"""Milliseconds of a desktop's steps, beside programs that are started for each one.

Needs a Docker engine and the image of scripts/desktop-image.sh. The programs are xclip, which is in
the image, for what a process a step costs at least, and the same driver's parts one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from trajgym.envs.gui import (
    DESKTOP_IMAGE,
    Click,
    Desktop,
    PictureForm,
    Point,
    Size,
    TypeText,
)
from trajgym.envs.sandbox import DockerProvider, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CLICK = [Click(Point(640, 360))]


async def timed(repeats: int, act: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Return the median and the ninth decile of a call, in milliseconds."""
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


async def measure(repeats: int) -> dict[str, Any]:
    """Return the figures."""
    found: dict[str, Any] = {}
    png, jpeg = PictureForm(), PictureForm(form="jpeg", quality=70)
    small = PictureForm(form="jpeg", quality=70, size=Size(640, 360))
    async with DockerProvider() as provider:
        begun = time.perf_counter()
        sandbox = await provider.start(SandboxSpec(image=DESKTOP_IMAGE))
        async with sandbox:
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
                env = {"DISPLAY": desktop.display}
                found["one process a step (xclip -o), no picture"] = await timed(
                    repeats, lambda: sandbox.run(["xclip", "-o"], env=env)
                )
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

"""Milliseconds per command of swe-rex 1.4: `run_in_session` of `true`, local and in a container.

The local deployment runs the server's code in this process; the Docker deployment starts a
container whose server is reached over HTTP on a port of this host. The figure is the median of 40
commands in one session after a warm-up, with exit codes (the default). Then `true` is run in a
second session while the first one sleeps for two seconds.

The container's image must contain the server. `--build IMAGE` builds such an image on the base
image from wheels that pip downloads on the host; the build has no network.

Usage: python swe_rex.py [--build] [IMAGE], with an interpreter that has swe-rex and aiohttp, which
its Docker deployment imports but does not declare.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

BASE = "trajgym/base:bookworm"
COUNT = 40
SECONDS = 120
RECIPE = f"""\
FROM {BASE}
USER root
COPY wheels /wheels
RUN python3 -m venv /opt/rex && \
    /opt/rex/bin/pip install --quiet --no-index --find-links /wheels swe-rex && \
    ln -s /opt/rex/bin/swerex-remote /usr/local/bin/swerex-remote && rm -r /wheels
"""


def build(image: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)]
        subprocess.run([*command, "swe-rex"], check=True)
        Path(folder, "Dockerfile").write_text(RECIPE)
        command = ["docker", "build", "--quiet", "--network", "none", "--tag", image, folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def milliseconds(runtime: Any, session: str, count: int = COUNT) -> float:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await runtime.run_in_session(BashAction(command="true", session=session))
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times)


async def measure(deployment: Any) -> dict[str, float]:
    begun = time.perf_counter()
    await deployment.start()
    try:
        runtime = deployment.runtime
        for session in ("one", "two"):
            await runtime.create_session(CreateBashSessionRequest(session=session))
        found = {"start": 1000 * (time.perf_counter() - begun)}
        await milliseconds(runtime, "one", 3)
        found["true"] = await milliseconds(runtime, "one")
        blocked = asyncio.create_task(
            runtime.run_in_session(BashAction(command="sleep 2", session="one"))
        )
        await asyncio.sleep(0.2)
        found["true while another blocks"] = await milliseconds(runtime, "two", 1)
        await blocked
        return found
    finally:
        await deployment.stop()


async def main(image: str | None) -> dict[str, dict[str, float] | str]:
    kinds: dict[str, Any] = {"local": LocalDeployment}
    if image:
        kinds["docker"] = lambda: DockerDeployment(
            image=image, pull="never", python_standalone_dir=None
        )
    found: dict[str, dict[str, float] | str] = {}
    for name, make in kinds.items():
        try:
            async with asyncio.timeout(SECONDS):
                found[name] = await measure(make())
        except Exception as error:  # noqa: BLE001 - a peer's failure is reported, not raised
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


if __name__ == "__main__":
    logging.disable()
    words = [word for word in sys.argv[1:] if word != "--build"]
    if "--build" in sys.argv:
        build(words[0])
    print("RESULT", json.dumps(asyncio.run(main(words[0] if words else None))))

"""The OpenAPI document describes the server's answers to arbitrary requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.fake import RENDERER, Engine, serving
from trajgym.envs import EnvSpec
from trajgym.server import App, Limits, ServerConfig, Upstream, running
from trajgym.trajectory import Store

pytest.importorskip("schemathesis", reason="install trajgym[dev]")


@pytest.mark.timeout(900)
async def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    """Every operation answers generated requests with a documented status and body."""
    async with serving(Engine(lambda n, body: {"text": "x"}, [])) as fake:
        with Store(tmp_path / "run") as store:
            upstream = Upstream(base_url=fake.url, renderer=RENDERER)
            environments = {"counter": EnvSpec(id="tests.worlds:Counter")}
            app = App(store, upstream, ServerConfig(limits=Limits(poll_seconds=0.1)), environments)
            async with running(app) as url:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "schemathesis.cli", "run", f"{url}/api/openapi.json",
                    # An unknown turn is 404 too, in a session that exists.
                    "--checks", "all", "--exclude-checks", "ensure_resource_availability",
                    "--max-examples", "5", "--seed", "1", "--no-color",
                    "--request-timeout", "60", cwd=tmp_path,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
                said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-20_000:]

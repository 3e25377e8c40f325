"""`trajgym view`: the address that it prints, and the file that it writes."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import httpx
from typer.testing import CliRunner

from tests.viewer.runs import write_run
from trajgym.cli import app


async def test_the_command_prints_an_address_that_works(tmp_path: Path) -> None:
    """The token is in the fragment of the address; Ctrl-C ends the command."""
    write_run(tmp_path / "run")
    command = ["-m", "trajgym", "view", str(tmp_path / "run"), "g1-0", "--port", "0"]
    viewing = await asyncio.create_subprocess_exec(
        sys.executable, *command, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert viewing.stderr is not None
        async with asyncio.timeout(120):
            said = (await viewing.stderr.readline()).decode()
        found = re.search(r"(http://127\.0\.0\.1:\d+/)#(\S+)\?token=([\w-]{16,}) ", said)
        assert found, said
        assert found[2] == "/run/run/session/g1-0"
        headers = {"Authorization": f"Bearer {found[3]}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            session = (await client.get(f"{found[1]}api/runs/run/sessions/g1-0")).json()
            assert len(session["turns"]) == 4
        viewing.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            await viewing.wait()
    finally:
        if viewing.returncode is None:
            viewing.kill()


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    """One session in one file; without a session it says what is missing."""
    write_run(tmp_path / "run")
    run, file = str(tmp_path / "run"), tmp_path / "out" / "session.html"
    done = CliRunner().invoke(app, ["view", run, "hostile", "--html", str(file)])
    assert done.exit_code == 0, done.output
    text = file.read_text()
    assert text.count("</script>") == 2  # the data's and the page's own
    assert not re.search(r"(src|href)=[\"']?http", text)
    refused = CliRunner().invoke(app, ["view", run, "--html", str(file)])
    assert "--html writes one session" in str(refused.exception)

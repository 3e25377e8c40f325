"""Terminus 2 of harbor, in a tmux of its own, with a context so small that it has to summarise."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext

CONTEXT = 10_000
"""Tokens; it summarises when fewer than 8,000 of them are free."""


class Here:
    """This directory as the environment: the part of the interface that the agent uses."""

    default_user = None
    session_id = "here"
    capabilities = SimpleNamespace(mounted=True)

    async def exec(self, command: str, **_: object) -> ExecResult:
        shell = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await shell.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=shell.returncode)

    async def upload_file(self, *_: object, **__: object) -> None: ...

    async def download_file(self, *_: object, **__: object) -> None: ...


async def main(logs: Path) -> None:
    agent = Terminus2(
        logs_dir=logs,
        model_name="openai/fake",
        api_base=os.environ["BASE"],
        collect_rollout_details=True,
        record_terminal_session=False,
        session_id="terminus",
        model_info={
            "max_input_tokens": CONTEXT,
            "max_output_tokens": 1000,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        },
    )
    here = Here()
    await agent.setup(here)
    await agent.run("Say hi in the terminal.", here, AgentContext())
    await here.exec("tmux kill-server")


logs = Path("logs")
logs.mkdir()
asyncio.run(main(logs))

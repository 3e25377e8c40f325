"""Terminus 2 on one task, from standard input. Runs inside the sandbox.

The first argument is the directory with its packages.
"""

import asyncio
import os
import site
import sys
from pathlib import Path

site.addsitedir(sys.argv[1])
os.environ.pop("LD_LIBRARY_PATH", None)  # of this Python, not of the agent's commands

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext


class Here:
    """This sandbox as harbor's environment: the part of the interface that the agent uses."""

    default_user = None
    session_id = "trajgym"

    async def exec(self, command: str, **_: object) -> ExecResult:
        """Run a shell line."""
        shell = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await shell.communicate()
        texts = [data.decode("utf-8", "replace") for data in (out, err)]
        return ExecResult(stdout=texts[0], stderr=texts[1], return_code=shell.returncode)


async def main(task: str, folder: Path) -> None:
    """Work on the task until the agent states that it is complete."""
    free = {"input_cost_per_token": 0, "output_cost_per_token": 0}
    agent = Terminus2(
        logs_dir=folder,
        model_name=f"openai/{os.environ['TRAJGYM_MODEL']}",
        api_base=os.environ["OPENAI_BASE_URL"],
        record_terminal_session=False,
        session_id="trajgym",
        model_info={"max_input_tokens": 128_000, "max_output_tokens": 16_000, **free},
    )
    here = Here()
    await agent.setup(here)
    await agent.run(task, here, AgentContext())
    await here.exec("tmux kill-server")


logs = Path(os.environ["TRAJGYM_AGENT_DIR"], "logs")
logs.mkdir()
asyncio.run(main(sys.stdin.read(), logs))

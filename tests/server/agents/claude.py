"""Claude Agent SDK, with the Claude Code that it contains: `plain`, `sub`, or `compact`."""

import asyncio
import sys
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

PROMPTS = {
    "plain": ["Say hi using the shell."],
    "sub": ["Have two helpers each say a number."],
    "compact": ["Say hi using the shell.", "/compact", "Now say bye."],
}


async def main(prompts: list[str]) -> None:
    options = ClaudeAgentOptions(
        cwd=Path.cwd(),
        model="fake",
        permission_mode="acceptEdits",
        allowed_tools=["Bash", "Agent"],
        max_turns=8,
        setting_sources=[],
        system_prompt={"type": "preset", "preset": "claude_code"},
    )
    async with ClaudeSDKClient(options) as client:
        for prompt in prompts:
            await client.query(prompt)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage) and message.result:
                    print(message.result, flush=True)


asyncio.run(main(PROMPTS[sys.argv[1]]))

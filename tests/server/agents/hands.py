"""The SDK of OpenHands with its terminal: over `messages`, or over chat to `compact`."""

import os
import sys
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.tools.terminal import TerminalTool

kind, base = sys.argv[1], os.environ["BASE"]
if kind == "messages":
    llm = LLM(
        model="anthropic/fake", base_url=base.removesuffix("/v1"), api_key="k", usage_id="agent"
    )
else:
    llm = LLM(model="openai/fake", base_url=base, api_key="k", usage_id="agent")
condenser = None
if kind == "compact":
    summarizer = llm.model_copy(update={"usage_id": "condenser"})
    condenser = LLMSummarizingCondenser(llm=summarizer, max_size=12, keep_first=2)
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)], condenser=condenser)
conversation = Conversation(agent=agent, workspace=str(Path.cwd()))
conversation.send_message("Say hi using the shell.")
conversation.run()
conversation.close()

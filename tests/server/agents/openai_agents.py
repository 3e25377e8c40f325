"""openai-agents: `chat` or `responses`, with a helper agent as a tool, called twice at once."""

import asyncio
import os
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


client = AsyncOpenAI(base_url=os.environ["BASE"], api_key="k")
kind = OpenAIChatCompletionsModel if sys.argv[1] == "chat" else OpenAIResponsesModel
model = kind(model="fake", openai_client=client)
helper = Agent(name="helper", instructions="You add.", model=model, tools=[add])
tools = [add, helper.as_tool("helper", "Ask the helper")]
main = Agent(name="main", instructions="Use the helper.", model=model, tools=tools)
print(asyncio.run(Runner.run(main, "2+3 + 4+5?")).final_output)

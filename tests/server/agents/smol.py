"""smolagents: tool calls become text; `sub` adds a managed agent, `plan` planning calls."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

kind = sys.argv[1]


@tool
def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one
        b: two
    """
    return a + b


model = OpenAIServerModel(model_id="fake", api_base=os.environ["BASE"], api_key="k")
helper = ToolCallingAgent(tools=[add], model=model, name="adder", description="adds numbers")
agent = ToolCallingAgent(
    tools=[add],
    model=model,
    managed_agents=[helper] if kind == "sub" else None,
    planning_interval=2 if kind == "plan" else None,
    max_steps=int(os.environ.get("STEPS", "4")),
)
print(agent.run("2+3 + 4+5?"))

"""langgraph with langchain-openai: `plain`, or `compact` with its summarisation."""

import os
import sys

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


model = ChatOpenAI(model="fake", base_url=os.environ["BASE"], api_key="k")
more = []
if sys.argv[1] == "compact":
    more = [SummarizationMiddleware(model=model, trigger=("messages", 5), keep=("messages", 2))]
agent = create_agent(model, [add], system_prompt="You add.", middleware=more)
question = {"messages": [{"role": "user", "content": "2+3 + 4+5?"}]}
print(agent.invoke(question)["messages"][-1].content)

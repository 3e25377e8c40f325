"""pydantic-ai: `chat`, `responses` or `messages`."""

import os
import sys

from pydantic_ai import Agent

kind, base = sys.argv[1], os.environ["BASE"]
if kind == "messages":
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key="k", base_url=base.removesuffix("/v1"))
    model = AnthropicModel("fake", provider=provider)
else:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kinds = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
    model = kinds[kind]("fake", provider=OpenAIProvider(base_url=base, api_key="k"))
agent = Agent(model, instructions="You add.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


print(agent.run_sync("2+3 + 4+5?").output)

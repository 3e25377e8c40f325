"""OpenHands' agent on one task, from standard input. Runs inside the sandbox.

The first argument is the directory with its packages.
"""

import os
import site
import sys
import warnings
from pathlib import Path

site.addsitedir(sys.argv[1])
os.environ.pop("LD_LIBRARY_PATH", None)  # of this Python, not of the agent's commands
warnings.simplefilter("ignore")  # costs of a model without a price

from openhands.sdk import LLM, Conversation  # noqa: E402
from openhands.sdk.conversation import ConversationExecutionStatus  # noqa: E402
from openhands.tools.preset.default import get_default_agent  # noqa: E402

llm = LLM(
    model=f"openai/{os.environ['TRAJGYM_MODEL']}",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    usage_id="agent",
)
agent = get_default_agent(llm, cli_mode=True)  # without a browser
conversation = Conversation(agent=agent, workspace=str(Path.cwd()), visualizer=None)
conversation.send_message(sys.stdin.read())
conversation.run()
status = conversation.state.execution_status
conversation.close()
print(status.value)
sys.exit(status is not ConversationExecutionStatus.FINISHED)

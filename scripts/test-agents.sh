#!/bin/sh
# Test unmodified agents from the package index with the recording proxy. They have many
# dependencies, so they are installed in a separate environment.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-agents
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --editable '.[server]' pytest pytest-asyncio pytest-timeout \
    'claude-agent-sdk>=0.2' 'openai-agents>=0.20' 'langchain>=1.0' 'langchain-openai>=1.0' 'langgraph>=1.0' \
    'mini-swe-agent>=2.4' 'pydantic-ai-slim[openai,anthropic]>=2.0' 'smolagents[openai]>=1.26'
# Its pins contradict those of others.
[ -d "$venv/aider" ] || "$venv/bin/pip" install --quiet --target "$venv/aider" aider-chat
exec "$venv/bin/python" -m pytest -m agents tests/server/agents "$@"

#!/bin/sh
# Read and write trajectories with the packages that the foreign formats come from. They have many
# dependencies, so they are installed in a separate environment.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-interchange
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --editable '.[data,inspect,server]' pytest pytest-asyncio pytest-timeout \
    'inspect-ai>=0.3.285' 'mini-swe-agent>=2.4' 'openai>=2' 'openenv-core>=0.3' 'verifiers>=0.4' 'pyautogui>=0.9.54'
# Of Atropos, only the API is used, which needs FastAPI alone.
"$venv/bin/pip" install --quiet 'fastapi>=0.115' httpx
"$venv/bin/pip" install --quiet --no-deps 'atroposlib>=0.4'
# Harbor declares Python 3.12; its models of trajectories also work with 3.11 and need pydantic only.
"$venv/bin/pip" install --quiet --no-deps --ignore-requires-python 'harbor>=0.26'
export MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR="$PWD/build/mini" LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$venv/bin/python" -m pytest -m interchange tests/interchange/packages \
    -W ignore::DeprecationWarning -W ignore::UserWarning -W ignore::ResourceWarning "$@"

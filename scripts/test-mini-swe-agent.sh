#!/bin/sh
# Run the unmodified mini-swe-agent from the package index on a task in trajgym's sandboxes. It has
# many dependencies, so it is installed in a separate environment.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-mini
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --editable '.[mini]' pytest pytest-asyncio pytest-timeout
export MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR="$PWD/build/mini" LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$venv/bin/python" -m pytest -m mini tests/swe/test_mini_swe_agent.py \
    -W ignore::DeprecationWarning -W ignore::UserWarning -W ignore::ResourceWarning "$@"

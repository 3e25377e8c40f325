#!/bin/sh
# Read and write trajectories with the packages that the foreign formats come from. They have many
# dependencies, so they are installed in separate environments.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-interchange
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --editable '.[data,inspect,server]' pytest pytest-asyncio pytest-timeout \
    'fastapi>=0.115' 'inspect-ai>=0.3.285' 'mini-swe-agent>=2.4' 'openai>=2' 'openenv-core>=0.3' 'verifiers>=0.4' \
    'pyautogui>=0.9.54'
# Harbor declares Python 3.12; its models of trajectories also work with 3.11 and need pydantic only.
# Of Atropos, only the API is used, which needs FastAPI.
"$venv/bin/pip" install --quiet --no-deps --ignore-requires-python 'atroposlib>=0.4' 'harbor>=0.26'
export MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR="$PWD/build/mini" LITELLM_LOCAL_MODEL_COST_MAP=True
export OPENHANDS_SUPPRESS_BANNER=1

warnings='-W ignore::DeprecationWarning -W ignore::UserWarning -W ignore::ResourceWarning'

# OpenHands needs Python 3.12.
newer=
for python in python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do
    if [ -z "$newer" ] && "$python" -c 'import venv' 2>/dev/null; then newer=$python; fi
done
if [ -n "$newer" ]; then
    venv12=.venv-interchange-openhands
    [ -x "$venv12/bin/python" ] || "$newer" -m venv "$venv12"
    "$venv12/bin/pip" install --quiet --editable . pytest pytest-asyncio pytest-timeout 'openhands-sdk>=1.58'
    # shellcheck disable=SC2086 # several arguments
    "$venv12/bin/python" -m pytest -m interchange tests/interchange/packages $warnings -k openhands
else
    echo 'OpenHands is not tested: there is no Python 3.12 or newer' >&2
fi
# shellcheck disable=SC2086 # several arguments
exec "$venv/bin/python" -m pytest -m interchange tests/interchange/packages $warnings "$@"

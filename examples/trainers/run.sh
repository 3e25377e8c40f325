#!/usr/bin/env bash
# Train on small SWE tasks with one trainer, on a machine with two GPUs.
#
#   examples/trainers/run.sh trl|verl|verl-async|areal MODEL OUT SECONDS [arguments of the trainer]
#
# MODEL is a folder of a fine-tuned model (examples/dense/sft.py). OUT gets a line for each session
# (TRAINER.jsonl), the trainer's own measurements and its log, also if the time is over. Scratch
# goes to WORK, default OUT-work. BUGS sets the difficulty.
set -uo pipefail
trainer=${1:?usage: run.sh TRAINER MODEL OUT SECONDS [ARGUMENT ...]} model=${2:?} out=${3:?} seconds=${4:?}
shift 4
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-$out-work}/$trainer
mkdir -p "$out" "$work"
model=$(cd "$model" && pwd) out=$(cd "$out" && pwd) work=$(cd "$work" && pwd)
end=$(($(date +%s) + seconds))
port=${PORT:-8000}
export TRAINERS=$here ANSWERS=$work/answers
# Not the folder itself: its folder `trl` would look like a package to verl.
export PYTHONPATH=$here/shared:$here/verl:$here/areal${PYTHONPATH:+:$PYTHONPATH}
if ! python3 -c 'import trajgym.rollout' 2>/dev/null; then # without an installed copy
    export PYTHONPATH=$(cd "$here/../.." && pwd):$PYTHONPATH
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=0
export TRL_EXPERIMENTAL_SILENCE=1 RAY_USAGE_STATS_ENABLED=0 WANDB_MODE=disabled HYDRA_FULL_ERROR=1
export RAY_TMPDIR=/tmp/ray-$trainer # two clusters on a machine
export VERL_FILE_LOGGER_PATH=$out/$trainer-steps.jsonl
cd "$work"

limited() { timeout -k 20 $((end - $(date +%s))) "$@"; }

case $trainer in
trl)
    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=1 setsid python3 -m vllm.entrypoints.cli.main serve \
        "$model" --served-model-name policy --host 127.0.0.1 --port "$port" --max-model-len 3584 \
        --gpu-memory-utilization 0.2 --kv-cache-memory-bytes 12G --max-num-seqs 128 --dtype bfloat16 ${SERVE:-} \
        --logprobs-mode processed_logprobs --weight-transfer-config '{"backend":"nccl"}' >"$out/trl-vllm.log" 2>&1 &
    server=$!
    trap 'kill -TERM -- "-$server" 2>/dev/null' EXIT
    until curl -fsS -m 2 "http://127.0.0.1:$port/health" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { echo "the server exited" >&2; exit 1; }
        sleep 1
    done
    CUDA_VISIBLE_DEVICES=0 limited python3 "$here/trl/train.py" --model "$model" --store "$work/runs" \
        --server "http://127.0.0.1:$port" --out "$out/trl" "$@" >"$out/$trainer.log" 2>&1
    ;;
verl | verl-async)
    python3 "$here/verl/prepare.py" --out data >"$out/$trainer.log" 2>&1 || exit 1
    mode=$([[ $trainer == verl ]] && echo sync || echo separate_async)
    limited python3 -m verl.trainer.main_ppo --config-path="$here/verl" --config-name="$mode" \
        actor_rollout_ref.model.path="$model" trajgym.store="$work/runs" hydra.run.dir="$work/hydra" \
        trainer.default_local_dir="$work/checkpoints" "$@" >>"$out/$trainer.log" 2>&1
    ;;
areal)
    limited python3 "$here/areal/train.py" --config "$here/areal/train.yaml" actor.path="$model" \
        cluster.fileroot="$work/files" cluster.name_resolve.nfs_record_root="$work/names" "$@" \
        >"$out/$trainer.log" 2>&1
    ;;
*)
    echo "no trainer $trainer" >&2
    exit 2
    ;;
esac
code=$?
echo "$trainer: exit status $code"
python3 "$here/shared/sessions.py" --store "$work/runs" --answers "$ANSWERS" --out "$out/$trainer.jsonl"
exit "$code"

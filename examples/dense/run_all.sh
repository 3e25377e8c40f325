#!/usr/bin/env bash
# The whole comparison on a machine with GPUs: fine-tuning, the choice of a difficulty, all arms.
#
#   examples/dense/run_all.sh MODEL OUT SECONDS [arguments of learn.py]
#
# MODEL is a folder of a Llama chat model. OUT gets a line for each step, update and evaluation as
# soon as it is known, so its files can be copied at any time. Scratch goes to WORK; a fine-tuned
# model and rows that are already there are used again. Environment:
#   WORK      scratch folder (rows, model, stores, logs), default OUT-work
#   RUNS      ARM:SEED with commas, started in this order
#   ENOUGH    the difficulty is the least of BUGS at which success is at most this; default 0.03
#   BUGS      numbers of bugs that are tried, default 4,5,6
#   SFT       arguments of sft.py
#   EVAL      held-out tasks after the last update, default 96
#   RESERVE   seconds kept for that evaluation, default 150
set -uo pipefail
model=${1:?usage: run_all.sh MODEL OUT SECONDS [ARGUMENT ...]} out=${2:?} seconds=${3:?}
shift 3
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-$out-work}
seeds="0 1 2"
runs=${RUNS:-$(for arm in outcome progress steps gigpo tree; do for s in $seeds; do echo $arm:$s; done; done | paste -sd,)}
mkdir -p "$out" "$work"
end=$(($(date +%s) + seconds - ${RESERVE:-150}))
if ! python3 -c 'import trajgym.rollout' 2>/dev/null; then # without an installed copy
    export PYTHONPATH=$(cd "$here/../.." && pwd)${PYTHONPATH:+:$PYTHONPATH}
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
# Several processes share a GPU: fragments that one of them keeps are missing to the others.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}

say() { echo "[$SECONDS s] $*" | tee -a "$out/run_all.log"; }

if [[ ! -f $work/sft/config.json || ! -f $out/sft.jsonl ]]; then
    python3 "$here/sft.py" --model "$model" --sft "$work/sft" --rows "$work/rows.json" \
        --out "$out" --eval-bugs "${BUGS:-4,5,6}" ${SFT:-} >"$out/sft.log" 2>&1 ||
        { say "fine-tuning failed; see sft.log"; exit 1; }
    say "fine-tuned"
fi
bugs=$(python3 - "$out/sft.jsonl" "${ENOUGH:-0.03}" <<'P'
import json, sys
read = [json.loads(line) for line in open(sys.argv[1])]
tried = {x["bugs"]: x["success"] for x in read if x["kind"] == "prepared"}
print(f"success by bugs: {tried}", file=sys.stderr)
print(min([n for n, found in tried.items() if found <= float(sys.argv[2])] or [max(tried)]))
P
) || { say "no evaluation of the fine-tuned model"; exit 1; }
say "$bugs bugs, runs $runs"
python3 "$here/many.py" --runs "$runs" --logs "$out" -- --model "$work/sft" --out "$out" \
    --work "$work/stores" --bugs "$bugs" --deadline "$end" --eval-last "${EVAL:-96}" "$@"
say "runs ended, $? of them failed"
python3 "$here/curves.py" --results "$out" --out "$out" >"$out/summary.jsonl" 2>"$out/curves.log"
say "finished"

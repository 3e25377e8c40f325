#!/usr/bin/env bash
# Run the whole experiment on a machine with two GPUs: vLLM on GPU 1, the trainer on GPU 0.
#
#   examples/gpu/run_all.sh MODEL OUT SECONDS [arguments of train_async.py]
#
# MODEL is the directory of SmolLM2-135M-Instruct. Results and the ends of the logs are written to
# OUT, even if the run fails. Another call with the same WORK resumes where this one ended.
# Environment variables:
#   WORK          scratch directory (stores, weights, logs), default OUT-work
#   PHASES        see driver.py
#   PREPARE       arguments of prepare.py
#   PORT          port of the server, default 8000
#   SERVE         further arguments of vllm serve (--enforce-eager starts faster, samples slower)
#   KEEP_SERVER=1 leave the server running for the next call
set -uo pipefail
model=${1:?usage: run_all.sh MODEL OUT SECONDS [ARGUMENT ...]} out=${2:?} seconds=${3:?}
shift 3
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$out-work} port=${PORT:-8000}
mkdir -p "$out" "$work"
model=$(cd "$model" && pwd) out=$(cd "$out" && pwd) work=$(cd "$work" && pwd)
end=$((SECONDS + seconds))
server= driver= watcher=

# If trajgym is not installed, import it from the checkout.
if ! python3 -c 'import trajgym.adapters' 2>/dev/null; then
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 VLLM_NO_USAGE_STATS=1
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 HF_HUB_DISABLE_TELEMETRY=1

say() { echo "[$SECONDS s] $*" | tee -a "$out/run_all.log"; }

# Each job has its own process group, so that its children are ended with it.
end_job() {
    local pid=$1
    [[ -n $pid ]] && kill -TERM -- "-$pid" 2>/dev/null || return 0
    for _ in $(seq 20); do kill -0 -- "-$pid" 2>/dev/null || break; sleep 0.5; done
    kill -KILL -- "-$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
}

start_server() {
    rm -f "$work/server.pid"
    VLLM_SERVER_DEV_MODE=1 VLLM_USE_FLASHINFER_SAMPLER=0 CUDA_VISIBLE_DEVICES=1 \
    setsid python3 -m vllm.entrypoints.cli.main serve "$model" --served-model-name policy \
        --host 127.0.0.1 --port "$port" --max-model-len 4096 --gpu-memory-utilization 0.5 \
        --dtype bfloat16 --logprobs-mode processed_logprobs \
        --weight-transfer-config '{"backend":"nccl"}' ${SERVE:-} >>"$work/vllm.log" 2>&1 &
    server=$!
    echo "$server" >"$work/server.pid"
    say "server started, pid $server"
}

start_driver() {
    local left=$((end - SECONDS - 20))
    CUDA_VISIBLE_DEVICES=0 setsid python3 "$here/driver.py" --base "$model" --work "$work/runs" \
        --out "$out" --seconds "$left" --server "http://127.0.0.1:$port" \
        ${PHASES:+--phases "$PHASES"} "--prepare=${PREPARE:-}" -- "$@" >>"$work/driver.log" 2>&1 &
    driver=$!
    say "driver started, pid $driver, $left s left"
}

finish() {
    trap - EXIT INT TERM
    end_job "$driver"
    end_job "$watcher"
    if [[ ${KEEP_SERVER:-0} != 1 ]]; then end_job "$server"; rm -f "$work/server.pid"; fi
    tail -c 3000000 "$work/driver.log" >"$out/driver.log" 2>/dev/null
    tail -c 1000000 "$work/vllm.log" >"$out/vllm.log" 2>/dev/null
    if [[ -f $work/runs/outcome-0/updates.json ]]; then
        tar -C "$work/runs" --exclude='*.pt' --exclude=trainer -czf "$out/outcome-0.tgz" outcome-0
        [[ $(stat -c %s "$out/outcome-0.tgz") -lt 15000000 ]] || rm -f "$out/outcome-0.tgz"
    fi
    say "finished"
}
trap finish EXIT
trap 'exit 130' INT TERM

python3 - <<'P' || { say "packages are missing"; exit 1; }
import importlib.util, sys
wanted = ["aiohttp", "datasets", "numpy", "pydantic", "requests", "tenacity", "torch",
          "transformers", "trl", "vllm"]
missing = [name for name in wanted if importlib.util.find_spec(name) is None]
print("missing packages:", missing, file=sys.stderr) if missing else None
sys.exit(bool(missing))
P

setsid nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv,noheader,nounits \
    -l 2 >"$out/gpu.csv" 2>/dev/null &
watcher=$!

server=$(cat "$work/server.pid" 2>/dev/null)
if [[ -n $server ]] && kill -0 "$server" 2>/dev/null &&
    curl -fsS -m 5 "http://127.0.0.1:$port/health" >/dev/null 2>&1; then
    say "using the server of an earlier call, pid $server"
else
    end_job "$server"
    start_server
fi
start_driver "$@"
tries=1
while ((SECONDS < end)); do
    sleep 2
    again=
    if ! kill -0 "$driver" 2>/dev/null; then
        wait "$driver"
        code=$?
        say "driver exited with $code"
        ((code == 0)) && exit 0
        again=1
    elif ! kill -0 "$server" 2>/dev/null; then
        say "server exited; see vllm.log"
        again=1
    fi
    [[ -n $again ]] || continue
    if ((tries >= 3 || end - SECONDS < 150)); then exit 1; fi
    # A failed weight transfer leaves the server paused, so both are restarted; completed phases
    # are not repeated.
    tries=$((tries + 1))
    end_job "$driver"
    end_job "$server"
    start_server
    start_driver "$@"
done
say "time limit reached"
exit 0

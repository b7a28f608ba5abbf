#!/bin/bash
#SBATCH --job-name=azr_coder7b_ppo
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=352G
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@900
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Trains azr_coder7b_ppo on one node of eight GPUs. Send it from the clone's folder, with any options of the config:
#   sbatch examples/slurm.sh --run.steps 500
# Copy it and change the recipe in the line that begins with "azr run". The job's name names the run: a job goes on with
# orz_ckpt/NAME where that has a checkpoint. Sizes: azr plan RECIPE says how many GPUs a run takes and how much host
# memory; --mem is that and 32 GB, --cpus-per-task is 8 for each GPU of a node. Partition and account are yours to add,
# here or as options of sbatch.
# All nodes see the clone's folder, with .venv and orz_ckpt in it, and HF_HOME, at the same path.
# Sandboxes of model-written code are containers if the nodes have a Docker engine that your user may use, else
# bubblewrap's or namespaces, which need user namespaces and no rights: srun .venv/bin/azr doctor says what there is.
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export PATH="$PWD/.venv/bin:$PATH" RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
ulimit -n 65536 || true

# Slurm sends SIGTERM some time before it ends the job: the run saves itself, and the job goes back to the queue.
stopped= run=
trap 'stopped=1; [ -z "$run" ] || kill -TERM "$run"' TERM
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Ports by the job's number, since other jobs on this node may have a Ray of their own.
port=$((20000 + SLURM_JOB_ID % 10000))
workers=$((10100 + SLURM_JOB_ID % 49 * 200))
ports=(--min-worker-port "$workers" --max-worker-port "$((workers + 198))")
client=$((workers + 199))
# Homes are often on a network, where forty processes that compile kernels wait for each other.
export AZR_CACHE="${AZR_CACHE:-${TMPDIR:-/tmp}/azr_$USER}"
# srun takes the job's CPUs over from this variable only: without it Ray and all that it starts would share one core.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
# This node's address as the job's last node sees it: here the name may mean 127.0.1.1.
name=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
last=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
head=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$last" getent ahostsv4 "$name" | awk 'NR == 1 {print $1}')
srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" \
    ray start --head --node-ip-address "$head" --port "$port" "${ports[@]}" --ray-client-server-port "$client" \
    --include-dashboard false --disable-usage-stats --block &
until ray status --address "$head:$port" >/dev/null 2>&1; do
    [ "$SECONDS" -lt 300 ] || { echo "Ray did not start on $head" >&2; exit 1; }
    sleep 2
done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$SLURMD_NODENAME" \
        ray start --address "$head:$port" "${ports[@]}" --disable-usage-stats --block &
fi

resume=()
if compgen -G "orz_ckpt/$SLURM_JOB_NAME/checkpoints/step_*" >/dev/null; then resume=(--resume); fi
azr run azr_coder7b_ppo "$@" --run.name "$SLURM_JOB_NAME" --cluster.address "$head:$port" "${resume[@]}" &
run=$!
code=0
wait "$run" || code=$?
if [ "$stopped" ]; then
    wait "$run" || code=$?
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

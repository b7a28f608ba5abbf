#!/usr/bin/env bash
# The training image for machines without a GPU, built and used: doctor, two steps of the mini with the executor's Docker
# backend through the mounted socket, and two more that join a cluster of the compose file's head and worker.
#   .ci/image.sh          after .ci/run's walls are up; takes some minutes
# Packages are fetched here, with this machine's pip settings, and served to the build, which reaches no index.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
base=$(sed -n 's/^ARG BASE=//p' azr/executor/image/Dockerfile)
export RAY_AUTH_TOKEN="$(python3 -c 'import secrets; print(secrets.token_hex(16))')"
export AZR_RUNS="$work/runs" HF_CACHE="$work/huggingface" AZR_CACHE="$work/kernels"
cluster() { docker-compose -p azr-ci -f "$work/compose.yaml" --profile worker "$@"; }
step() { echo "image: $* ($SECONDS s)"; }
server=
end() {
    test ! -e "$work/compose.yaml" || cluster down -t 5 >"$work/down" 2>&1 || cat "$work/down"
    test -z "$server" || kill "$server"
    rm -rf "$work"
}
trap end EXIT

step fetch packages
mkdir "$work/wheels"
.venv/bin/pip download -q --no-deps --no-build-isolation -r requirements/cpu.lock -d "$work/wheels" 2>"$work/fetched" \
    || { tail -n 20 "$work/fetched" >&2; exit 1; }
python3 -u -m http.server --bind 127.0.0.1 --directory "$work/wheels" 0 >"$work/served" 2>&1 &
server=$!
until port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/served") && test -n "$port"; do sleep 0.1; done

step build
DOCKER_BUILDKIT=0 docker build -q --network host --build-arg "BASE=$base" --build-arg FLAVOUR=cpu -t azr \
    --build-arg "PIP_FIND_LINKS=http://127.0.0.1:$port/" --build-arg PIP_NO_INDEX=1 . >"$work/built" 2>&1 \
    || { tail -n 40 "$work/built" >&2; exit 1; }
docker image inspect -f 'image: {{.Size}} bytes' azr

step doctor and two steps, alone
mkdir -p "$AZR_RUNS" "$HF_CACHE" "$AZR_CACHE"
chown 1000:1000 "$AZR_RUNS" "$HF_CACHE" "$AZR_CACHE"
export DOCKER_GID=$(stat -c %g /var/run/docker.sock)
run=(docker run --rm --network host --ipc host --group-add "$DOCKER_GID" -v "$AZR_RUNS:/azr/orz_ckpt" -v /var/run/docker.sock:/var/run/docker.sock azr)
"${run[@]}" azr doctor
"${run[@]}" python -m playground.azr_14m_mini --executor.backend docker --run.steps 2 \
    --eval.limit 48 --run.name alone
test "$(grep -c seconds/step "$AZR_RUNS/alone/metrics.jsonl")" = 2

# The file as it is, but for GPUs and for limits that only a machine's own engine may raise. On one machine the two nodes
# share its address, so the worker says another.
step two steps in a cluster of head and worker
.venv/bin/python - docker/compose.yaml "$work/compose.yaml" <<'P'
import sys, yaml
tree = yaml.safe_load(open(sys.argv[1]))
for service in tree["services"].values():
    service.pop("deploy"), service.pop("ulimits"), service.pop("build")
tree["services"]["worker"]["command"] += " --node-ip-address 127.0.0.2"
tree.pop("x-node")
yaml.safe_dump(tree, open(sys.argv[2], "w"))
P
cluster up -d head >"$work/up" 2>&1 || { cat "$work/up" >&2; exit 1; }
within() { for _ in $(seq 60); do if "$@" >"$work/answer" 2>&1; then return; fi; sleep 2; done; cat "$work/answer" >&2; return 1; }
within cluster exec -T head ray status
HEAD_ADDRESS=127.0.0.1 cluster up -d worker >"$work/up" 2>&1 || { cat "$work/up" >&2; exit 1; }
nodes() { cluster exec -T head ray status | tee /dev/stderr | grep -c '^ 1 node_' | grep -qx 2; }
within nodes
cluster exec -T head python -m playground.azr_14m_mini --cluster.address auto --executor.backend docker --run.steps 2 \
    --eval.limit 48 --run.name joined
test "$(grep -c seconds/step "$AZR_RUNS/joined/metrics.jsonl")" = 2
step done

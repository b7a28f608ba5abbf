# What the tests need on a bare Debian machine: for sandboxes a Docker engine, bubblewrap, the executor image's base, and
# gVisor where the release has it; for the explorer's pages a browser. Read by run. What is there already is left as it is.

ENGINE=
LOGS=$(mktemp -d)

engine_answers() { docker version >/dev/null 2>&1; }

install_packages() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$LOGS/apt" 2>&1 \
        || { tail -n 20 "$LOGS/apt" >&2; return 1; }
}

install_missing() {
    local missing=()
    command -v dockerd >/dev/null || engine_answers || missing+=(docker.io cgroupfs-mount)
    command -v bwrap >/dev/null || missing+=(bubblewrap)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v runsc >/dev/null || missing+=(runsc)
    command -v docker-compose >/dev/null || missing+=(docker-compose)
    command -v chromium >/dev/null || missing+=(chromium)
    test ${#missing[@]} -gt 0 || return 0
    apt-get update -qq
    if ! apt-cache show runsc >/dev/null 2>&1; then missing=("${missing[@]/runsc/}"); fi
    install_packages ${missing[@]}
    # Newer releases have the engine's command in a package of its own.
    command -v docker >/dev/null || install_packages docker-cli
}

start_engine() {
    engine_answers && return
    # Without systemd nobody has mounted the limits' file systems.
    if command -v cgroupfs-mount >/dev/null && ! test -e /sys/fs/cgroup/cgroup.controllers; then cgroupfs-mount; fi
    local gvisor=()
    # Where its kernel cannot run, the test of it is skipped. It needs no network either.
    if timeout 30 runsc --network=none do true >"$LOGS/runsc-probe" 2>&1; then
        printf '#!/bin/sh\nexec runsc --network=none "$@"\n' >"$LOGS/runsc"
        chmod +x "$LOGS/runsc"
        gvisor=(--add-runtime "runsc=$LOGS/runsc")
    fi
    # Sandboxes have no network, so the engine needs no bridge and no rules for one.
    dockerd --bridge=none --iptables=false --ip6tables=false "${gvisor[@]}" >"$LOGS/dockerd" 2>&1 &
    ENGINE=$!
    for _ in $(seq 150); do
        if engine_answers; then return; fi
        kill -0 "$ENGINE" 2>/dev/null || break
        sleep 0.2
    done
    tail -n 20 "$LOGS/dockerd" >&2
    return 1
}

make_base_image() {
    local base
    base=$(sed -n 's/^ARG BASE=//p' azr/executor/image/Dockerfile)
    docker image inspect "$base" >/dev/null 2>&1 && return
    timeout 120 docker pull -q "$base" >/dev/null 2>&1 && return
    azr/executor/image/base-image.sh >"$LOGS/base-image" 2>&1 || { tail -n 20 "$LOGS/base-image" >&2; return 1; }
}

clean_up() {
    if test -n "$ENGINE"; then
        kill "$ENGINE" 2>/dev/null || true
        wait "$ENGINE" || true
    fi
    rm -rf "$LOGS"
}

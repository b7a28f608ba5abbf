#!/usr/bin/env bash
# Makes the executor image's base where no registry can be reached: Debian with its Python 3.11, under the tag that the
# Dockerfile names. Needs root, debootstrap, a Debian mirror and a running Docker engine.
#   sudo azr/executor/image/base-image.sh [MIRROR]
set -euo pipefail
cd "$(dirname "$0")"
mirror=${1:-http://deb.debian.org/debian}
base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=python3 bookworm "$root/debian" "$mirror"
ln -s python3 "$root/debian/usr/bin/python"
rm -rf "$root"/debian/var/cache/apt "$root"/debian/var/lib/apt/lists "$root"/debian/usr/share/{doc,man,locale}
tar -C "$root/debian" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . \
    | docker import --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$base"

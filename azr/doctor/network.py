"""Address of this machine and its InfiniBand adapters, which a run over several machines needs."""

from __future__ import annotations

import socket
from ctypes.util import find_library
from pathlib import Path

from azr.doctor import Finding, FindingGroup, info, ok, warning
from azr.hardware import network_environment


def network_section(infiniband: Path = Path("/sys/class/infiniband"), dev: Path = Path("/dev")) -> FindingGroup:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 1))  # sends nothing, as Ray does it
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "nothing"
    return FindingGroup(title="Network", findings=[_address(address, named), _adapters(infiniband, dev)])


def _address(address: str, named: str) -> Finding:
    interface = network_environment(address).get("GLOO_SOCKET_IFNAME", "no interface")
    if address.startswith("127."):
        return warning("address", "no route leads to other machines: for a cluster, ray start --node-ip-address")
    other = f"; the host's name means {named}, which trainers do not announce" if named != address else ""
    return ok("address", f"{address} on {interface}{other}")


def _adapters(infiniband: Path, dev: Path) -> Finding:
    names = ", ".join(sorted(each.name for each in infiniband.glob("*")))
    if not names:
        return info("InfiniBand", "no adapter, so machines would talk by TCP")
    if not (dev / "infiniband").is_dir():
        remedy = "start the container with --device /dev/infiniband --cap-add IPC_LOCK"
        return warning("InfiniBand", f"{names}, and no /dev/infiniband, so NCCL takes TCP: {remedy}")
    if find_library("ibverbs") is None:
        remedy = "apt-get install libibverbs1 ibverbs-providers rdma-core"
        return warning("InfiniBand", f"{names}, and no libibverbs, so NCCL takes TCP: {remedy}")
    return ok("InfiniBand", names)

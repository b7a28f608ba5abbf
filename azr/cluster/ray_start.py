"""Starts Ray on this machine, or joins a running cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
from datetime import datetime

import ray
from ray.exceptions import AuthenticationError

from azr.config import ClusterConfig
from azr.errors import UserError

CPU_SLOTS = 8
"""CPU slots of a cluster started here. They are bookkeeping: a machine of any size runs the same actors."""
CONNECT_S = 10.0
MAX_SOCKET_PATH = 107
"""Longest path of a Unix socket, bytes; `sockaddr_un` of Linux holds 108 with the null byte."""


def start_ray(cluster: ClusterConfig, places: int = 1) -> None:
    """Join the cluster at `cluster.address`, or start one on this machine. Does nothing if Ray already runs.

    Raises UserError if no cluster answers at the address, or if it refuses this process.
    """
    if ray.is_initialized():
        return
    # Every worker of a run is an actor with a process of its own; idle ones would only slow the start down. A record of
    # every call, which is not read here, would grow with the run.
    os.environ.update(
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_prestart_worker_first_driver": "0",
            "RAY_task_events_report_interval_ms": "0",
        }
    )
    # Says at every start that the cluster wants a token, which Ray makes and uses by itself.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    quiet = {"logging_level": logging.WARNING, "log_to_driver": False}
    if cluster.address is None:
        check_socket_paths()
        slots = max(CPU_SLOTS, places)
        ray.init(address="local", num_cpus=slots, include_dashboard=False, **quiet)
        return
    problem = (
        f"no Ray cluster answers at {cluster.address!r}: run `ray start --head` there first, "
        "or leave cluster.address out to start one on this machine"
    )
    try:
        if _listens(cluster.address):
            problem = (
                f"what listens at {cluster.address!r} does not take this process in: RAY_AUTH_MODE, the token "
                "(RAY_AUTH_TOKEN or ~/.ray/auth_token) and the version of Ray must be those of the cluster's head"
            )
        ray.init(address=cluster.address, **quiet)
    except (OSError, AuthenticationError) as error:
        raise UserError(problem) from error


def check_socket_paths() -> None:
    """Raise UserError when the folder of temporary files has so long a path that Ray cannot make its sockets in it."""
    # As ray._private.node names its session and, with the longest path of all sockets, that of its object store.
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), None)
    folder = os.environ[variable] if variable else "/tmp"
    session = f"session_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}_{os.getpid()}"
    excess = len(os.fsencode(os.path.join(folder, "ray", session, "sockets", "plasma_store"))) - MAX_SOCKET_PATH
    if excess > 0:
        raise UserError(
            f"{variable} is {folder}, whose path is too long for Ray's sockets: set it to a folder whose path has at "
            f"most {len(os.fsencode(folder)) - excess} bytes, such as /tmp."
        )


def _listens(address: str) -> bool:
    """Whether the address is a host and a port. Raises OSError if nothing listens: Ray would retry for minutes."""
    if not re.fullmatch(r"[^/]+:\d+", address):
        return False
    host, port = address.rsplit(":", 1)
    socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    return True

"""Reaching another machine, or another process through a socket."""

from tests import tables
from tests.executor.hostile.attack import DENIED, PROGRAMS, ROUTES, Family

NETWORK = Family("network")
_ROUTED = DENIED + " LookupError"

for _name, _program in tables.values(PROGRAMS, "network: programs"):
    NETWORK.add(_name, DENIED, _program)
for _name, _error, _program in tables.values(PROGRAMS, "network: with routes"):
    NETWORK.add(_name, f"{_ROUTED} {_error}", ROUTES + _program)
for _name, _arguments in tables.values(PROGRAMS, "network: calls"):
    NETWORK.add_call(f"raw call: {_name}", _arguments)

SOCKETS = Family("Unix sockets")
_UNIX = (
    ROUTES
    + """
def f():
    space = namespace('socket')
    one = space['socket'](space['AF_UNIX'], space['SOCK_STREAM'])
    one.connect(ADDRESS)
    one.send(b'@mark@')
    return one.recv(100)
"""
)
for _name, _address in {
    "the Docker engine": "'/var/run/docker.sock'", "the engine, other path": "'/run/docker.sock'",
    "containerd": "'/run/containerd/containerd.sock'", "the system bus": "'/run/dbus/system_bus_socket'",
    "a listener of ours by path": "'@socket@'", "a listener of ours, abstract": "'\\\\0@abstract@'",
    "the display": "'/tmp/.X11-unix/X0'", "an ssh agent": "'/tmp/ssh-agent/agent.1'",
}.items():  # fmt: skip
    SOCKETS.add(_name, _ROUTED, _UNIX.replace("ADDRESS", _address.replace("\\\\", "\\")))

"""Reaching another machine, or another process through a socket."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

from tests.executor.hostile.attack import DENIED, ROUTES, Family

NETWORK = Family("network")
_ROUTED = DENIED + " LookupError"

for _name, _program in {
    "the socket module": "import socket\ndef f(): socket.create_connection(('127.0.0.1', @tcp@))",
    "the C module by name": "import _socket\ndef f(): return _socket.socket().fileno()",
    "a web page": "import urllib.request\ndef f(): urllib.request.urlopen('http://127.0.0.1:@tcp@')",
    "a web page by http.client": "from http.client import HTTPConnection\ndef f(): 1",
    "an event loop": "import asyncio\ndef f(): asyncio.run(asyncio.open_connection('127.0.0.1', @tcp@))",
    "mail": "import smtplib\ndef f(): smtplib.SMTP('127.0.0.1', @tcp@)",
}.items():
    NETWORK.add(_name, DENIED, _program)
for _name, _error, _program in (
    ("the module that the zygote used", "", "def f(): namespace('socket')['create_connection'](('127.0.0.1', @tcp@)).send(b'@mark@')"),
    ("a datagram with the class that the zygote used", "StopIteration", """
def f():
    kind = next(c for c in classes() if c.__name__ == 'socket' and c.__module__ == '_socket')
    return kind(2, 2).sendto(b'@mark@', ('127.0.0.1', @udp@))
"""),
    ("look up a name", "gaierror", "def f(): namespace('socket')['getaddrinfo']('@mark@.org', 80)"),
    ("the local resolver", "gaierror", "def f(): namespace('socket')['gethostbyname']('localhost')"),
):  # fmt: skip
    NETWORK.add(_name, f"{_ROUTED} {_error}", ROUTES + _program)
for _name, _arguments in {
    "TCP": "41, 2, 1, 0", "TCP over IPv6": "41, 10, 1, 0", "UDP": "41, 2, 2, 0", "raw ICMP": "41, 2, 3, 1",
    "ping": "41, 2, 2, 1", "netlink": "41, 16, 3, 0", "packets": "41, 17, 3, 768", "vsock": "41, 40, 1, 0",
    "bluetooth": "41, 31, 3, 1", "the kernel's ciphers": "41, 38, 5, 0", "a Unix socket": "41, 1, 1, 0",
    "a pair of Unix sockets": "53, 1, 1, 0, bytes(8)",
    "connect an inherited descriptor": "42, 0, bytes([2, 0]) + (@tcp@).to_bytes(2, 'big') + bytes([127, 0, 0, 1]) + bytes(8), 16",
    "send on an inherited descriptor": "44, 0, b'@mark@', 6, 0, bytes(16), 16", "send a message": "46, 3, bytes(56), 0",
    "receive descriptors": "47, 3, bytes(56), 0", "listen": "50, 0, 5", "accept": "43, 0, 0, 0",
    "io_uring": "425, 8, bytes(120)", "io_uring enter": "426, 3, 1, 1, 0, 0, 0",
}.items():  # fmt: skip
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

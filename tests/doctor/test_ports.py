"""Ports of a Ray head: real sockets, and a /proc of our own making."""

import socket

from azr.doctor import ports
from azr.doctor.findings import Mark


def test_a_port_is_taken_while_somebody_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def process(proc, number, name, *command):
    folder = proc / str(number)
    folder.mkdir()
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in command))


def test_heads_are_found_by_their_process(tmp_path):
    process(tmp_path, 10, "gcs_server", "gcs_server", "--gcs_server_port=6379", "--metrics-agent-port=0")
    process(tmp_path, 11, "gcs_server", "gcs_server", "--gcs_server_port=0")
    process(tmp_path, 12, "python", "python", "--gcs_server_port=7000")
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    assert ports.heads(tmp_path) == {6379}


def marks(clusters, free) -> list[tuple[Mark, str]]:
    return [(each.mark, each.says) for each in ports.check(clusters, free).findings]


def test_what_is_said_of_each_port():
    assert {mark for mark, _ in marks(set(), lambda port: True)} == {Mark.OK}
    (head, says), *others = marks({6379}, lambda port: False)
    assert head is Mark.OK and "--cluster.address auto" in says
    assert {mark for mark, _ in others} == {Mark.OK}
    strangers = marks(set(), lambda port: port != 8265)
    assert [mark for mark, _ in strangers] == [Mark.OK, Mark.WARNING, Mark.OK]
    assert "--dashboard-port PORT" in strangers[1][1]
    assert ports.check(set(), lambda port: False).ok

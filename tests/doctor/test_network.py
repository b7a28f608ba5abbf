"""What several machines would talk by."""

import socket

import psutil

from azr.doctor import Finding, Mark, machine


def test_adapters_that_nccl_cannot_use_are_named_with_the_remedy(tmp_path, monkeypatch):
    infiniband, dev = tmp_path / "infiniband", tmp_path / "dev"

    def found() -> Finding:
        address, adapters = machine.network_section(infiniband, dev).findings
        assert address.mark is not Mark.MISSING
        return adapters

    assert found().mark is Mark.INFO
    (infiniband / "mlx5_0").mkdir(parents=True)
    assert found().mark is Mark.WARNING and "--device /dev/infiniband" in found().message
    (dev / "infiniband").mkdir(parents=True)
    for library, mark in ((None, Mark.WARNING), ("libibverbs.so.1", Mark.OK)):
        monkeypatch.setattr(machine, "find_library", lambda name, library=library: library)
        assert found().mark is mark and "mlx5_0" in found().message


def test_a_name_that_means_the_machine_itself_is_said_and_no_route_is_a_warning():
    name, address = next(
        (name, each.address) for name, held in psutil.net_if_addrs().items() for each in held
        if each.family is socket.AF_INET and not each.address.startswith("127.")
    )  # fmt: skip
    found = machine._address(address, "127.0.1.1")
    assert found.mark is Mark.OK
    assert found.message == f"{address} on {name}; the host's name means 127.0.1.1, which trainers do not announce"
    assert machine._address("127.0.0.1", "127.0.1.1").mark is Mark.WARNING

"""The profile of an update: its table by phase, and the file for a viewer."""

from __future__ import annotations

from azr.train.profile import by_phase, table


def test_what_no_operation_took_is_idle() -> None:
    rows = [("nvjet_hsh_128x256", 4.0), ("flash_fwd_kernel", 1.0), ("ncclDevKernel_AllGather", 0.5), ("aten::mul", 2.0)]
    phases = by_phase(rows, 10.0)
    assert phases == {"matrix products": 5.0, "communication": 0.5, "memory-bound": 2.0, "idle": 2.5}
    assert table(phases).splitlines()[0].split() == ["matrix", "products", "5.000", "s", "50.0%"]
    assert by_phase(rows, 1.0)["idle"] == 0.0

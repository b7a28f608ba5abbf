"""The profile of an update: its table by phase, and the file for a viewer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from azr.train.profile import by_phase, profiled, table


def test_what_no_operation_took_is_idle() -> None:
    rows = [("nvjet_hsh_128x256", 4.0), ("flash_fwd_kernel", 1.0), ("ncclDevKernel_AllGather", 0.5), ("aten::mul", 2.0)]
    phases = by_phase(rows, 10.0)
    assert phases == {"matrix products": 5.0, "communication": 0.5, "memory-bound": 2.0, "idle": 2.5}
    assert table(phases).splitlines()[0].split() == ["matrix", "products", "5.000", "s", "50.0%"]
    assert by_phase(rows, 1.0)["idle"] == 0.0


def test_an_update_on_a_cpu_has_a_table_and_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "run" / "profile_1.json.gz"
    a = torch.randn(256, 256, requires_grad=True)
    with profiled(trace, torch.device("cpu")) as phases:
        for _ in range(20):
            (a @ a).sum().backward()
    assert phases["matrix products"] > phases["communication"] == 0.0 < phases["memory-bound"]
    assert phases["idle"] >= 0
    assert any(
        event.get("name") == "aten::mm" for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    )

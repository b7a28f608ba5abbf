"""Prometheus: the last step's numbers at an address that a Prometheus server scrapes. Nothing is sent by itself."""

from __future__ import annotations

import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from azr.config import Config
from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.metrics import Metrics
from azr.runs.trackers.base import NOTHING, Table, Tracker, bins, first_line, need
from azr.tasks.registry import KINDS

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value of a gauge."""
ROLES = ("proposer", "solver")
PHASES = {"seconds": "phase_seconds", "start": "start_seconds", "tokens_per_s": "phase_tokens_per_second"}
"""Parts whose numbers are one gauge each, labelled by phase."""
UNITS = {"cpu_ms_per_": ("cpu_seconds_per_", 1e-3), "push_gb_s": ("push_bytes_per_second", 1e9)}
"""Beginnings of quantities that are not in base units: the name in base units, and what the value is multiplied by."""


class PrometheusTracker(Tracker):
    """Gauges of the last step with the labels kind, role, phase and so on, a counter of steps, the time of the last."""

    label: ClassVar[str] = "Prometheus"

    def __init__(self) -> None:
        self._server: Any = None
        self._thread: Any = None
        self._step = 0
        self._time = 0.0
        self._metrics: Metrics = {}

    @classmethod
    def check(cls, config: Config) -> None:
        need("prometheus_client", "prometheus")
        host, port = _address(config)
        try:
            # As the server does it: what has just been closed is free.
            socket.create_server((host, port), reuse_port=False).close()
        except OSError as error:
            raise UserError(
                f"Nothing can listen on tracking.address={config.tracking.address} ({first_line(error)}): choose "
                "another, or port 0 for any that is free."
            ) from error

    def open(self, run: Path, config: Config) -> int:
        client = import_module("prometheus_client")
        self._run = run.name
        registry = client.CollectorRegistry()
        registry.register(self)
        host, port = _address(config)
        self._server, self._thread = client.start_http_server(port, addr=host, registry=registry)
        return NOTHING

    def write(self, step: int, metrics: Metrics) -> None:
        self._step, self._time, self._metrics = step, time.time(), metrics

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        """It has none."""

    def close(self, *, complete: bool) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def where(self) -> str | None:
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}/metrics"

    def collect(self) -> Iterator[Any]:
        """What the library asks for at every scrape."""
        core = import_module("prometheus_client.core")
        info = core.GaugeMetricFamily("azr_run_info", "1, with the run's name and the version of its code")
        info.add_sample("azr_run_info", {"run": self._run, "version": code_version()}, 1.0)
        steps = core.CounterMetricFamily("azr_steps", "Steps done", value=self._step)
        yield from (info, steps)
        if self._time:
            yield core.GaugeMetricFamily("azr_last_step_timestamp_seconds", "When it was done", value=self._time)
        families: defaultdict[str, list[Sample]] = defaultdict(list)
        for name, value in self._metrics.items():
            for sample in samples(name, value):
                families[sample[0]].append(sample)
        for name, some in families.items():
            family = core.GaugeMetricFamily(name, "Of the last step; docs/observability.md says how it is called")
            for _, labels, value in some:
                family.add_sample(name, labels, value)
            yield family


def samples(name: str, value: float | int | list[int]) -> list[Sample]:
    """The gauges of a metric of `azr.runs.metrics`: ``KIND/solver/accuracy`` is
    ``azr_accuracy{kind="KIND", role="solver"}``."""
    part, _, rest = name.partition("/")
    labels: dict[str, str] = {}
    if part in KINDS:
        labels["kind"] = part
        part, _, rest = rest.partition("/")
    if part in ROLES:
        labels["role"] = part
        part, _, rest = rest.partition("/")
    if labels:
        if isinstance(value, list):
            counts = zip(bins(value), value, strict=True)
            gauge = f"azr_{_word(part.removesuffix('_hist'))}_tasks"
            return [(gauge, {**labels, "rate": f"{rate:.3f}"}, float(count)) for rate, count in counts]
        if part == "funnel":
            return [("azr_funnel_proposals", {**labels, "stage": rest}, float(value))]
        if part in ("malformed", "ungraded") and rest:
            return [(f"azr_{part}_responses", {**labels, "reason": rest}, float(value))]
        if part == "tokens":
            return [("azr_response_tokens", {**labels, "statistic": rest}, float(value))]
        if part == "response_length":
            part = "response_length_tokens"
        return [(f"azr_{_word('/'.join(filter(None, (part, rest))))}", labels, float(value))]
    if isinstance(value, list):
        return [(f"azr_{_word(name)}", {"bin": str(at)}, float(count)) for at, count in enumerate(value)]
    if part in PHASES and rest:
        return [(f"azr_{PHASES[part]}", {"phase": rest}, float(value))]
    if part == "programs" and rest.count("/"):
        kind, _, rest = rest.partition("/")
        return [(f"azr_programs_{_word(rest)}", {"kind": kind}, float(value))]
    if part == "buffer" and rest in KINDS:
        return [("azr_buffer_tasks", {"kind": rest}, float(value))]
    if part == "eval" and rest.count("/"):
        suite, *group, measure = rest.split("/")
        return [("azr_eval", {"suite": suite, "group": "/".join(group), "measure": measure}, float(value))]
    if rest.startswith("push_s_"):
        return [(f"azr_{part}_push_part_seconds", {"part": rest.removeprefix("push_s_")}, float(value))]
    for beginning, (base, factor) in UNITS.items():
        if rest.startswith(beginning):
            rest, value = rest.replace(beginning, base, 1), value * factor
    rest = re.sub("_s$", "_seconds", rest)
    return [(f"azr_{_word('/'.join(filter(None, (part, rest))))}", {}, float(value))]


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _address(config: Config) -> tuple[str, int]:
    host, _, port = config.tracking.address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"tracking.address is {config.tracking.address!r}; write HOST:PORT, as 127.0.0.1:9464.")
    return host, int(port)

import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from azr.config import Config, TrackingConfig
from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.metrics import Metrics
from azr.runs.trackers.prometheus import ADDRESS, PrometheusTracker, samples
from tests.runs.trackers.factory import Play, config

HERE = Path(__file__).parent
GRAFANA = HERE.parents[2] / "docker" / "grafana"
STEP: Metrics = json.loads((HERE / "step_of_the_mini.json").read_text())
"""What steps of the mini measured."""


def at(root: Path, address: str = "127.0.0.1:0") -> Config:
    return replace(config(root), tracking=TrackingConfig(to=(f"prometheus:{address}",)))


def scrape(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By the name of the sample, as a Prometheus server reads it."""
    with urllib.request.urlopen(address, timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[PrometheusTracker]:
    tracker = PrometheusTracker()
    tracker.open(tmp_path / "first", at(tmp_path))
    yield tracker
    tracker.close(complete=True)


def test_the_last_step_is_served_as_gauges_with_labels(tracker: PrometheusTracker) -> None:
    address = tracker.where() or ""
    assert scrape(address)["azr_steps_total"] == [({}, 0.0)]
    tracker.write(1, {"policy/loss": 9.0, "gone/value": 1.0})
    before = time.time()
    tracker.write(2, STEP)
    served = scrape(address)
    assert served["azr_run_info"] == [({"run": "first", "version": code_version()}, 1.0)]
    assert served["azr_steps_total"] == [({}, 2.0)] and "azr_gone_value" not in served
    assert before <= served["azr_last_step_timestamp_seconds"][0][1] <= time.time()
    assert served["azr_policy_loss"] == [({}, STEP["policy/loss"])]
    accuracy = {labels["kind"]: value for labels, value in served["azr_accuracy"] if labels["role"] == "solver"}
    assert accuracy["deduction"] == STEP["deduction/solver/accuracy"]
    count = sum(len(value) if isinstance(value, list) else 1 for value in STEP.values())
    assert sum(len(some) for name, some in served.items()) == count + 3, "no metric is lost, none covers another"


@pytest.mark.parametrize(
    ("name", "value", "gauge", "labels", "served"),
    [
        *[
            (f"induction/solver/{name}", 7, gauge, {"kind": "induction", "role": "solver", **more}, 7.0)
            for name, gauge, more in (
                ("tokens/p90", "azr_response_tokens", {"statistic": "p90"}),
                ("funnel/valid", "azr_funnel_proposals", {"stage": "valid"}),
            )
        ],
        ("solver/malformed", 0.5, "azr_malformed", {"role": "solver"}, 0.5),
        ("seconds/train critic", 2.5, "azr_phase_seconds", {"phase": "train critic"}, 2.5),
        ("start/engines/load", 2.5, "azr_start_seconds", {"phase": "engines/load"}, 2.5),
        ("eval/exam/code/mean@2", 0.5, "azr_eval", {"suite": "exam", "group": "code", "measure": "mean@2"}, 0.5),
        ("eval/exam/greedy", 0.5, "azr_eval", {"suite": "exam", "group": "", "measure": "greedy"}, 0.5),
        ("driver/cpu_ms_per_trajectory", 4.0, "azr_driver_cpu_seconds_per_trajectory", {}, 0.004),
        ("weights/push_gb_s", 2.0, "azr_weights_push_bytes_per_second", {}, 2e9),
        ("weights/push_s", 2.0, "azr_weights_push_seconds", {}, 2.0),
        ("weights/push_s_gather", 2.0, "azr_weights_push_part_seconds", {"part": "gather"}, 2.0),
        ("weight_version", 4, "azr_weight_version", {}, 4.0),
    ],
)  # fmt: skip
def test_names_are_as_prometheus_wants_them(name, value, gauge, labels, served):
    assert samples(name, value) == [(gauge, labels, pytest.approx(served))]


def test_a_list_of_counts_is_a_gauge_by_rate() -> None:
    found = samples("deduction/proposer/solve_rate_hist", [4, 0, 1])
    assert {name for name, _, _ in found} == {"azr_solve_rate_tasks"}
    assert [(labels["rate"], count) for _, labels, count in found] == [("0.000", 4.0), ("0.500", 0.0), ("1.000", 1.0)]


def test_every_query_of_the_board_names_what_is_served(tracker: PrometheusTracker) -> None:
    tracker.write(2, STEP)
    served = scrape(tracker.where() or "")
    board = json.loads((GRAFANA / "dashboards" / "azr.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        for name, selector in re.findall(r"(azr_\w+)(?:\{([^}]*)\})?", query):
            known = {label for labels, _ in served[name] for label in labels}
            assert set(re.findall(r'(\w+)(?:=|!=|=~)"', selector)) <= known, query
    for panel in board["panels"]:
        labels = {
            label for target in panel["targets"] for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        }
        names = {name for target in panel["targets"] for name in re.findall(r"azr_\w+", target["expr"])}
        assert labels <= {"instance"} | {label for name in names for given, _ in served[name] for label in given}


def test_the_board_finds_its_source_and_prometheus_the_run() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    board = json.loads((GRAFANA / "dashboards" / "azr.json").read_text())
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}
    (job,) = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [ADDRESS]}]
    services = yaml.safe_load((GRAFANA / "compose.yaml").read_text())["services"]
    for volume in (volume for service in services.values() for volume in service["volumes"]):
        assert not volume.startswith("./") or (GRAFANA / volume.split(":")[0]).exists()


def test_a_taken_port_and_a_wrong_address_are_named_before_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"Nothing can listen on {address}"):
            PrometheusTracker.check(at(tmp_path, address))
    PrometheusTracker.check(at(tmp_path, address))
    for wrong in ("9464", "localhost:", "localhost:x", "localhost:70000"):
        with pytest.raises(UserError, match=r"write prometheus:HOST:PORT, as prometheus:127.0.0.1:9464"):
            PrometheusTracker.check(at(tmp_path, wrong))


async def test_a_run_gives_its_port_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    saved = None
    for number in (1, 2):
        play = Play(at(tmp_path, address), saved)
        saved = await play.step(number, float(number))
        until = time.monotonic() + 10
        while (served := scraped(address)).get("azr_steps_total") != [({}, float(number))]:
            assert time.monotonic() < until, served
        assert f"Prometheus: http://{address}/metrics" in play.end()
        assert scraped(address) == {}


def scraped(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Nothing where nobody listens."""
    try:
        return scrape(f"http://{address}/metrics")
    except OSError:
        return {}

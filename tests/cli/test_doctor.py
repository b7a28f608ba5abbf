"""``azr doctor`` on this machine, and what it says of machines where less works."""

import json

import pytest

from azr.cli.main import dispatch
from azr.doctor import Mark
from azr.doctor.machine import executor_section
from azr.executor import backends

CHECKS = ["machine", "gpus", "packages", "limits", "network", "disk", "executor"]


@pytest.mark.parametrize("works, verdict", [(True, "runs behind bubblewrap unless"), (False, "No backend works")])
def test_one_backend_is_enough(works, verdict, monkeypatch):
    report = [("docker", False, "install a"), ("bubblewrap", works, "offers b"), ("namespace", works, "offers c")]
    monkeypatch.setattr(backends, "report", lambda config: report)
    section = executor_section()
    assert section.ok is works and verdict in section.verdict
    assert section.findings[0].mark is (Mark.WARNING if works else Mark.MISSING)
    assert all(name in section.text(80) and message in section.text(80) for name, _, message in report)


def test_it_agrees_with_the_walls_of_this_machine_and_wraps_long_sentences(capsys, monkeypatch):
    assert dispatch(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and list(report["checks"]) == CHECKS
    found = {finding["name"]: finding for finding in report["checks"]["executor"]["findings"]}
    assert list(found) == list(backends.BACKENDS)
    assert any(finding["mark"] == "ok" for finding in found.values())
    facts = {finding["name"] for finding in report["checks"]["machine"]["findings"]}
    assert facts >= {"python", "system", "user", "cores", "cgroups", "seccomp filters"}
    message = "there is no engine behind /var/run/docker.sock; " * 4 + "end"
    monkeypatch.setattr(backends, "report", lambda config: [("docker", False, message), ("namespace", True, "offers")])
    text = executor_section().text(60)
    assert max(map(len, text.splitlines())) <= 60
    assert message in " ".join(text.split())

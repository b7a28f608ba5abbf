"""``azr doctor`` on this machine, and what it says of machines where less works."""

import json

import pytest

from azr import cli
from azr.commands import doctor
from azr.executor import walls


def test_it_agrees_with_the_walls_of_this_machine(capsys):
    assert cli.dispatch(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and list(report["checks"]) == list(doctor.CHECKS)
    found = {finding["name"]: finding for finding in report["checks"]["executor"]["findings"]}
    assert list(found) == list(walls.BACKENDS)
    assert any(finding["works"] for finding in found.values())
    facts = [finding["name"] for finding in report["checks"]["machine"]["findings"]]
    assert facts == ["python", "system", "user", "cores", "cgroups", "user namespaces", "seccomp filters"]


REPORTS = [
    ([("a", False, "install a"), ("b", True, "offers b"), ("c", True, "offers c")], 0, "runs behind b unless"),
    ([("a", False, "install a"), ("b", False, "start b")], 1, "No backend works"),
]


@pytest.mark.parametrize("report, code, verdict", REPORTS, ids=["one works", "none works"])
def test_the_exit_code_says_whether_programs_can_run(report, code, verdict, capsys, monkeypatch):
    monkeypatch.setattr(walls, "report", lambda config: report)
    assert cli.dispatch(["doctor"]) == code
    text = capsys.readouterr().out
    assert all(name in text and says in text for name, _, says in report)
    assert verdict in text
    assert cli.dispatch(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_long_sentences_are_wrapped_to_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    says = "there is no engine behind /var/run/docker.sock; " * 4 + "end"
    monkeypatch.setattr(walls, "report", lambda config: [("docker", False, says), ("namespace", True, "offers")])
    assert cli.dispatch(["doctor"]) == 0
    report = capsys.readouterr().out.partition("strongest first\n")[2]
    assert max(map(len, report.splitlines())) <= 60
    assert says in " ".join(report.split())

"""``azr doctor`` on this machine, and what it says of machines where less works."""

import json

import pytest

from azr.cli.main import dispatch
from azr.config import ExecutorConfig
from azr.doctor import Mark
from azr.doctor.machine import executor_section
from azr.executor import backends

CHECKS = ["machine", "gpus", "packages", "limits", "network", "ports", "disk", "executor"]


def test_it_agrees_with_the_walls_of_this_machine(capsys):
    assert dispatch(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and list(report["checks"]) == CHECKS
    found = {finding["name"]: finding for finding in report["checks"]["executor"]["findings"]}
    assert list(found) == list(backends.BACKENDS)
    assert any(finding["mark"] == "ok" for finding in found.values())
    facts = {finding["name"] for finding in report["checks"]["machine"]["findings"]}
    assert facts >= {"python", "system", "user", "cores", "cgroups", "user namespaces", "seccomp filters"}


def test_a_recipe_that_runs_on_any_machine(capsys):
    assert dispatch(["doctor", "--json", "--recipe", "azr_14m_mini", "--train.device", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["checks"]) == [*CHECKS, "recipe"]
    assert report["checks"]["recipe"]["title"] == "Recipe azr_14m_mini"


def test_a_recipe_that_misses_something(capsys):
    assert dispatch(["doctor", "--recipe", "azr_14m_mini", "--model.path", "data/nothing"]) == 1
    assert "missing there is no folder data/nothing" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("works, verdict", [(True, "runs behind bubblewrap unless"), (False, "No backend works")])
def test_one_backend_is_enough(works, verdict):
    report = [("docker", False, "install a"), ("bubblewrap", works, "offers b"), ("namespace", works, "offers c")]
    section = executor_section(report)
    assert section.ok is works and verdict in section.verdict
    assert section.findings[0].mark is (Mark.WARNING if works else Mark.MISSING)
    assert all(name in section.text(80) and message in section.text(80) for name, _, message in report)


def test_a_backend_that_the_config_does_not_take_is_not_enough():
    report = [("docker", False, "the Docker engine has no runtime runsc"), ("namespace", True, "offers")]
    section = executor_section(report, ExecutorConfig(docker_runtime="runsc"))
    assert not section.ok and section.verdict.startswith("The config asks for docker, which does not work here")
    assert [finding.mark for finding in section.findings] == [Mark.MISSING, Mark.OK]


def test_long_sentences_are_wrapped_to_the_terminal():
    message = "there is no engine behind /var/run/docker.sock; " * 4 + "end"
    text = executor_section([("docker", False, message), ("namespace", True, "offers")]).text(60)
    assert max(map(len, text.splitlines())) <= 60
    assert message in " ".join(text.split())

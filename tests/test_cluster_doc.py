"""docs/cluster.md says what the code, the compose file and Ray understand."""

import re
import shlex
from pathlib import Path

import yaml

from azr.cli.main import dispatch

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "cluster.md").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())


def commands() -> list[list[str]]:
    """Every command line of the document's code blocks, variables set before it left out."""
    blocks = re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [[word for word in line if not re.match(r"[A-Z_]+=", word) or line[0] == "export"] for line in lines if line]


def of(program: str) -> list[list[str]]:
    """Arguments of the calls of a program, on the machine or in the container."""
    words = program.split()
    found = []
    for line in commands():
        inside = line[line.index("head") + 1 :] if line[:2] == ["docker", "compose"] and "exec" in line else line
        plain = [inside[0].removeprefix(".venv/bin/"), *inside[1:]] if inside else []
        if plain[: len(words)] == words:
            found.append(plain[len(words) :])
    return found


def test_the_plans_fit(capsys):
    calls = of("azr plan")
    assert calls and all(dispatch(["plan", *options]) == 0 for options in calls)


def test_ray_understands_its_lines_and_the_compose_file_says_the_same():
    from ray.scripts.scripts import start

    documented = [start.make_context("start", list(options)).params for options in of("ray start")]
    head, worker = (shlex.split(COMPOSE["services"][name]["command"])[2:] for name in ("head", "worker"))
    composed = [start.make_context("start", options).params for options in (head, worker)]
    assert [call["head"] for call in documented] == [call["head"] for call in composed] == [True, False]
    assert documented[0]["port"] == composed[0]["port"] == 6379
    assert documented[1]["address"].endswith(":6379") and composed[1]["address"].endswith(":6379")
    assert of("ray get-auth-token") == [["--generate"]]

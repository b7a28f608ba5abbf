"""docs/cluster.md says what the code, the compose file and Ray understand."""

import re
import shlex
from pathlib import Path

import yaml

from azr.algorithms.architectures import CHECKED
from azr.cli.main import COMMANDS, dispatch
from azr.cli.options import load_recipe
from azr.cli.recipes import _listed
from azr.config import TimeoutConfig
from azr.doctor import machine
from azr.doctor.recipe import checkpoint_bytes

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


def test_small_gpus_are_those_of_the_list_of_recipes():
    rows = re.findall(r"^\| `(azr_\w+)` \|.*\| (\d+) GB \|$", DOC, re.MULTILINE)
    assert len(rows) == 4
    for name, size in rows:
        assert _listed(name, load_recipe(name), []).gpu_memory_gib == int(size), name


def test_the_models_that_a_run_takes_are_the_checked_ones():
    (listed,) = re.findall(r"takes models of the types ([^;]*);", DOC)
    assert re.split(r", | and ", listed) == list(CHECKED)
    assert of("azr check-model") and "check-model" in COMMANDS
    assert all(f"`{kind}`" in DOC for checked in CHECKED.values() for kind in checked.rope_types - {"default"})


def test_ray_understands_its_lines_and_the_compose_file_says_the_same():
    from ray.scripts.scripts import start

    documented = [start.make_context("start", list(options)).params for options in of("ray start")]
    head, worker = (shlex.split(COMPOSE["services"][name]["command"])[2:] for name in ("head", "worker"))
    composed = [start.make_context("start", options).params for options in (head, worker)]
    assert [call["head"] for call in documented] == [call["head"] for call in composed] == [True, False]
    assert documented[0]["port"] == composed[0]["port"] == 6379
    assert documented[1]["address"].endswith(":6379") and composed[1]["address"].endswith(":6379")
    assert of("ray get-auth-token") == [["--generate"]]


def test_services_and_variables_of_the_compose_file_are_the_documents():
    text = (ROOT / "docker" / "compose.yaml").read_text()
    assert all(f"{name}" in DOC for name in re.findall(r"\$\{(\w+)", text))
    for line in commands():
        if line[:2] == ["docker", "compose"]:
            assert (ROOT / line[3]).resolve() == ROOT / "docker" / "compose.yaml"
            assert {"head", "worker", "down"} & set(line) and set(line) & {"up", "exec", "down"}
    for variable in COMPOSE["services"]["head"]["environment"]:
        if variable.startswith(("NCCL_", "GLOO_")):
            assert variable in DOC


def test_numbers_are_those_of_the_code():
    assert f"version {machine.MIN_DRIVER} or newer" in DOC
    assert f"{machine.FILES:,} open files" in DOC
    assert f"--shm-size {machine.SHM_BASE_GIB + 8 * machine.SHM_GPU_GIB}g` for 8 GPUs" in DOC
    size = checkpoint_bytes(load_recipe("azr_coder7b_ppo")) / 2**30
    assert abs(size - 180) < 10 and "about 180 GiB" in DOC
    assert f"the driver waited {TimeoutConfig().start_s:g} s for policy ranks" in DOC
    assert f"the driver waited {TimeoutConfig().start_s:g} s for rollout engine 0 to start" in DOC

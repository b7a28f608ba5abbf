"""Every shipped recipe on a Ray cluster that declares GPUs, in a process of its own; no CUDA is touched."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from azr.config import Config
from tests import tables
from tests.recipes import recipes

pytestmark = pytest.mark.long

INHABITED = {1: "azr_coder14b_ppo", 2: "azr_coder7b_ppo"}
"""By the number of nodes, the recipe whose every role gets an actor in its bundle; of the others the bundles are
enough."""
PROGRAM = tables.programs(Path(__file__).with_name("programs.txt"), "ray")["recipes"]


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 4), (4, 8)])
def test_every_recipe_finds_its_place(nodes: int, gpus: int) -> None:
    """Each on the smallest of these clusters that has its GPUs; those of up to eight also on two nodes."""
    fewest = 8 if nodes > 2 else 0
    shipped = {name: config.num_gpus for name, config in recipes().items() if not name.startswith("azr_14m")}
    names = [name for name, needed in shipped.items() if fewest < needed <= nodes * gpus]
    asked = json.dumps([nodes, gpus, names, INHABITED.get(nodes)])
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    everything = json.loads(done.stdout.splitlines()[-1])
    assert everything.keys() == set(names)
    for name, found in everything.items():
        check(found, importlib.import_module(f"playground.{name}").config, inhabited=name == INHABITED.get(nodes))
    assert len({node for node, _ in everything[INHABITED.get(nodes, "orz_32b_ppo")]["trainers"]}) == nodes


def check(found: dict, config: Config, *, inhabited: bool) -> None:
    assert found["device"] == "cuda"
    trainers = [tuple(place) for place in found["trainers"]]
    engines = [[tuple(place) for place in own] for own in found["engines"]]
    assert len(set(trainers)) == len(trainers) == config.train.data_parallel
    assert len(engines) == config.rollout.engines
    assert all(len(own) == config.rollout.tensor_parallel and len({node for node, _ in own}) == 1 for own in engines)
    assert sorted(place for own in engines for place in own) == sorted(trainers), "engines share the trainers' GPUs"
    if inhabited:
        roles = 1 + config.algorithm.needs_critic + config.algorithm.needs_reference
        assert found["roles"] == [[[node, [gpu]]] * roles for node, gpu in trainers]
        assert found["samplers"] == [[[own[0][0], [own[0][1]]]] for own in engines]

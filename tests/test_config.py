import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import azr
import playground
from azr.cli.run import describe
from azr.config import GAE, RLOO, TRRPP, AlgorithmConfig, Config, KLConfig, NoImportance
from azr.config_tree import ESTIMATOR, from_yaml, knobs, leaves, override, to_tree
from azr.errors import UserError
from azr.prepare import check
from tests.recipes import recipes

RECIPES = recipes()
NUMERIC = {knob.path: knob for knob in knobs().values() if re.search(r"\bnumber\b", knob.accepts)}


@pytest.mark.parametrize("config", RECIPES.values(), ids=list(RECIPES))
def test_every_recipe_is_sound_and_planned(config):
    check(config)
    assert override(config, {}) == config
    assert f"# plan: {config.run.steps} steps" in describe(config)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_only_its_differences(name):
    assert len((Path(playground.__path__[0]) / f"{name}.py").read_text().splitlines()) <= 45


@pytest.mark.parametrize("config", [Config(), *RECIPES.values()], ids=["default", *RECIPES])
def test_a_saved_config_is_read_back(config):
    assert from_yaml(yaml.safe_dump(to_tree(config))) == config


@pytest.mark.parametrize(
    "text, said",
    [
        ("run: {stepz: 3}", "There is no knob 'run.stepz' in a config; did you mean run.steps?"),
        ("runn: {steps: 3}", "did you mean run.steps?"),
        (
            "run: {steps: many}",
            "run.steps is 'many'; it must be a whole number of at least 1 and at most 1,000,000,000.",
        ),
        ("run: 3", "run is a section of knobs such as run.name"),
        ("run:", "run is a section of knobs such as run.name"),
        ("3: {4: 5}", "There is no knob '3.4'"),
        ("run: {steps: {a: 3}}", "There is no knob 'run.steps.a'"),
        ("run: {name: 3}", "run.name is 3; it must be text."),
        ("run: {name: }", "run.name is None; it must be text."),
        ("cluster: {address: [1]}", "cluster.address is [1]; it must be text or none."),
        ("selfplay: {kinds: deduction}", "selfplay.kinds is 'deduction'; it must be a list of names."),
        ("selfplay: {kinds: [1]}", "selfplay.kinds is [1]; it must be a list of names."),
        ("run: {deterministic: maybe}", "it must be true or false."),
        ("train: {device: gpu}", "train.device is 'gpu'; it must be one of auto, cpu, cuda."),
        ("algorithm: {estimator: gea}", "it must be one of trrpp, gae, reinforce++"),
        ("algorithm: {estimator: {name: gea}}", "algorithm.estimator is 'gea'; it must be one of trrpp, gae"),
        ("algorithm: {estimator: [gae]}", "algorithm.estimator is ['gae']; it must be one of trrpp, gae"),
        ("run: {steps: true}", "run.steps is True; it must be a whole number of at least 1 and at most 1,000,000,000."),
        ("algorithm: {estimator: {name: rloo, lambda_: 1}}", "algorithm.estimator gae, and this run's is rloo"),
        ("algorithm: {estimator: {name: gae, lambda_: 2}}", "algorithm.estimator.lambda_ is 2; it must be"),
        ("algorithm: {kl: {coef: .inf}}", "algorithm.kl.coef is inf; it must be a number of at least 0"),
        ("algorithm: {kl: {coef: .nan}}", "algorithm.kl.coef is nan; it must be a number of at least 0"),
    ],
)
def test_other_texts_are_refused_in_one_line(text, said):
    with pytest.raises(UserError, match=re.escape(said)) as raised:
        from_yaml(text)
    assert "\n" not in str(raised.value)


def test_what_is_not_given_has_its_default_and_none_is_a_value():
    config = from_yaml("run: {max_minutes: 3}\neval: {path: none}\nalgorithm: {estimator: gae, importance: none}")
    assert config == Config(
        run=replace(Config().run, max_minutes=3.0),
        eval=replace(Config().eval, path=None),
        algorithm=AlgorithmConfig(estimator=GAE(), importance=NoImportance()),
    )


@pytest.mark.parametrize("none", ["none", ["none"]])
def test_none_is_the_empty_list(none):
    base = override(Config(), {"tracking.to": ["wandb"]})
    assert override(base, {"tracking.to": none}).tracking.to == ()


def test_an_estimator_takes_its_own_knobs_along_and_leaves_the_last_ones():
    config = override(Config(), {"algorithm.estimator.lambda_": ".5", "algorithm.estimator": "gae", "run.name": "1.50"})
    assert config.run.name == "1.50", "only numbers may be spelled in other ways"
    assert config.algorithm.estimator == GAE(lambda_=0.5)
    assert override(config, {"algorithm.estimator": "gae"}) == config
    assert override(config, {"algorithm.estimator": "rloo"}).algorithm.estimator == RLOO()
    assert leaves(config)[ESTIMATOR] == "gae" and leaves(config)[f"{ESTIMATOR}.lambda_"] == 0.5


def test_a_recipe_is_held_to_the_bounds_too():
    beyond = replace(Config(), rollout=replace(Config().rollout, gpu_memory_utilization=90))
    with pytest.raises(
        UserError, match=r"rollout.gpu_memory_utilization is 90; it must be a number above 0 and below 1"
    ):
        override(beyond, {})


@pytest.mark.parametrize("path", NUMERIC)
def test_every_number_is_bounded(path):
    """Below its least value, above its largest, and where it has none at infinity, each is refused with its name."""
    knob = NUMERIC[path]
    with_owner = {knob.union: knob.owners[0]} if knob.owners else {}
    (number,) = [each for each in knob.schema.get("anyOf", [knob.schema]) if each["type"] in ("integer", "number")]
    outside = [number[key] + by for key, by in BEYOND.items() if key in number]
    assert any(key in number for key in ("minimum", "exclusiveMinimum"))
    for value in [*outside, float("nan"), float("inf"), -float("inf"), True, "many"]:
        with pytest.raises(UserError, match=rf"{re.escape(path)} is .*; it must be a"):
            override(Config(), {**with_owner, path: value})


BEYOND = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}


def test_each_knob_says_what_it_means_and_is_read():
    files = [path for path in Path(azr.__file__).parent.rglob("*.py") if not path.name.startswith("config")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    assert [path for path in knobs() if path.rpartition(".")[2] not in read] == []
    assert [path for path, knob in knobs().items() if not knob.doc] == []


def test_roles_follow_from_overrides():
    assert AlgorithmConfig(estimator=GAE()).needs_critic and not AlgorithmConfig(estimator=TRRPP()).needs_critic
    assert AlgorithmConfig(kl=KLConfig(coef=0.1)).needs_reference and not AlgorithmConfig().needs_reference

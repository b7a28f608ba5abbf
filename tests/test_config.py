import ast
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

import azr
import playground
from azr.cli.run import describe
from azr.config import GAE, RLOO, TRRPP, AlgorithmConfig, Config, KLConfig, NoImportance
from azr.config_rules import check
from azr.config_tree import ESTIMATOR, config_options, leaves, override, to_tree
from azr.errors import SECTIONS, UserError
from tests.mistakes import mistake
from tests.recipes import from_yaml, recipes
from tests.tables import table

RECIPES = recipes()
NUMERIC = {option.path: option for option in config_options().values() if re.search(r"\bnumber\b", option.accepts)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_sound_planned_read_back_has_room_to_reason_and_holds_only_its_differences(name):
    check(config := RECIPES[name])
    at_once = {"compact": 192, "completion": 192, "worked": 512}
    assert config.rollout.max_response_tokens >= at_once.get(config.model.prompt_format, 4096)
    assert override(config, {}) == config == from_yaml(yaml.safe_dump(to_tree(config)))
    assert f"# plan: {config.run.steps} steps" in describe(config)
    assert len((Path(playground.__path__[0]) / f"{name}.py").read_text().splitlines()) <= 45


@pytest.mark.parametrize("text, options, says", table(__file__, "texts that are not a config"))
def test_other_texts_are_refused_in_one_line(text, options, says):
    with mistake(*options.split(), says=says):
        from_yaml(text)


def test_an_error_knows_the_options_that_its_sentence_names():
    assert tuple(field.name for field in fields(Config)) == SECTIONS
    said = UserError(
        "run.steps=3 in ./run.yaml, rows.jsonl or data/run.name is no --port: raise (eval.every), run.steps."
    )
    assert said.options == ("run.steps", "--port", "eval.every")
    assert pickle.loads(pickle.dumps(said)).options == said.options


def test_what_is_not_given_has_its_default_and_none_is_a_value_or_the_empty_list():
    config = from_yaml("run: {max_minutes: 3}\neval: {path: none}\nalgorithm: {estimator: gae, importance: none}")
    assert config == Config(
        run=replace(Config().run, max_minutes=3.0),
        eval=replace(Config().eval, path=None),
        algorithm=AlgorithmConfig(estimator=GAE(), importance=NoImportance()),
    )
    base = override(Config(), {"tracking.to": ["wandb"]})
    assert [override(base, {"tracking.to": none}).tracking.to for none in ("none", ["none"])] == [(), ()]


def test_an_estimator_takes_its_own_options_along_and_leaves_the_last_ones():
    config = override(Config(), {"algorithm.estimator.lambda_": ".5", "algorithm.estimator": "gae", "run.name": "1.50"})
    assert config.run.name == "1.50", "only numbers may be spelled in other ways"
    assert config.algorithm.estimator == GAE(lambda_=0.5)
    assert override(config, {"algorithm.estimator": "gae"}) == config
    assert override(config, {"algorithm.estimator": "rloo"}).algorithm.estimator == RLOO()
    assert leaves(config)[ESTIMATOR] == "gae" and leaves(config)[f"{ESTIMATOR}.lambda_"] == 0.5


def test_every_number_is_bounded():
    """Below its least value, above its largest, and where it has none at infinity, each is refused with its name."""
    beyond = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    for path, option in NUMERIC.items():
        with_owner = {option.union: option.owners[0]} if option.owners else {}
        schemas = option.schema.get("anyOf", [option.schema])
        (number,) = [each for each in schemas if each["type"] in ("integer", "number")]
        outside = [number[key] + by for key, by in beyond.items() if key in number]
        assert any(key in number for key in ("minimum", "exclusiveMinimum")), path
        for value in [*outside, float("nan"), float("inf"), -float("inf"), True, "many"]:
            with mistake(path, says="; it must be a"):
                override(Config(), {**with_owner, path: value})


def test_each_option_says_what_it_means_and_is_read():
    files = [path for path in Path(azr.__file__).parent.rglob("*.py") if not path.name.startswith("config")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    assert [path for path in config_options() if path.rpartition(".")[2] not in read] == []
    assert [path for path, option in config_options().items() if not option.doc] == []


def test_a_recipe_is_held_to_the_bounds_too_and_roles_follow_from_overrides():
    beyond = replace(Config(), rollout=replace(Config().rollout, gpu_memory_utilization=90))
    with mistake("rollout.gpu_memory_utilization", says="is 90; it must be a number above 0 and below 1"):
        override(beyond, {})
    assert AlgorithmConfig(estimator=GAE()).needs_critic and not AlgorithmConfig(estimator=TRRPP()).needs_critic
    assert AlgorithmConfig(kl=KLConfig(coef=0.1)).needs_reference and not AlgorithmConfig().needs_reference

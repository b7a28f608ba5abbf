import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import playground
from azr import preflight
from azr.cli.run import describe
from azr.config import GAE, TRRPP, AlgorithmConfig, Config
from azr.config_tree import from_yaml, to_tree

RECIPES = {
    name: module.config
    for _, name, _ in pkgutil.iter_modules(playground.__path__)
    if isinstance(getattr(module := importlib.import_module(f"playground.{name}"), "config", None), Config)
}


@pytest.mark.parametrize("config", RECIPES.values(), ids=list(RECIPES))
def test_every_recipe_is_sound_and_planned(config):
    preflight.check(config)
    assert f"# plan: {config.run.steps} steps" in describe(config)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_only_its_differences(name):
    assert len((Path(playground.__path__[0]) / f"{name}.py").read_text().splitlines()) < 45


@pytest.mark.parametrize("config", [Config(), *RECIPES.values()], ids=["default", *RECIPES])
def test_a_saved_config_is_read_back(config):
    assert from_yaml(yaml.safe_dump(to_tree(config))) == config


@pytest.mark.parametrize(
    "text, said",
    [
        ("run: {stepz: 3}", "did you mean --run.steps?"),
        ("runn: {steps: 3}", "did you mean --run.steps?"),
        ("run: {steps: many}", "Error parsing --run.steps"),
        ("run: 3", "There is no option --run;"),
        ("[]", "a mapping of sections, not list"),
        ("", "a mapping of sections, not NoneType"),
        ("run: {", "not YAML"),
    ],
)
def test_other_texts_are_refused_in_one_line(text, said):
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        from_yaml(text)
    assert "\n" not in str(raised.value)


def test_roles_follow_from_overrides():
    assert AlgorithmConfig(estimator=GAE()).needs_critic and not AlgorithmConfig(estimator=TRRPP()).needs_critic
    assert AlgorithmConfig(kl_coef=0.1).needs_reference and not AlgorithmConfig().needs_reference

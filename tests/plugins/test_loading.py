"""What plug-ins add is there by name, from modules and installed packages, and what cannot be used is one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from azr.cli.main import dispatch
from azr.config import ESTIMATOR_TYPES, Config
from azr.config_tree import config_options, override, to_tree
from azr.datasets.rows import read_rows
from azr.errors import UserError
from azr.graders.own import OwnGrader
from azr.plugins import load_for, load_plugins
from azr.selfplay.rewards import BONUSES, SOLVE_RATE_REWARDS, check_names
from azr.tasks.base import Verdict
from azr.tasks.registry import KINDS
from tests.mistakes import mistake
from tests.plugins.conftest import REGISTRIES
from tests.recipes import from_yaml
from tests.tables import programs, table

Write = Callable[..., str]

KIND = """
from examples.expressions import Expressions
class Mine(Expressions):
    name = "mine"
    reference_kinds = ("mine",)
    {body}
kinds = [Mine()]
"""
MORE, ENTRIES = programs(Path(__file__).with_name("kinds.txt"), "stated").values()
ALL = KIND.format(body="") + MORE
OPTIONS = {"selfplay.kinds": ("mine",), "reward.proposer": "half", "algorithm.estimator": "plain"}
OPTIONS |= {"reward.intrinsic.bonuses": ("short:0.5",), "algorithm.estimator.scale": "2"}


def everything_is_there() -> bool:
    return "mine" in KINDS and "half" in SOLVE_RATE_REWARDS and "short" in BONUSES and "plain" in ESTIMATOR_TYPES


@pytest.mark.parametrize("as_package", [False, True])
def test_a_module_adds_all_that_it_states_and_a_package_as_a_whole(as_package, plugin: Write, package: Write) -> None:
    load_plugins([package(ALL, ENTRIES, name="my-package")] if as_package else 2 * [plugin(ALL)])
    assert everything_is_there()


def test_what_a_package_offers_is_found_by_its_name_alone_and_nothing_else_of_it_is_loaded(package: Write) -> None:
    package(ALL, ENTRIES)
    load_for(Config())
    assert not ("mine" in KINDS or "half" in SOLVE_RATE_REWARDS), "a package that no run names is not imported"
    config = override(Config(), OPTIONS)
    assert config.algorithm.estimator == ESTIMATOR_TYPES["plain"](scale=2.0)
    assert config_options()["algorithm.estimator.scale"].doc == "Their factor."
    load_for(override(Config(), {"reward.proposer": "half"}))
    assert "half" in SOLVE_RATE_REWARDS and "mine" not in KINDS
    load_for(config)
    assert everything_is_there()
    check_names(config.reward)


def test_the_saved_config_is_enough_to_load_them_again(plugin: Write) -> None:
    config = override(Config(), {**OPTIONS, "run.plugins": (plugin(ALL),)})
    assert from_yaml(json.dumps(to_tree(config))) == config
    load_for(from_yaml(json.dumps(to_tree(config))))
    assert everything_is_there()


def test_an_estimator_that_nothing_states_is_one_sentence(plugin: Write) -> None:
    with pytest.raises(UserError, match=r"algorithm\.estimator is 'plan'; it must be one of trrpp, gae"):
        override(Config(), {"algorithm.estimator": "plan"})
    with pytest.raises(UserError, match=r"algorithm\.estimator is 'plan'; it must be one of .*, rae, plain, or one of"):
        override(Config(), {"algorithm.estimator": "plan", "run.plugins": (plugin(ALL),)})
    for option, value in (("decay", "0.5"), ("scale", "0")):
        with pytest.raises(UserError, match=rf"algorithm\.estimator\.{option} is "):
            override(Config(), {"algorithm.estimator": "plain", f"algorithm.estimator.{option}": value})


async def test_rows_name_a_packages_grader(package: Write, here: Path) -> None:
    package(ALL, ENTRIES)
    (here / "rows.jsonl").write_text(json.dumps({"prompt": "2 + 2?", "grader": "exact", "answer": "4"}) + "\n")
    (row,) = read_rows(here / "rows.jsonl")
    async with OwnGrader(row.graders[0].name) as grader:
        assert (await grader.grade(row.question, "4")).verdict is Verdict.RIGHT


def test_two_packages_with_one_name_are_one_sentence(package: Write) -> None:
    for name in ("one", "other"):
        package(ALL, ENTRIES, name=name)
    with pytest.raises(UserError, match=r"one and other both have an entry point 'mine' in azr\.kinds: uninstall"):
        load_for(override(Config(), {"selfplay.kinds": ("mine",)}))
    load_plugins(["one"])
    load_for(override(Config(), {"selfplay.kinds": ("mine",)}))


@pytest.mark.parametrize("text, said", [
    *table(__file__, "modules that cannot be used"),
    *((KIND.format(body=body), said) for body, said in table(__file__, "kinds that cannot be used")),
    (KIND.format(body="") + "kinds *= 2", "calls two kinds 'mine'"),
    (KIND.format(body="") + "kinds = Mine()", r"kinds of the plug-in \S+ is <.*: make it a list of objects of azr"),
])  # fmt: skip
def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(plugin: Write, text: str, said: str, capsys) -> None:
    before = [dict(each) for each in REGISTRIES]
    with pytest.raises(UserError, match=said) as caught:
        load_plugins([plugin(text)])
    assert "\n" not in str(caught.value) and before == list(REGISTRIES)
    assert ("Traceback" in capsys.readouterr().err) == (text.startswith(("raise", "import")) or "1 / 0" in text)


@pytest.mark.parametrize("entry, says", [
    ("[azr.kinds]\nyours = MODULE:Mine", "'yours' in azr.kinds for the kind 'mine': give both the same"),
    ("[azr.kinds]\nmine = MODULE:Their", ":Their, which"), ("[azr.rewards]\nhalf = MODULE:kinds", " is not a function"),
    ("[azr.kinds]\nmine = no_such_module:Mine", "cannot be imported: ModuleNotFoundError"),
])  # fmt: skip
def test_entry_points_that_cannot_be_used_are_one_sentence(package: Write, entry: str, says: str) -> None:
    with mistake(says=says):
        load_plugins([package(ALL, entry)])


def test_commands_take_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--run.plugins", "examples.expressions", "--selfplay.kinds", "expressions"]
    assert dispatch(["prompts", "azr_14m_mini", *options]) == 0
    assert "<|solve|><|expressions|><|input|>numbers 1, 2; target 3<|answer|>" in capsys.readouterr().out
    assert dispatch(["plan", "azr_14m_mini", "--run.plugins", "no.such.plugin"]) == 2
    assert "error: The plug-in no.such.plugin cannot be imported: " in capsys.readouterr().err
    assert dispatch(["plan", "azr_14m_mini", "--run.plugins", ".plugin"]) == 2
    assert capsys.readouterr().err.startswith("error: The plug-in .plugin cannot be imported: ")

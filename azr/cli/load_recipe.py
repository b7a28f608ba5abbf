"""A config by the name of a recipe, by a module that holds one, or from a YAML file that may build on another."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from azr.config import Config
from azr.config_tree import at_home, from_tree, parse_yaml
from azr.errors import UserError, nearest
from azr.registry import search_here

PACKAGE = "playground"
RECIPE_HELP = "a recipe by name, a dotted module with a config, or a YAML file"
"""Of every command that takes one."""
_YAML = (".yaml", ".yml")
_BASE = "base"
"""Key of a YAML file that names what it builds on."""


def load_recipe(name: str) -> Config:
    """The config that a command line names.

    ``name``: a recipe of ``playground/``; a dotted module with a ``config``, found from the working directory too; or
    a file that ends in ``.yaml``, such as a run's ``config.yaml``.

    Raises UserError when there is none.
    """
    if is_file(name):
        return read_config(name)
    word = name.removeprefix(f"{PACKAGE}.")
    if "." in word:
        return _of_module(word)
    if word not in _modules():
        raise UserError(f"There is no recipe {name!r}; did you mean {nearest(word, recipes())}? azr recipes lists all.")
    config = _config_in(f"{PACKAGE}.{word}")
    if config is None:
        raise UserError(
            f"{PACKAGE}/{word}.py holds no config of a run, but what recipes share; azr recipes lists them."
        )
    return config


def is_file(recipe: str) -> bool:
    """Whether what a command line names is a YAML file."""
    return recipe.endswith(_YAML)


def recipes() -> Mapping[str, Config]:
    """Every shipped recipe by name."""
    configs = {name: _config_in(f"{PACKAGE}.{name}") for name in _modules()}
    return {name: config for name, config in configs.items() if config is not None}


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__))


def _of_module(name: str) -> Config:
    here = search_here()
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise UserError(
            f"There is no module {name} to take a recipe from: it is found in {here} or where it is installed."
        )
    config = _config_in(name)
    if config is None:
        raise UserError(f"The module {name} has no config of a run: give it one, config = Config(...).")
    return config


def _config_in(module: str) -> Config | None:
    config = vars(importlib.import_module(module)).get("config")
    return config if isinstance(config, Config) else None


def read_config(file: str) -> Config:
    """The config in a YAML file; with ``base:``, a recipe or a file beside it, its knobs change those of the base.

    Raises UserError when the file holds no config of a run, or what it builds on is missing or leads back to it.
    """
    return _read(Path(file), ())


def _read(file: Path, above: tuple[Path, ...]) -> Config:
    if (place := file.resolve()) in above:
        way = " builds on ".join(path.name for path in (*above[above.index(place) :], place))
        raise UserError(f"{way}: a config cannot build on itself; name another base in one of them.")
    try:
        tree = parse_yaml(file.read_text(encoding="utf-8"))
        if _BASE not in tree:
            return from_tree(tree, Config())
        base = tree.pop(_BASE)
        if not isinstance(base, str):
            raise UserError(f"base is {base!r}; it must be the name of a recipe or of a YAML file.")
        base = str(at_home(base))
        below = _read(file.parent / base, (*above, place)) if is_file(base) else load_recipe(base)
        return from_tree(tree, below)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file}.") from error
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(f"{file} is no config of a run: {error}") from error

"""Every shipped recipe of a run, by name, and configs from text."""

import importlib
import pkgutil

import playground
from azr.config import Config
from azr.config_tree import from_tree, parse_yaml


def recipes() -> dict[str, Config]:
    modules = [
        importlib.import_module(f"playground.{name}") for _, name, _ in pkgutil.iter_modules(playground.__path__)
    ]
    configs = {module.__name__.removeprefix("playground."): vars(module).get("config") for module in modules}
    return {name: config for name, config in configs.items() if isinstance(config, Config)}


def from_yaml(text: str) -> Config:
    return from_tree(parse_yaml(text), Config())

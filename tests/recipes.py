"""Every shipped recipe of a run, by name, and configs from text."""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import playground
from azr.config import Config, ModelConfig, RolloutConfig, RunConfig, TimeoutConfig, TrainConfig
from azr.config_tree import from_tree, parse_yaml


def recipes() -> dict[str, Config]:
    modules = [
        importlib.import_module(f"playground.{name}") for _, name, _ in pkgutil.iter_modules(playground.__path__)
    ]
    configs = {module.__name__.removeprefix("playground."): vars(module).get("config") for module in modules}
    return {name: config for name, config in configs.items() if isinstance(config, Config)}


def from_yaml(text: str) -> Config:
    return from_tree(parse_yaml(text), Config())


def engine_config(
    model: Path | str, rollout: RolloutConfig, generate_s: float, dtype: Any = "float32", *, deterministic: bool = False
) -> Config:
    """Of an engine without a run."""
    run, timeout = RunConfig(deterministic=deterministic), TimeoutConfig(generate_s=generate_s)
    model_config, train = ModelConfig(path=str(model)), TrainConfig(dtype=dtype)
    return Config(run=run, model=model_config, rollout=rollout, timeout=timeout, train=train)

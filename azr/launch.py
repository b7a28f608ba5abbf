"""Resolve what a command line names, once: recipe, YAML files, run folder and checkpoint become one `Run`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import runpy
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from azr.config import Config
from azr.config_tree import expand_home, from_tree, parse_yaml
from azr.errors import UserError, did_you_mean
from azr.own_data import find_own_data
from azr.registry import search_here
from azr.runs.checkpoint_store import (
    INITIAL,
    CheckpointStore,
    ResumeState,
    Verify,
    config_changes,
    find_checkpoint,
    resolve_run,
)
from azr.runs.run_dir import RUN_CONFIG, RunDirectory, RunOwner
from azr.text import first_line

PACKAGE = "playground"
_YAML, _SCRIPT = (".yaml", ".yml"), ".py"
_BASE = "base"
"""Key of a YAML file that names what it builds on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, before it starts: what to do, where, and from which checkpoint."""

    config: Config
    folder: RunDirectory
    resume: ResumeState | None = None
    """Checkpoint to continue from; None for a new run."""
    restart: bool = False
    """A run that is in the folder makes way."""

    @property
    def step(self) -> int:
        """The last step that is done; 0 for a new run."""
        return self.resume.state.step if self.resume is not None else 0

    @property
    def end(self) -> str | None:
        """Why a resumed run has no steps left; None if it has some."""
        if self.resume is None:
            return None
        run, elapsed_s = self.config.run, self.resume.state.elapsed_s
        if self.step >= run.steps:
            return f"step {self.step} of --run.steps {run.steps} is done, so nothing is left: raise it to continue"
        if run.max_minutes is not None and elapsed_s > 60 * run.max_minutes:
            taken = f"the {self.step} steps have taken {elapsed_s / 60:.1f} minutes of --run.max-minutes"
            return f"{taken} {run.max_minutes:g}, so nothing is left: raise it to continue"
        return None


def resolve(
    config: Config,
    where: str | None = None,
    *,
    restart: bool = False,
    verify: Verify = "headers",
    owned: ExitStack | None = None,
) -> Run:
    """Return the new run that a config describes, or the one that ``--resume where`` continues with this config.

    ``owned`` gets the ownership of a resumed run's folder; None leaves the folder to others, as for a dry run.

    Raises UserError when the name is not a folder name, there is no such run or checkpoint, another process owns the
    run, or the checkpoint cannot follow a change of the config.
    """
    if where is None:
        return Run(config=config, folder=RunDirectory.of(config.run), restart=restart)
    place, step = resolve_run(config.run, where)
    config, folder = replace(config, run=place), RunDirectory.of(place)
    if owned is not None:
        owned.callback(RunOwner(folder.path).release)
    found = find_checkpoint(folder, step, verify)
    # The config.yaml of the run may have been edited since; that of a checkpoint is verified.
    saved = CheckpointStore(folder.checkpoints).path(found.state.step) if found.state != INITIAL else folder.path
    before = load_recipe(str(saved))
    if config.train.gradient_checkpointing == "auto":
        decided = before.train.gradient_checkpointing
        config = replace(config, train=replace(config.train, gradient_checkpointing=decided))
    changes = config_changes(before, config)
    notes = (*(f"changed: {change}" for change in changes), *found.notes)
    return Run(config=config, folder=folder, resume=replace(found, notes=notes))


def load_recipe(name: str) -> Config:
    """The config that a command line names.

    ``name``: a recipe of ``playground/``; a file that ends in ``.py`` or ``.yaml``; a run's folder, or that of a
    checkpoint; or a dotted module with a ``config``, found from the working directory too.

    Raises UserError when there is none.
    """
    if is_run(name):
        saved = read_config(Path(name) / RUN_CONFIG)
        # Paths of this project's data become those from this working directory.
        model, suites, seeds = saved.model, saved.eval, saved.selfplay
        return replace(
            saved,
            model=replace(model, path=find_own_data(model.path)),
            eval=replace(suites, path=find_own_data(suites.path) if suites.path is not None else None),
            selfplay=replace(seeds, seeds=find_own_data(seeds.seeds) if seeds.seeds is not None else None),
        )
    if name.endswith((*_YAML, _SCRIPT)):
        return _of_script(name) if name.endswith(_SCRIPT) else read_config(Path(name))
    word = name.removeprefix(f"{PACKAGE}.")
    if "/" in name or Path(name).exists():
        kind = "neither a run's folder nor a .py or .yaml file" if Path(name).exists() else "not there"
        raise UserError(f"{name} is {kind}: name a recipe, such a file, or the folder of a run.")
    if "." in word:
        return _of_module(word)
    if word not in _modules():
        raise UserError(f"There is no recipe {name!r}{did_you_mean(word, recipes())} azr recipes lists all.")
    config = _config_in(f"{PACKAGE}.{word}")
    if config is None:
        raise UserError(f"{PACKAGE}/{word}.py has no config, but what recipes share; azr recipes lists them.")
    return config


def is_run(recipe: str) -> bool:
    """Whether what a command line names is the folder of a run or of a checkpoint."""
    return (Path(recipe) / RUN_CONFIG).is_file()


def recipes() -> Mapping[str, Config]:
    configs = {name: _config_in(f"{PACKAGE}.{name}") for name in _modules()}
    return {name: config for name, config in configs.items() if config is not None}


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__))


def _of_module(name: str) -> Config:
    here = search_here()
    try:
        found = not name.startswith(".") and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise UserError(f"There is no recipe module {name}, neither in {here} nor among the installed packages.")
    config = _config_in(name)
    if config is None:
        raise UserError(f"The module {name} has no config of a run: give it one, config = Config(...).")
    return config


def _of_script(name: str) -> Config:
    search_here()
    try:
        config = runpy.run_path(name).get("config")
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if not Path(name).is_file():
            raise UserError(f"There is no file {name}.") from error
        traceback.print_exc()
        raise UserError(f"{name} cannot be run: {type(error).__name__}: {first_line(error)}.") from error
    if not isinstance(config, Config):
        raise UserError(f"{name} has no config of a run: give it one, config = Config(...).")
    return config


def _config_in(module: str) -> Config | None:
    config = vars(importlib.import_module(module)).get("config")
    return config if isinstance(config, Config) else None


def read_config(file: Path, above: tuple[Path, ...] = ()) -> Config:
    """The config in a YAML file; with ``base:``, a recipe or a file beside it, its options change those of the base.
    Raises UserError when the file holds no config of a run, or what it builds on is missing or leads back to it.
    ``above``: files that build on it."""
    if (place := file.resolve()) in above:
        way = " builds on ".join(path.name for path in (*above[above.index(place) :], place))
        raise UserError(f"{way}: a config cannot build on itself; name another base in one of them.")
    try:
        tree = parse_yaml(file.read_text(encoding="utf-8"))
        if _BASE not in tree:
            if not isinstance(tree.get("model"), dict) or "path" not in tree["model"]:
                raise UserError("it names no base and no model: add the recipe that it changes, as base: azr_14m_mini.")
            return from_tree(tree, Config())
        base = tree.pop(_BASE)
        if not isinstance(base, str):
            raise UserError(f"base is {base!r}; it must be the name of a recipe or of a YAML file.")
        base = str(expand_home(base))
        if base.endswith(_YAML):
            below = read_config(file.parent / base, (*above, place))
        else:
            below = load_recipe(str(file.parent / base) if base.endswith(_SCRIPT) else base)
        return from_tree(tree, below)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not a config of a run: it is not text in UTF-8.") from error
    except (OSError, UserError) as error:
        raise UserError(f"{file} is not a config of a run: {error}") from error

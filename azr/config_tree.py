"""The one way into a `Config`: plain data from YAML, a recipe or the command line, checked against names and bounds.

An option has a dotted path such as ``selfplay.group_size``. Some are unions by name: ``algorithm.estimator: gae`` is
short for ``algorithm.estimator.name: gae``, and an option of that choice is ``algorithm.estimator.lambda_``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import msgspec
import yaml
from pydantic import TypeAdapter, ValidationError

from azr.config import ESTIMATOR_TYPES, Config
from azr.errors import UserError, did_you_mean
from azr.plugins import load_named
from azr.plugins.own import ESTIMATORS
from azr.text import first_line, map_texts

ESTIMATOR = "algorithm.estimator"
"""The union whose choices a plug-in may add to."""
_PLUGINS = "run.plugins"
_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_TYPES |= {"array": "a list of names", "null": "none"}
_BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
"""Words for the keys of JSON Schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOption:
    """One leaf of the tree."""

    path: str
    schema: Mapping[str, Any]
    """JSON Schema of its values."""
    choices: tuple[str, ...] = ()
    """Names of a union's choices."""
    owners: tuple[str, ...] = ()
    """Choices of the union above it that have it; empty for an option of every run."""

    @property
    def union(self) -> str:
        """Path of the union above it, if it has owners."""
        return self.path.rpartition(".")[0]

    @property
    def doc(self) -> str:
        return " ".join(self.schema.get("description", "").split())

    @property
    def type(self) -> str | None:
        """JSON type of its values; None if they have several."""
        return self.schema.get("type")

    @property
    def flag(self) -> str:
        return "--" + self.path.rstrip("_").replace("_", "-")

    @property
    def accepts(self) -> str:
        """Description of its values, e.g. ``a whole number of at least 1``."""
        if self.path == ESTIMATOR:
            return f"one of {', '.join(ESTIMATOR_TYPES)}, or one of a plug-in"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return _describe(self.schema)


def config_options() -> Mapping[str, ConfigOption]:
    """Return every option by its path, in the order of the tree; those of plug-ins' estimators once they are loaded."""
    return _options_with(tuple(ESTIMATOR_TYPES))


@cache
def _type_with(estimators: tuple[str, ...]) -> TypeAdapter[Config]:
    return TypeAdapter(Config)


@cache
def _options_with(estimators: tuple[str, ...]) -> Mapping[str, ConfigOption]:
    schema = _type_with(estimators).json_schema(ref_template="{model}")
    found: dict[str, ConfigOption] = {}
    for option in _options(schema, schema["$defs"], ""):
        twin = found.get(option.path, option)  # what several choices of a union have is described at one of them
        owners = tuple(dict.fromkeys(twin.owners + option.owners))
        found[option.path] = replace(twin, schema={**option.schema, **twin.schema}, owners=owners)
    return found


def _options(section: Mapping[str, Any], classes: Mapping[str, Any], prefix: str) -> Iterator[ConfigOption]:
    owner = section["properties"].get("name", {}).get("const")
    for name, schema in section["properties"].items():
        path = prefix + name
        members = schema.get("discriminator", {}).get("mapping", {})
        if "$ref" in schema:
            yield from _options(classes[schema["$ref"]], classes, f"{path}.")
        elif "const" not in schema:
            yield ConfigOption(path=path, schema=schema, choices=tuple(members), owners=(owner,) if owner else ())
        for member in members.values():
            yield from _options(classes[member], classes, f"{path}.")


def to_tree(config: Config) -> dict[str, Any]:
    """Return the config as nested plain data, as it is saved."""
    return dict(msgspec.to_builtins(config))


def leaves(config: Config) -> dict[str, Any]:
    """Return the value of every option by its dotted path."""
    return dict(_flat(to_tree(config)))


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path.removesuffix(".name") if path.removesuffix(".name") in config_options() else path, value


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping of sections that a YAML text holds. Raises UserError when it is none."""
    try:
        tree = yaml.load(text, _Loader)
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        what = ", ".join(filter(None, (error.problem, error.context))).replace("'<stream end>'", "the file ends")
        raise UserError(f"This is not YAML, {where}{what}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = "it is nested too deep" if isinstance(error, RecursionError) else first_line(error)
        raise UserError(f"This is not YAML: {what}.") from error
    if tree is None:
        raise UserError("A config is a mapping of sections, and this one is empty.")
    if not isinstance(tree, dict):
        raise UserError(f"A config is a mapping of sections, not {type(tree).__name__}.")
    return tree


class _Loader(yaml.SafeLoader):
    """Refuses a section or option that is stated twice, of which YAML's loader would take the last without a word, and
    aliases, by which a few lines become gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise UserError("a config has no aliases (*name): write the value where it belongs.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _refuse_twice(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return dict(super().construct_mapping(node, deep))


def _refuse_twice(names: Iterable[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{twice[0]} is stated twice: leave one of them out.")


def from_tree(tree: Mapping[str, Any], base: Config) -> Config:
    """``base`` with the options that a tree of plain data holds. Raises UserError as `override` does."""
    _refuse_twice(path for path, _ in _flat(tree))
    return override(base, dict(_flat(tree)))


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with some options set, by dotted path, to plain data or to text that states it. Loads plug-ins
    if one of them has to have the estimator.

    Raises:
        UserError: there is no such option (the message names the nearest one), or a value, the config's own ones
            included, has a wrong type or is out of bounds.
    """
    tree = to_tree(config)
    first = {path: values[path] for path in (_PLUGINS, ESTIMATOR) if path in values}
    for path, value in first.items():
        _set(tree, _option(path), value)
    if isinstance(name := tree["algorithm"]["estimator"]["name"], str) and name not in ESTIMATOR_TYPES:
        load_named(tree["run"]["plugins"], ESTIMATORS, name)
    # Another choice drops the options of the last one, so it comes before its own.
    for path in sorted(values.keys() - first.keys(), key=lambda path: (not _option(path).choices, path)):
        _set(tree, _option(path), values[path])
    for path, value in _flat(tree):
        if isinstance(value, bool) and config_options()[path].type != "boolean":  # pydantic would take True for 1
            raise _refusal(path, tree)
    try:
        return _type_with(tuple(ESTIMATOR_TYPES)).validate_python(expand_home(tree))
    except ValidationError as error:
        # pydantic puts these into the path
        names = {name for option in config_options().values() for name in option.choices}
        path = ".".join(each for each in error.errors()[0]["loc"] if isinstance(each, str) and each not in names)
        # What may be of several types has the type after it.
        path = max((option for option in config_options() if f"{path}.".startswith(f"{option}.")), key=len)
        raise _refusal(path, tree) from error


def expand_home(value: Any) -> Any:
    """Plain data with the home folder for a ``~`` that begins a text: shells leave it in quotes and after ``=``."""
    return map_texts(value, os.path.expanduser)


def _option(path: str) -> ConfigOption:
    if path in config_options():
        return config_options()[path]
    inside = [name for name in config_options() if name.startswith(f"{path}.")]
    if inside:
        raise UserError(f"{path} is a section of options such as {inside[0]}: give it a mapping of those.")
    raise UserError(f"There is no option {path!r} in a config{did_you_mean(path, config_options())}")


def _set(tree: dict[str, Any], option: ConfigOption, value: Any) -> None:
    node = tree
    *sections, name = option.path.split(".")
    for section in sections:
        node = node[section]
    if option.owners and node["name"] not in option.owners:
        owners = " or ".join(option.owners)
        raise UserError(
            f"{option.path} is an option of {option.union} {owners}, and this run's is {node['name']}: leave it out, "
            f"or set {option.union} to {owners}."
        )
    if option.choices:
        if value != node[name]["name"]:
            node[name] = {"name": value}
    elif option.type == "array" and value in ("none", ["none"]):
        node[name] = []
    else:
        node[name] = None if value == "none" and {"type": "null"} in option.schema.get("anyOf", ()) else value


def _refusal(path: str, tree: Mapping[str, Any]) -> UserError:
    """Return e.g. ``run.steps is 0; it must be a whole number of at least 1.``"""
    value: Any = reduce(lambda node, name: node[name], path.split("."), tree)
    shown = value["name"] if config_options()[path].choices else value
    return UserError(f"{path} is {shown!r}; it must be {config_options()[path].accepts}.")


def _describe(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe(each) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(sorted(schema["enum"]))
    bounds = " and ".join(f"{words} {_number(schema[key])}" for key, words in _BOUNDS.items() if key in schema)
    return f"{_TYPES[schema['type']]} {bounds}".rstrip()


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"

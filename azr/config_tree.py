"""The one way into a `Config`: plain data from YAML, a recipe or the command line, checked against names and bounds.

A knob has a dotted path such as ``selfplay.group_size``. The estimator is a union by name: ``algorithm.estimator: gae``
is short for ``algorithm.estimator.name: gae``, and a knob of its own is ``algorithm.estimator.lambda_``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import msgspec
import yaml

from azr.config import ESTIMATOR_TYPES, Config, PluginEstimator
from azr.errors import UserError, nearest
from azr.own_modules import find_entry

ESTIMATOR = "algorithm.estimator"
_ESTIMATOR_NAME = f"{ESTIMATOR}.name"
"""Where the tree holds what `ESTIMATOR` is short for."""
_PLUGIN = str(PluginEstimator.__struct_config__.tag)
_PLUGINS = "run.plugins"
_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_TYPES |= {"array": "a list of names", "null": "none"}
_BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
"""Words for the keys of JSON Schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One leaf of the tree."""

    path: str
    type: Any
    """Its annotation, with bounds."""
    doc: str
    """What stands below the field, on one line."""
    estimator: str | None = None
    """The estimator that alone has it; None for a knob of every run."""

    @property
    def option(self) -> str:
        """As the command line spells it."""
        return "--" + self.path.rstrip("_").replace("_", "-")

    @property
    def accepts(self) -> str:
        """What it may hold, in words: ``a whole number of at least 1``."""
        if self.path == ESTIMATOR:
            return f"one of {', '.join(ESTIMATOR_TYPES)}, or the name that a plug-in gives one"
        return _describe(msgspec.json.schema(self.type))


@cache
def knobs() -> Mapping[str, Knob]:
    """Every knob by its path, in the order of the tree."""
    return {knob.path: knob for knob in _knobs(Config, "")}


def _knobs(section: type, prefix: str) -> Iterator[Knob]:
    docs, hints = _docs(section), get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        hint, path = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _knobs(hint, f"{path}.")
        else:
            yield Knob(path=path, type=hint, doc=docs[field.name])
        if path == ESTIMATOR:
            for name, struct in {**ESTIMATOR_TYPES, _PLUGIN: PluginEstimator}.items():
                types, docs_of_struct = get_type_hints(struct, include_extras=True), _docs(struct)
                for knob in struct.__struct_fields__:
                    yield Knob(path=f"{path}.{knob}", type=types[knob], doc=docs_of_struct[knob], estimator=name)


def _docs(section: type) -> dict[str, str]:
    """The string below each field of a class; empty for a field without one."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, below in pairwise([*body.body, ast.Pass()]):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                docs[name] = ""
    return docs


def to_tree(config: Config) -> dict[str, Any]:
    """The config as nested plain data, as it is saved."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    return tree


def leaves(config: Config) -> dict[str, Any]:
    """The value of every knob of a config by its dotted path."""
    return {_short(path): value for path, value in _flat(to_tree(config), "")}


def _short(path: str) -> str:
    return ESTIMATOR if path == _ESTIMATOR_NAME else path


def _flat(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def from_yaml(text: str) -> Config:
    """A config from YAML such as a run's ``config.yaml``; what it leaves out has its default. Raises UserError."""
    return from_tree(parse_yaml(text), Config())


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping of sections that a YAML text holds. Raises UserError when it is none."""
    try:
        tree = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"This is not YAML: {error}".replace("\n", " ")) from error
    if not isinstance(tree, dict):
        raise UserError(f"A config is a mapping of sections, not {type(tree).__name__}.")
    return tree


class _Loader(yaml.SafeLoader):
    """Refuses a section or knob that is stated twice, of which YAML's loader would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key, count in Counter(keys).items() if count > 1]:
            raise UserError(f"{twice[0]} is stated twice: leave one of them out.")
        return dict(super().construct_mapping(node, deep))


def from_tree(tree: Mapping[str, Any], base: Config) -> Config:
    """``base`` with the knobs that a tree of plain data holds. Raises UserError as `override` does."""
    return override(base, dict(_flat(tree, "")))


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with some knobs set, by dotted path, to plain data or to text that states it.

    Raises:
        UserError: there is no such knob (the message names the nearest one), or a value, the config's own ones
            included, has a wrong type or is out of bounds.
    """
    tree = to_tree(config)
    named = {_short(path): value for path, value in values.items()}
    # A change of estimator drops the knobs of the last one, so it comes before those of the next; and whether a name
    # may be that of a plug-in's depends on the plug-ins.
    for path in sorted(named, key=lambda path: (path != _PLUGINS, path != ESTIMATOR)):
        _set(tree, _knob(path), named[path])
    try:
        return msgspec.convert(at_home(tree), Config, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(_sentence(str(error), tree)) from error


def at_home(value: Any) -> Any:
    """Plain data with the home folder for a ``~`` that begins a text: shells leave it in quotes and after ``=``."""
    if isinstance(value, dict):
        return {name: at_home(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [at_home(each) for each in value]
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value


def _knob(path: str) -> Knob:
    if path in knobs():
        return knobs()[path]
    inside = [name for name in knobs() if name.startswith(f"{path}.")]
    if inside:
        raise UserError(f"{path} is a section of knobs such as {inside[0]}: give it a mapping of those.")
    raise UserError(f"There is no knob {path!r} in a config; did you mean {nearest(path, knobs())!r}?")


def _set(tree: dict[str, Any], knob: Knob, value: Any) -> None:
    node = tree
    *sections, name = knob.path.split(".")
    for section in sections:
        node = node[section]
    if knob.estimator not in (None, node.get("name")):
        raise UserError(
            f"{knob.path} is a knob of the estimator {knob.estimator}, and this run's is {node['name']}: leave it out, "
            f"or set {ESTIMATOR} to {knob.estimator}."
        )
    if knob.path == ESTIMATOR:
        if value not in ESTIMATOR_TYPES and value != _PLUGIN and _may_be_of_plugin(value, tree):
            node[name] = {"name": _PLUGIN, "function": value}
        elif value != node[name]["name"]:
            node[name] = {"name": value}
    elif value == "none" and type(None) in get_args(knob.type):
        node[name] = None
    else:
        node[name] = _number(value) if isinstance(value, str) and "number" in knob.accepts else value


def _may_be_of_plugin(name: object, tree: Mapping[str, Any]) -> bool:
    """Whether something could be an estimator that a plug-in states; whether it is one is known when that is loaded."""
    if not isinstance(name, str):
        return False
    return bool(tree["run"]["plugins"]) or find_entry("azr.estimators", name) is not None


def _number(text: str) -> str:
    """Text such as ``.5`` in the spelling of numbers that msgspec knows; other text as it is."""
    try:
        return repr(float(text)) if "." in text else text
    except ValueError:
        return text


def _sentence(complaint: str, tree: Mapping[str, Any]) -> str:
    """``run.steps is 0; it must be a whole number of at least 1.`` for what msgspec says about ``$.run.steps``."""
    path = _short(re.sub(r"\[.*", "", complaint.partition(" - at `$.")[2].rstrip("`")))
    value: Any = tree
    for name in path.split("."):
        value = value[name]
    return f"{path} is {value['name'] if path == ESTIMATOR else value!r}; it must be {knobs()[path].accepts}."


def _describe(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe(each) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    bounds = " and ".join(f"{words} {schema[key]:g}" for key, words in _BOUNDS.items() if key in schema)
    return f"{_TYPES[schema['type']]} {bounds}".rstrip()

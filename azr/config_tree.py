"""The one way into a `Config`: plain data from YAML, a recipe or the command line, checked against names and bounds.

A knob has a dotted path such as ``selfplay.group_size``. The estimator is a union by name: ``algorithm.estimator: gae``
is short for ``algorithm.estimator.name: gae``, and a knob of its own is ``algorithm.estimator.lambda_``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec
import yaml
from msgspec import Struct

from azr.config import Config
from azr.errors import UserError, nearest

_TAG = "name"
_ESTIMATOR = "algorithm.estimator"
_ESTIMATOR_NAME = f"{_ESTIMATOR}.{_TAG}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One leaf of the tree."""

    path: str
    type: Any
    """Its annotation, with bounds."""
    doc: str
    """What stands below the field, on one line."""
    owner: str | None = None
    """Name of the estimator that alone has it; None for a knob of every run."""

    @property
    def option(self) -> str:
        """As the command line spells it."""
        return "--" + self.path.rstrip("_").replace("_", "-")


def knobs() -> list[Knob]:
    """Every knob, in the order of the tree."""
    return list(_knobs(Config, ""))


def _knobs(node: type, prefix: str) -> Iterator[Knob]:
    docs, hints = _docs(node), get_type_hints(node, include_extras=True)
    for name in (field.name for field in dataclasses.fields(node)):
        hint, path = hints[name], prefix + name
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _knobs(hint, f"{path}.")
            continue
        yield Knob(path=path, type=hint, doc=docs[name])
        for struct in _variants(hint):
            own = get_type_hints(struct, include_extras=True)
            for field in struct.__struct_fields__:
                tag = str(struct.__struct_config__.tag)
                yield Knob(path=f"{path}.{field}", type=own[field], doc=_docs(struct)[field], owner=tag)


def _variants(hint: Any) -> list[type[Struct]]:
    return [each for each in get_args(hint) if isinstance(each, type) and issubclass(each, Struct)]


def _docs(node: type) -> dict[str, str]:
    """The string below each field of a class; empty for a field without one."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(node))).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    last = ""
    for statement in body.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                last, docs[name] = name, ""
            case ast.Expr(value=ast.Constant(value=str(text))) if last:
                docs[last], last = " ".join(text.split()), ""
            case _:
                last = ""
    return docs


def to_tree(config: Config) -> dict[str, Any]:
    """The config as nested plain data, as it is saved."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    return tree


def leaves(config: Config) -> dict[str, Any]:
    """The value of every knob of a config by its dotted path."""
    return dict(_leaves(to_tree(config), ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield (_ESTIMATOR if prefix + name == _ESTIMATOR_NAME else prefix + name), value


def from_yaml(text: str) -> Config:
    """A config from YAML such as a run's ``config.yaml``; what it leaves out has its default. Raises UserError."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"This is not YAML: {error}".replace("\n", " ")) from error
    if not isinstance(tree, dict):
        raise UserError(f"A config is a mapping of sections, not {type(tree).__name__}.")
    return override(Config(), dict(_given(tree, "")))


def _given(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _given(value, f"{path}.")
        else:
            yield path, value


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with some knobs set, by dotted path, to plain data or to text that states it.

    Raises:
        UserError: there is no such knob (the message names the nearest one), or a value has a wrong type or is out of
            bounds.
    """
    tree = to_tree(config)
    known = {knob.path: knob for knob in knobs()}
    for path, value in _estimators_first(values):
        if path == _ESTIMATOR_NAME:
            path = _ESTIMATOR
        if path not in known:
            raise UserError(f"There is no knob {path!r} in a config; did you mean {nearest(path, known)!r}?")
        _set(tree, path.split("."), value, known[path])
    return check(tree)


def _estimators_first(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A change of estimator drops the knobs of the last one, so it comes before those of the next."""
    return iter(sorted(values.items(), key=lambda item: item[0] not in (_ESTIMATOR, _ESTIMATOR_NAME)))


def _set(tree: dict[str, Any], path: Sequence[str], value: Any, knob: Knob) -> None:
    *sections, name = path
    node = tree
    for section in sections:
        node = node[section]
    if knob.owner is not None and node[_TAG] != knob.owner:
        raise UserError(
            f"{knob.path} is a knob of the estimator {knob.owner}, and this run's is {node[_TAG]}: leave it out, or "
            f"set algorithm.estimator to {knob.owner}."
        )
    if isinstance(node.get(name), dict):
        if node[name][_TAG] != value:
            node[name] = {_TAG: value}
    elif value == "none" and type(None) in get_args(knob.type):
        node[name] = None
    else:
        node[name] = value


def check(tree: Mapping[str, Any]) -> Config:
    """A config from nested plain data of known names. Raises UserError for a wrong type or a value out of bounds."""
    try:
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(_sentence(str(error), tree)) from error


def _sentence(complaint: str, tree: Mapping[str, Any]) -> str:
    """``run.steps is 0; it must be `int` >= 1.`` for what msgspec says about ``$.run.steps``."""
    place = complaint.partition(" - at `$.")[2]
    path = re.sub(r"\[\d*\.*\]$", "", place.rstrip("`"))
    value: Any = tree
    for name in path.split("."):
        value = value[name]
    if path in (_ESTIMATOR, _ESTIMATOR_NAME):
        names = ", ".join(str(each.__struct_config__.tag) for each in _variants(_estimator_hint()))
        return f"There is no estimator {value!r}; algorithm.estimator may be {names}."
    knob = next(knob for knob in knobs() if knob.path == path)
    return f"{path} is {value!r}; it must be {describe(knob.type)}."


def _estimator_hint() -> Any:
    return next(knob.type for knob in knobs() if knob.path == _ESTIMATOR)


def describe(hint: Any) -> str:
    """What a knob may hold, in words: ``a whole number of at least 1``."""
    schema = msgspec.json.schema(hint)
    return _describe(schema)


def _describe(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
        words = [_describe(each) for each in kinds] if all("$ref" not in each for each in kinds) else ["a name"]
        return " or ".join([*words, "none"] if len(kinds) < len(schema["anyOf"]) else words)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    word = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
    if schema["type"] == "array":
        return "a list of names"
    bounds = [
        f"{text} {schema[key]:g}"
        for key, text in (
            ("minimum", "of at least"), ("exclusiveMinimum", "above"),
            ("maximum", "at most"), ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]  # fmt: skip
    return " ".join([word[schema["type"]], " and ".join(bounds)]).rstrip()

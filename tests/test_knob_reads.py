"""No knob is without effect: the package reads each one, from its own section of the config."""

import ast
import dataclasses
from collections import defaultdict
from pathlib import Path

from azr.config import ESTIMATOR_TYPES, Config
from azr.config_tree import knobs

SOURCE = Path(__file__).parents[1] / "azr"
SECTIONS = {str(field.type): field.name for field in dataclasses.fields(Config)}
SECTIONS |= {
    "IntrinsicRewardConfig": "intrinsic",
    "KLConfig": "kl",
    "Objective": "objective",
    "Importance": "importance",
    "CompositesConfig": "composites",
    "LoraConfig": "lora",
    "OffPolicyConfig": "off_policy",
} | {cls.__name__: "estimator" for cls in ESTIMATOR_TYPES.values()}
"""Names of sections, by class."""


def sections_of(expression: ast.expr, held: dict[str, set[str]]) -> set[str]:
    """The sections that an expression may be: ``config.rollout``, or a name that holds one somewhere in the module."""
    if isinstance(expression, ast.Attribute) and expression.attr in SECTIONS.values():
        return {expression.attr}
    return held.get(ast.unparse(expression), set())


def holders(tree: ast.Module) -> dict[str, set[str]]:
    """Expressions of a module that hold a section, as text: ``play`` after ``play = config.selfplay``."""
    held: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and (section := SECTIONS.get(ast.unparse(node.annotation))):
            held[node.arg].add(section)
    for _ in range(2):  # an alias, and an alias of that
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    pairs = list(zip(targets, values, strict=True))
                case ast.Assign(targets=[target], value=value):
                    pairs = [(target, value)]
                case _:
                    continue
            for target, value in pairs:
                held[ast.unparse(target)] |= sections_of(value, held)
    return held


def reads() -> set[tuple[str, str]]:
    """Every (section, attribute) that the package reads."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        held = holders(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found |= {(section, node.attr) for section in sections_of(node.value, held)}
    return found


def test_every_knob_is_read_from_its_section():
    """A knob of the same name in another section, or a comment that names it, does not count."""
    read = reads()
    # Read through `TrackingConfig.names`.
    read |= {("tracking", "to")} & {(section, "to") for section, name in read if name == "names"}
    unread = [path for path in knobs() if tuple(path.split(".")[-2:]) not in read]
    assert unread == []


def test_the_test_can_fail():
    assert not {("rollout", "name"), ("train", "wall_s"), ("checkpoint", "path")} & reads()

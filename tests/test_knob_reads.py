"""No knob is without effect: the package reads each one, from its own section of the config."""

import ast
import dataclasses
from pathlib import Path

from azr.config import ESTIMATOR_TYPES, Config
from azr.config_tree import knobs

SOURCE = Path(__file__).parents[1] / "azr"
SECTIONS = {str(field.type): field.name for field in dataclasses.fields(Config)}
SECTIONS |= {"IntrinsicRewardConfig": "intrinsic"} | {cls.__name__: "estimator" for cls in ESTIMATOR_TYPES.values()}
"""Names of sections, by class."""


def section_of(expression: ast.expr, held: dict[str, str]) -> str | None:
    """The section that an expression is: ``config.rollout``, or a name that holds it."""
    if isinstance(expression, ast.Attribute) and expression.attr in SECTIONS.values():
        return expression.attr
    return held.get(ast.unparse(expression))


def holders(tree: ast.Module) -> dict[str, str]:
    """Expressions of a module that hold a section, as text: ``play`` after ``play = config.selfplay``."""
    held: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=annotation) if annotation and ast.unparse(annotation) in SECTIONS:
                held[name] = SECTIONS[ast.unparse(annotation)]
    for _ in range(2):  # an alias, and an alias of that
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    pairs = list(zip(targets, values, strict=True))
                case ast.Assign(targets=[target], value=value):
                    pairs = [(target, value)]
                case _:
                    continue
            held |= {ast.unparse(target): section for target, value in pairs if (section := section_of(value, held))}
    return held


def reads() -> set[tuple[str | None, str]]:
    """Every (section, attribute) that the package reads."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        held = holders(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add((section_of(node.value, held), node.attr))
    return found


def test_every_knob_is_read_from_its_section():
    """A knob of the same name in another section, or a comment that names it, does not count."""
    read = reads()
    unread = [path for path in knobs() if tuple(path.split(".")[-2:]) not in read]
    assert unread == []


def test_the_test_can_fail():
    assert not {("rollout", "name"), ("train", "wall_s"), ("checkpoint", "path")} & reads()

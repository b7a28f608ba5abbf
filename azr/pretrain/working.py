"""Working, as a person would jot it down: what the parts of a generated program come to on the way to its value.

A line is one sum of small numbers with its result, ``6 // 4 = 1``, or one intermediate value. Loops and comprehensions
are worked element by element. Nothing is said of what takes no working, such as reversing a word.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Working:
    """What was jotted down during one run."""

    lines: tuple[str, ...]
    """In the order of the run."""
    value: Any
    """What the program returned."""


def work(program: str, arguments: tuple[Any, ...]) -> Working:
    """Run a program of the generator or of `azr.pretrain.compositions` and jot down what leads to its value.

    Raises:
        Exception: whatever the program raises on these arguments.
    """
    (function,) = ast.parse(program).body
    assert isinstance(function, ast.FunctionDef)
    names = [a.arg for a in function.args.args]
    return _Run(dict(zip(names, copy.deepcopy(arguments), strict=True))).body(function.body)


class _Run:
    """One run of a program."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.lines: list[str] = []

    def body(self, statements: list[ast.stmt]) -> Working:
        for statement, after in zip(statements, [*statements[1:], None], strict=True):
            if isinstance(statement, ast.Return):
                assert statement.value is not None
                self.note(statement.value, self.values, shown=True)
                return Working(tuple(self.lines), self.of(statement.value, self.values))
            changed = self.run(statement)
            if changed and not _only_returns(after, changed):
                self.lines.append(repr(self.values[changed]))
        raise AssertionError("a program of the generator returns")

    def run(self, statement: ast.stmt) -> str:
        """Do one statement; returns the name of a value that it changed without the working showing it."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                silent = not self.note(value, self.values, shown=True)
                self.values[name] = self.of(value, self.values)
                return name if silent and not _stands_there(value) else ""
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                total = ast.BinOp(ast.Name(name, ast.Load()), op, value)
                silent = not self.note(total, self.values, shown=True)
                self.values[name] = self.of(total, self.values)
                return name if silent else ""
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call):
                self.note(call, self.values, shown=True)
                self.of(call, self.values)
                return name
            case ast.If(test=test, body=body, orelse=orelse):
                self.note(test, self.values, shown=False)
                changed = [self.run(inner) for inner in (body if self.of(test, self.values) else orelse)]
                return changed[-1] if changed else ""
            case ast.For(target=ast.Name(id=name), iter=items, body=body):
                self.note(items, self.values, shown=True)
                changed = []
                for element in self.of(items, self.values):
                    self.values[name] = element
                    changed += [self.run(inner) for inner in body]
                return next((name for name in reversed(changed) if name), "")
        raise AssertionError(f"the generator makes no {type(statement).__name__}")

    def of(self, node: ast.expr, values: Values) -> Any:
        return eval(compile(ast.Expression(ast.fix_missing_locations(node)), "", "eval"), {**values})

    def note(self, node: ast.expr, values: Values, shown: bool) -> bool:
        """Write down the parts of an expression, and its value unless it is ``shown`` elsewhere.

        Returns whether the last line shows the value.
        """
        operands = _operands(node)
        known = [self.of(operand, values) for operand in operands]
        if operands and all(isinstance(value, int) for value in known):
            for operand in operands:
                self.note(operand, values, shown=True)
            self.lines.append(f"{_with(node, known)} = {self.of(node, values)!r}")
            return True
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            self._elements(node, values)
        else:
            for inner in _parts(node):
                self.note(inner, values, shown=False)
        if isinstance(node, ast.Call) and _is_sum(node) and (numbers := list(self.of(node.args[0], values))):
            self._add_up(numbers)
            return True
        if shown or _stands_there(node):
            return False
        value = self.of(node, values)
        if not isinstance(value, int | str | list | dict):
            return False
        self.lines.append(repr(value))
        return True

    def _add_up(self, numbers: list[int]) -> None:
        total = numbers[0]
        for number in numbers[1:]:
            self.lines.append(f"{total} + {number} = {total + number}")
            total += number
        if len(numbers) == 1:
            self.lines.append(repr(total))

    def _elements(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, values: Values) -> None:
        (loop,) = node.generators
        self.note(loop.iter, values, shown=False)
        for element in self.of(loop.iter, values):
            inner = {**values, **_bound(loop.target, element)}
            for test in loop.ifs:
                self.note(test, inner, shown=True)
            if all(self.of(test, inner) for test in loop.ifs):
                self.note(node.value if isinstance(node, ast.DictComp) else node.elt, inner, shown=True)


def _only_returns(after: ast.stmt | None, name: str) -> bool:
    return isinstance(after, ast.Return) and isinstance(after.value, ast.Name) and after.value.id == name


def _is_sum(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "sum"


def _stands_there(node: ast.expr) -> bool:
    """Whether an expression is a name or a literal, which takes no working."""
    if isinstance(node, ast.Name):
        return True
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _parts(node: ast.expr) -> list[ast.expr]:
    """Expressions whose values an expression that is no sum of numbers is made of."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner), args=args):
            return [owner, *args]
        case ast.Call(args=args):
            return args
        case ast.Subscript(value=value):
            return [value]
        case ast.BinOp() | ast.Compare():
            return _operands(node)
        case ast.List(elts=elements):
            return elements
    return []


def _bound(target: ast.expr, element: Any) -> Values:
    if isinstance(target, ast.Tuple):
        return {t.id: part for t, part in zip(target.elts, element, strict=True) if isinstance(t, ast.Name)}
    assert isinstance(target, ast.Name)
    return {target.id: element}


def _operands(node: ast.expr) -> list[ast.expr]:
    """What a sum of numbers is made of; nothing for expressions that are no sums."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return [operand]
        case ast.Call(func=ast.Name(id="max" | "min" | "abs"), args=args):
            return args
    return []


def _with(node: ast.expr, known: list[int]) -> str:
    """The expression with its operands replaced by their values."""
    numbers: list[ast.expr] = [ast.Constant(value) for value in known]
    match node:
        case ast.BinOp(op=op):
            return ast.unparse(ast.BinOp(numbers[0], op, numbers[1]))
        case ast.Compare(ops=ops):
            return ast.unparse(ast.Compare(numbers[0], ops, [numbers[1]]))
        case ast.UnaryOp():
            return f"-({known[0]})" if known[0] < 0 else f"-{known[0]}"
        case ast.Call(func=name):
            return ast.unparse(ast.Call(name, numbers, []))
    raise AssertionError("only sums have operands")

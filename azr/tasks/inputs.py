"""Reads inputs the way people write them: constant expressions, keyword arguments and ``name = value``.

Plain data is read where it is. An expression is only ever parsed here: what its syntax tree may hold is listed below,
and a tree that holds nothing else becomes a small program that the sandbox runs once. Stored are the values, as
positional arguments in canonical form, so that an input looks the same however it was written.

Arguments that are left out stay out, unless one behind them is given by name: then the default stands there.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence

from azr import values
from azr.execution import ExecutionRequest, ExecutionResult
from azr.executor.syntax import FORMATS
from azr.tasks.normalize import ENTRY, parse, parse_program

MAX_EXPRESSION_CHARS = 2**13
"""Longest text that is read as more than plain data."""

_CALL = "_"
_RESULT = "_inputs"
_CONSTANTS = {"nan": "float('nan')", "inf": "float('inf')"}
"""Names in plain data that Python does not know, with their expressions."""
_FUNCTIONS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "chr", "complex", "dict", "divmod", "enumerate", "float",
    "frozenset", "hex", "inf", "int", "len", "list", "max", "min", "nan", "oct", "ord", "pow", "range", "repr",
    "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip
_SEARCHING_FUNCTIONS = frozenset({"bytearray", "filter", "format", "iter", "map", "next", "slice"})
_COMPUTING = (
    ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.Starred, ast.List, ast.Tuple, ast.Set, ast.Dict,
    ast.Subscript, ast.Slice, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.expr_context,
)  # fmt: skip
_SEARCHING = (
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.boolop, ast.cmpop,
)  # fmt: skip
"""An answer must not hold these: it could try one value after another instead of finding the one that is asked for."""
_CHOOSING = (ast.BoolOp, ast.Compare, ast.IfExp, ast.boolop, ast.cmpop)
"""A function that is an argument of an answer may hold these, though."""


Expressions = tuple[ast.expr, ...]
"""Positional arguments that have to be evaluated; every node of the trees is one that this file lists."""


def read_input(text: str, program: str, *, is_answer: bool = False) -> str | Expressions | None:
    """Return canonical arguments for the program's ``f``, or what to evaluate for them; None if it is not an input. An
    answer may compute, but not search: it must do without loops and conditions, and cannot use the program."""
    try:
        return values.canonical_arguments(values.parse_arguments(text))
    except values.TooLargeError:
        return None
    except values.PlainDataError:
        return _read_expressions(text, program, is_answer)


def answer_may_state(argument: ast.expr, *, lambdas: bool = False) -> bool:
    """Return whether an answer may state this argument: it may compute, but not search or reach the program.
    ``lambdas``: it may be a function of its own parameters, without loops or functions in it."""
    if not lambdas or not isinstance(argument, ast.Lambda):
        return _is_allowed(argument, frozenset(), True)
    names = frozenset(node.arg for node in ast.walk(argument.args) if isinstance(node, ast.arg))
    methods = {node.attr for node in ast.walk(argument.body) if isinstance(node, ast.Attribute)}
    has_defaults = argument.args.defaults or argument.args.kw_defaults
    return not has_defaults and methods.isdisjoint(FORMATS) and _is_allowed(argument.body, names, True, _CHOOSING)


def evaluation_request(inputs: Sequence[Expressions], program: str, repeats: int) -> ExecutionRequest:
    """Return one call that computes the arguments of all these inputs, with the program if they use a name of it."""
    rows = ast.unparse(ast.List([ast.Tuple(list(each), ast.Load()) for each in inputs], ast.Load()))
    tree = parse_program(program)
    used = {name.id for each in inputs for name in _names_in(*each)}
    known = _names_of(tree) if tree is not None else frozenset()
    lines = [program] if used & known else []
    lines += [f"{name} = {value}" for name, value in _CONSTANTS.items() if name in used and name not in known]
    # Evaluated before the entry function's name is taken, which the program's functions may call.
    lines += [f"{_RESULT} = {rows}", f"def {ENTRY}():", f"    return {_RESULT}"]
    return ExecutionRequest(program="\n".join(lines), inputs=("",), repeats=repeats)


def evaluated_inputs(result: ExecutionResult, count: int) -> tuple[str, ...] | None:
    """Return canonical arguments per input from a call that ended well; None if it returned something else."""
    value = result.outputs[0].value
    rows = values.parse(value) if value is not None else None
    if type(rows) is not list or len(rows) != count or any(type(row) is not tuple for row in rows):
        return None
    return tuple(map(values.canonical_arguments, rows))


def _read_expressions(text: str, program: str, is_answer: bool) -> str | Expressions | None:
    if len(text) > MAX_EXPRESSION_CHARS:
        return None
    tree, stated = parse_program(program), _stated(text)
    if tree is None or stated is None:
        return None
    arguments = _positional(tree, *stated)
    if arguments is None:
        return None
    known = frozenset[str]() if is_answer else _names_of(tree)
    if not all(_is_allowed(argument, known, is_answer) for argument in arguments):
        return None
    try:
        # Data by name needs no evaluation.
        return values.canonical_arguments(values.parse_arguments(", ".join(map(ast.unparse, arguments))))
    except values.TooLargeError:
        return None
    except values.PlainDataError:
        return arguments


def _stated(text: str) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """Positional arguments and arguments by name, as one call or as one assignment a line would give them."""
    tree = parse(f"{_CALL}(\n{text}\n)")
    match tree.body if tree is not None else []:
        case [ast.Expr(value=ast.Call(func=ast.Name(id=name), args=given, keywords=keywords))] if name == _CALL:
            named = {word.arg: word.value for word in keywords if word.arg is not None}
            doubtful = len(named) < len(keywords) or any(isinstance(each, ast.Starred) for each in given)
            return None if doubtful else (given, named)
    lines = parse(textwrap.dedent(text).strip())
    named = {}
    for line in lines.body if lines is not None else []:
        match line:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name not in named:
                named[name] = value
            case _:
                return None
    return ([], named) if named else None


def _positional(tree: ast.Module, given: list[ast.expr], named: dict[str, ast.expr]) -> tuple[ast.expr, ...] | None:
    """Return all arguments by position; None if ``f`` has no parameter of a name, or one before it is missing."""
    (entry,) = (node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY)
    names = [parameter.arg for parameter in (*entry.posonlyargs, *entry.args)]
    at = {name: index for index, name in enumerate(names) if index >= max(len(entry.posonlyargs), len(given))}
    if not named.keys() <= at.keys():
        return None
    defaults = dict(zip(reversed(names), reversed(entry.defaults), strict=False))
    between = names[len(given) : 1 + max((at[name] for name in named), default=-1)]
    if any(name not in named and name not in defaults for name in between):
        return None
    return (*given, *(named.get(name) or defaults[name] for name in between))


def _is_allowed(
    expression: ast.expr, known: frozenset[str], is_answer: bool, more: tuple[type[ast.AST], ...] = ()
) -> bool:
    """Whether an input may hold all that occurs in the expression. ``known``: names of the program, or of parameters;
    ``more``: further nodes."""
    kinds = (*_COMPUTING, *more) if is_answer else (*_COMPUTING, *_SEARCHING)
    names = known | (_FUNCTIONS if is_answer else _FUNCTIONS | _SEARCHING_FUNCTIONS)
    nodes = list(ast.walk(expression))
    bound = {name.id for name in _names_in(expression) if isinstance(name.ctx, ast.Store)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        match node:
            case ast.Constant(value=value) if not _is_plain(value):
                return False
            case ast.Name(id=name) if name not in names and name not in bound:
                return False
            case ast.Attribute(attr=name) if name.startswith("_") or (is_answer and id(node) not in called):
                return False
        if not isinstance(node, kinds):
            return False
    return True


def _names_of(tree: ast.Module) -> frozenset[str]:
    """Return the names that a program defines or imports at module level."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.Assign() | ast.AnnAssign():
                names |= {name.id for name in _names_in(node) if isinstance(name.ctx, ast.Store)}
    return frozenset(names)


def _names_in(*trees: ast.AST) -> Iterator[ast.Name]:
    return (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))


def _is_plain(value: object) -> bool:
    try:
        values.canonical(value)
    except values.PlainDataError:
        return False
    return True

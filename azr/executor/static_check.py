"""Refuses a program, before it runs, that imports or names what a task must not use, and says on which line.

It is a filter for honest mistakes and cheap tricks: it keeps proposals deterministic and self-contained. What modules
hold is judged by what it is, whichever path leads there. A module passed around as a value is refused because the rules
could not follow it. A local variable ``input``, a function ``compile`` and an attribute ``self.time`` pass.

Covered: imports, builtins, attributes and members of modules that a program names, in a string too. Not covered: names
that it puts together while it runs. Such a program meets the walls, which are the security, and finds no clock.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import importlib
import re
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from azr.executor import syntax
from azr.executor.syntax import FORMATS, Place

FILE_NAME = "program"  # what programs are compiled as
ALLOWED_MODULES = (
    "__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "cmath", "collections", "collections.abc",
    "colorsys", "contextlib", "copy", "csv", "dataclasses", "decimal", "difflib", "enum", "fnmatch", "fractions",
    "functools", "graphlib", "heapq", "html", "itertools", "json", "keyword", "math", "numbers", "operator", "pprint",
    "re", "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib",
)  # fmt: skip
"""What a program may import: nothing with clocks, randomness, I/O, processes or interpreter internals."""
BANNED_ATTRIBUTES = {
    "CodeType", "ForwardRef", "Formatter", "__annotations__", "__base__", "__bases__", "__builtins__", "__closure__",
    "__code__", "__defaults__", "__dict__", "__func__", "__getattribute__", "__globals__", "__import__",
    "__kwdefaults__", "__loader__", "__mro__", "__reduce__", "__reduce_ex__", "__self__", "__spec__", "__subclasses__",
    "__traceback__", "_convert_", "ag_code", "ag_frame", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code",
    "f_globals", "f_locals", "get_type_hints", "gi_code", "gi_frame", "mro", "tb_frame", "tb_next",
}  # fmt: skip
"""What leads from a value to the interpreter, or evaluates text; ``self.__dict__`` in a method passes."""
BANNED_BUILTINS = {
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec", "exit",
    "getattr", "globals", "help", "input", "locals", "open", "quit", "setattr", "vars",
}  # fmt: skip
_BANNED_MEMBERS = (
    "ast.main", "base64.main", "contextlib.chdir", "enum.global_enum", "string.Formatter", "types.CodeType",
    "types.FrameType", "types.TracebackType", "typing.ForwardRef", "typing.get_type_hints",
)  # fmt: skip
"""What of allowed modules reaches code, files, other modules or attributes by text, under any name."""
_BY_NAME = ("operator.attrgetter", "operator.methodcaller")
"""They reach attributes by name, and pass when called with literal names, as ``getattr`` does."""
_WRAPPERS = {"functools.wraps": 1, "functools.update_wrapper": 2}
"""They copy attributes by name; allowed only with exactly so many positional functions."""
_KINDS = ("types.FunctionType",)
"""They make what they name, and pass where ``isinstance`` asks for them."""
_DISPATCHERS = ("functools.singledispatch", "functools.singledispatchmethod")
"""They evaluate annotations that are text."""
_FIELDS = frozenset({"__dataclass_fields__", "_fields"})
"""They tell functions of ast and dataclasses which attributes to read."""
_WRAPPED = frozenset({"", "wrapped", "wrapper"})
"""Names of their arguments, which may be left out."""
_NAMED_BY_TEXT = frozenset({"getattr", "attrgetter", "methodcaller"})
_SELF = ast.dump(ast.Name("self", ast.Load()))
_OWNERS = frozenset(
    {"builtins", "_collections_abc", "_sre"}.union(
        *({top, "_" + top} for top in (name.partition(".")[0] for name in ALLOWED_MODULES))
    )
)
"""Modules that what allowed modules hold may come from."""
_WORDS = BANNED_BUILTINS | BANNED_ATTRIBUTES
_TRIGGERS = ("import", *sorted(FORMATS | _WORDS))
_TRIGGER = re.compile(rf"\b(?:{'|'.join(_TRIGGERS)})\b", re.ASCII)
_TELLING = re.compile("|".join(sorted(w if w[:2] == "__" else rf"\b{w}\b" for w in _WORDS if "_" in w[:3])))


def load(source: str, checked: bool = True) -> tuple[CodeType | None, tuple[str, ...]]:
    """The program compiled, or None and the reasons to refuse it, such as ``line 3: imports random``.

    If not ``checked``, only a program that does not compile is refused. Nothing is run.
    """
    try:
        code = compile(source, FILE_NAME, "exec", dont_inherit=True)
        reasons = _reasons(ast.parse(source), code) if checked and is_suspect(source, code) else ()
    except SyntaxError as error:
        return None, (f"line {error.lineno or 1}: {error.msg}",)
    except (ValueError, MemoryError, RecursionError) as error:
        return None, (f"line 1: cannot be parsed ({type(error).__name__})",)
    return (None, reasons) if reasons else (code, ())


def is_suspect(source: str, code: CodeType) -> bool:
    """Whether the rules could find anything; never False where they would. Most programs are not."""
    if not source.isascii() or any(True for _ in _strings(code)):
        return True
    # Looked for as mere text first, for a pattern of all takes longer.
    return any(word in source for word in _TRIGGERS) and _TRIGGER.search(source) is not None


def _reasons(tree: ast.Module, code: CodeType) -> tuple[str, ...]:
    check = _Check(tree)
    if ("annotations", "__future__.annotations") in check.imports:
        # The code holds annotations as text then, which may be evaluated later.
        tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.module != "__future__"]
        code = compile(tree, FILE_NAME, "exec", dont_inherit=True)
    check.judge_names(code, set(), set())
    return tuple(f"line {line}: {why}" for line, why in sorted(check.offences.union(_strings(code))))


class _Check:
    """Collects the offences of a program: imports and attributes from its tree, names from its code."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = nodes = syntax.by_kind(tree)
        named = [node for node in nodes[ast.Name] if node.id == "__annotations__"]
        self.offences = {(node.lineno, "uses __annotations__") for node in named}
        in_methods, in_classes = set[int](), set[int]()
        for node in nodes[ast.ClassDef]:
            functions = (each for each in ast.walk(node) if isinstance(each, ast.FunctionDef))
            methods = {id(part) for each in functions for part in ast.walk(each)}
            in_methods |= methods
            in_classes |= set(map(id, ast.walk(node))) - methods
        self.imports, held = set[tuple[str, str]](), set[str]()
        """Names that import statements bind, ``*`` too, and what to: ``("m", "math")``; attributes that are modules."""
        for node in (*nodes[ast.Import], *nodes[ast.ImportFrom]):
            before = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.name if alias.asname or before else alias.name.partition(".")[0]
                self.imports.add((alias.asname or bound, before + bound))
                if id(node) in in_classes and isinstance(_along(before + bound)[-1], ModuleType):
                    held.add(alias.asname or bound)
                if offence := "relatively" if before.startswith(".") else _offence(before + alias.name):
                    self.offences.add((node.lineno, f"imports {offence}"))
        self.module_names = set[str]()
        self.deleted = {node.id for node in nodes[ast.Name] if isinstance(node.ctx, ast.Del)}
        self.deleted |= {node.name for node in nodes[ast.ExceptHandler]}
        called = [node for node in nodes[ast.Call] if isinstance(node.func, ast.Name | ast.Attribute)]
        self.calls: dict[Place, ast.Call] = {(node.func.lineno, node.func.col_offset): node for node in called}
        """By where what is called begins; of ``a(b).c(d)`` the inner one."""
        self._judge_attributes(in_methods, held)

    def _judge_attributes(self, in_methods: set[int], held: set[str]) -> None:
        nodes = self.nodes
        attributes: list[tuple[int, str, ast.expr | None]] = []
        for node in nodes[ast.Attribute]:
            # A method may look at its own instance.
            if node.attr != "__dict__" or ast.dump(node.value) != _SELF or id(node) not in in_methods:
                attributes.append((node.end_lineno, node.attr, node.value))
            if node.attr in _FIELDS and isinstance(node.ctx, ast.Store):
                self.offences.add((node.end_lineno, f"changes the attribute {node.attr}"))
        attributes += [(node.lineno, name, None) for node in nodes[ast.MatchClass] for name in node.kwd_attrs]
        for node in nodes[ast.Call]:
            if _called(node) in _NAMED_BY_TEXT:
                attributes += [(node.lineno, part, None) for text in _texts(node) for part in text.split(".")]
        samples = any(path.startswith("statistics") for _, path in self.imports)
        for line, name, _ in attributes:
            if name in BANNED_ATTRIBUTES or (samples and name == "samples"):
                self.offences.add((line, f"uses the attribute {name}"))
            if name in held:
                self.offences.add((line, f"reaches the module {name} through a class"))
        computed = syntax.not_literal(nodes, [(line, value) for line, name, value in attributes if name in FORMATS])
        if computed and syntax.passes_functions_around(nodes):
            self.offences |= {(line, "formats a text that is not literal") for line in computed}

    def judge_names(self, code: CodeType, certain: set[str], local: set[str]) -> None:
        """Judge names that code reads; ``certain``: bound by the module for sure; ``local``: by functions around."""
        is_module, here, straight = code.co_name == "<module>", set(certain), not code.co_exceptiontable
        steps = list(dis.get_instructions(code))
        if any(step.opname == "IMPORT_NAME" for step in steps):
            local = local | {step.argval for step in steps if step.opname in ("STORE_FAST", "STORE_DEREF")}
        if is_module:
            self.module_names = {step.argval for step in steps if step.opname == "STORE_NAME"}
        for index, step in enumerate(steps):
            straight = straight and step.opcode not in dis.hasjrel
            if isinstance(step.argval, CodeType):
                # A function without decorators cannot be called before its name is bound.
                after = next((each for each in steps[index + 1 : index + 4] if "FUNCTION" not in each.opname), step)
                own = {after.argval} - self.deleted if straight and after.opname == "STORE_NAME" else set()
                self.judge_names(step.argval, here | own if is_module else certain, local)
            elif step.opname == "STORE_NAME" and straight:
                here |= {step.argval} & BANNED_BUILTINS - self.deleted
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"):
                self.judge_name(steps, index, BANNED_BUILTINS - here)
            elif step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and step.argval in local:
                self.judge_name(steps, index, set())

    def judge_name(self, steps: list[dis.Instruction], index: int, builtins: set[str]) -> None:
        """Judge one name that is read, with the attributes that follow it; ``builtins``: what it may be."""
        name, at = steps[index].argval, steps[index].positions or dis.Positions()
        line, place = at.lineno or 1, (at.lineno or 0, at.col_offset or 0)
        if name == "__annotations__":
            return  # statements read it where they annotate; the tree tells where the program names it
        end = next(i for i in range(index + 1, len(steps)) if steps[i].opname not in ("LOAD_ATTR", "LOAD_METHOD"))
        attributes = [step.argval for step in steps[index + 1 : end]]
        if name in builtins and (name != "getattr" or attributes or not _texts(self.calls.get(place))):
            self.offences.add((line, f"uses {name}"))
        starts = [path for bound, path in self.imports if bound == name and not _offence(path)]
        if builtins and name not in self.module_names:
            # What a star import binds is not known, so every name that nothing else binds may come from it.
            starts += [path[:-1] + name for bound, path in self.imports if bound == "*"]
        for start in starts:
            path = ".".join((start, *attributes))
            if offence := _offence(path):
                self.offences.add((line, f"reaches {offence}"))
            elif isinstance(_along(path)[-1], ModuleType):
                verb = "changes" if steps[end].opname in ("STORE_ATTR", "DELETE_ATTR") else "passes around"
                self.offences.add((line, f"{verb} the module {path}"))
            elif why := self._misuse(path, place):
                self.offences.add((line, why))

    def _misuse(self, path: str, place: Place) -> str | None:
        """What is wrong about how a member of a module is used here, if anything."""
        known, call = _judged().get(id(_along(path)[-1])), self.calls.get(place)
        if known in _BY_NAME:
            texts = _texts(call)
            if not texts:
                return f"uses {path} otherwise than with literal names"
            found = BANNED_ATTRIBUTES.intersection(part for text in texts for part in text.split("."))
            return f"uses the attribute {min(found)}" if found else None
        if known in _WRAPPERS:
            given = [*call.args, *call.keywords] if call else []
            plain = [each for each in given if type(each) is not ast.Starred and getattr(each, "arg", "") in _WRAPPED]
            if not len(plain) == len(given) == _WRAPPERS[known]:
                return f"uses {path} otherwise than with functions alone"
        if known in _KINDS and place not in syntax.asked_types(self.nodes):
            return f"reaches {path.rpartition('.')[2]}"
        if known in _DISPATCHERS and not syntax.has_plain_annotations(self.nodes):
            return f"uses {path}, which evaluates annotations, with others than names of classes"
        return None


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _texts(call: ast.Call | None) -> list[str]:
    """Literal names of attributes that a call is given; none if it is given anything else."""
    if call is None or call.keywords or ast.Starred in map(type, call.args):
        return []
    wanted = call.args[1:2] if _called(call) == "getattr" else call.args
    texts = [str(each.value) for each in wanted if isinstance(each, ast.Constant)]
    return texts if len(texts) == len(wanted) else []


def _offence(path: str) -> str | None:
    """What must not be reached on a dotted path, if anything."""
    top, *names = path.split(".")
    holder, *values = _along(path)
    if holder is None:
        return top
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        is_member, holder = isinstance(holder, ModuleType), value
        if name in BANNED_ATTRIBUTES:
            return name
        if isinstance(value, ModuleType):
            if (module := value.__name__.partition(".")[0]) not in ALLOWED_MODULES:
                return module
        elif is_member and value is None and name in sys.stdlib_module_names and name not in ALLOWED_MODULES:
            return name
        if is_member and name.startswith("_") and not name.endswith("__"):
            return f"the private {'.'.join((top, *names[: index + 1]))}"
        if id(value) in _banned():
            return _banned()[id(value)]
        is_owned = isinstance(value, type | FunctionType | BuiltinFunctionType)
        owner = getattr(value, "__module__", None) if is_owned else None
        if isinstance(owner, str) and owner.partition(".")[0] not in _OWNERS:
            return owner
    return None


def _along(path: str) -> list[object]:
    """What each name of a dotted path leads to; None where that is not known before the program runs. Runs nothing."""
    top, *names = path.split(".")
    values: list[object] = [importlib.import_module(top) if top in ALLOWED_MODULES else None]
    for name in names:
        holders = values[-1].__mro__ if isinstance(values[-1], type) else values[-1:]
        holders = [each for each in holders if isinstance(each, type | ModuleType)]
        values.append(next((vars(each)[name] for each in holders if name in vars(each)), None))
    return values


@functools.cache
def _banned() -> dict[int, str]:
    """Names of what is banned, by identity."""
    members = {id(_along(path)[-1]): path.rpartition(".")[2] for path in _BANNED_MEMBERS}
    return members | {id(value): name for name in BANNED_BUILTINS if callable(value := getattr(builtins, name, None))}


@functools.cache
def _judged() -> dict[int, str]:
    """Paths of what is judged by how it is used, by identity."""
    return {id(_along(path)[-1]): path for path in (*_BY_NAME, *_WRAPPERS, *_KINDS, *_DISPATCHERS)}


def _strings(code: CodeType) -> Iterator[tuple[int, str]]:
    """Format strings reach attributes too: ``"{0.__globals__}".format(f)``; the compiler has put strings together."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _strings(constant)
        elif isinstance(constant, str | bytes | tuple | frozenset) and (match := _TELLING.search(str(constant))):
            places = [step.positions for step in dis.get_instructions(code) if step.argval is constant]
            lines = {at.lineno or 1 for at in places if at} or {code.co_firstlineno}
            yield from ((line, f"names {match[0]} in a string") for line in lines)

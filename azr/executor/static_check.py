"""Refuses a program, before it runs, that imports or names what a task must not use, and says on which line.

It keeps honest proposals deterministic and self-contained, and stops cheap tricks early. It is no security boundary:
what slips through still runs inside all isolation. A module passed around as a value is refused because the rules
could not follow it. A local variable ``input``, a function ``compile`` and an attribute ``self.time`` pass.
"""

from __future__ import annotations

import ast
import dis
import importlib
import re
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType

FILE_NAME = "program"  # what programs are compiled as
ALLOWED_MODULES = (
    "__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "cmath", "collections", "collections.abc",
    "colorsys", "contextlib", "copy", "csv", "dataclasses", "decimal", "difflib", "enum", "fnmatch", "fractions",
    "functools", "graphlib", "heapq", "html", "itertools", "json", "keyword", "math", "numbers", "operator", "pprint",
    "re", "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib",
)  # fmt: skip
"""What a program may import: nothing with clocks, randomness, I/O, processes or interpreter internals."""
BANNED_ATTRIBUTES = {
    "CodeType", "ForwardRef", "Formatter", "__base__", "__bases__", "__builtins__", "__closure__", "__code__",
    "__defaults__", "__dict__", "__func__", "__getattribute__", "__globals__", "__import__", "__kwdefaults__",
    "__loader__", "__mro__", "__reduce__", "__reduce_ex__", "__self__", "__spec__", "__subclasses__", "__traceback__",
    "ag_code", "ag_frame", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals",
    "get_type_hints", "gi_code", "gi_frame", "mro", "tb_frame", "tb_next",
}  # fmt: skip
"""What leads from a value to the interpreter, or evaluates text; ``self.__dict__`` in a method passes."""
BANNED_BUILTINS = {
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec", "exit",
    "getattr", "globals", "help", "input", "locals", "open", "quit", "setattr", "vars",
}  # fmt: skip
_BY_NAME = {"getattr", "attrgetter", "methodcaller"}
"""They reach attributes by name, and pass when called with literal names."""
_WORDS = BANNED_BUILTINS | BANNED_ATTRIBUTES
_TRIGGER = re.compile(rf"\b(?:import|{'|'.join(sorted(_WORDS))})\b", re.ASCII)
_TELLING = re.compile("|".join(sorted(w if w[0] == "_" else rf"\b{w}\b" for w in _WORDS if "_" in w[:3])))


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
    return not source.isascii() or _TRIGGER.search(source) is not None or any(True for _ in _strings(code))


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
        self.offences: set[tuple[int, str]] = set()
        self.imports: set[tuple[str, str]] = set()
        """Names that import statements bind, ``*`` too, and what to: ``("m", "math")``."""
        self.literal_calls: set[tuple[int | None, int | None]] = set()
        """Where functions are called with literal names: ``getattr(x, "name")``."""
        self.deleted, self.module_names = set[str](), set[str]()
        attributes, in_methods = list[tuple[int, str]](), set[int]()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr="__dict__", value=ast.Name(id="self")) if id(node) in in_methods:
                    pass  # a method may look at its own instance
                case ast.Attribute(attr=name, end_lineno=int(line)):
                    attributes.append((line, name))
                case ast.MatchClass(lineno=line, kwd_attrs=names):
                    attributes += [(line, name) for name in names]
                case ast.ClassDef(body=body):
                    methods = (each for each in body if isinstance(each, ast.FunctionDef))
                    in_methods |= {id(part) for method in methods for part in ast.walk(method)}
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in _BY_NAME:
                    wanted = args[1:2] if name == "getattr" else args
                    texts = [str(each.value) for each in wanted if isinstance(each, ast.Constant)]
                    if texts and len(texts) == len(wanted) and ast.Starred not in map(type, args) and not node.keywords:
                        self.literal_calls.add((node.func.lineno, node.func.col_offset))
                        attributes += [(node.lineno, part) for text in texts for part in text.split(".")]
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    before = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    for alias in aliases:
                        bound = alias.name if alias.asname or before else alias.name.partition(".")[0]
                        self.imports.add((alias.asname or bound, before + bound))
                        if offence := "relatively" if before.startswith(".") else _offence(before + alias.name):
                            self.offences.add((node.lineno, f"imports {offence}"))
                case ast.Name(id=name, ctx=ast.Del()) | ast.ExceptHandler(name=str(name)):
                    self.deleted.add(name)
        telling = {name for name, path in self.imports if _module(path) or path.rpartition(".")[2] in {"*", *_BY_NAME}}
        self.watched = BANNED_BUILTINS | telling
        banned = BANNED_ATTRIBUTES | {"samples" for _, path in self.imports if path.startswith("statistics")}
        self.offences |= {(line, f"uses the attribute {name}") for line, name in attributes if name in banned}

    def judge_names(self, code: CodeType, certain: set[str], local: set[str]) -> None:
        """Judge names that code reads; ``certain``: bound by the module for sure; ``local``: by functions around."""
        is_module, here, straight = code.co_name == "<module>", set(certain), not code.co_exceptiontable
        names = {"*", *code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
        if not is_module and self.watched.isdisjoint(names):
            for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
                self.judge_names(inner, certain, local)
            return
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
        line, is_literal = at.lineno or 1, (at.lineno, at.col_offset) in self.literal_calls
        end = next(i for i in range(index + 1, len(steps)) if steps[i].opname not in ("LOAD_ATTR", "LOAD_METHOD"))
        attributes = [step.argval for step in steps[index + 1 : end]]
        if name in builtins and not (name == "getattr" and is_literal and not attributes):
            self.offences.add((line, f"uses {name}"))
        starts = [path for bound, path in self.imports if bound == name and not _offence(path)]
        if builtins and name not in self.module_names:
            # What a star import binds is not known, so every name that nothing else binds may come from it.
            starts += [path[:-1] + name for bound, path in self.imports if bound == "*"]
        for start in starts:
            path = ".".join((start, *attributes))
            if offence := _offence(path):
                self.offences.add((line, f"reaches {offence}"))
            elif _module(path):
                verb = "changes" if steps[end].opname in ("STORE_ATTR", "DELETE_ATTR") else "passes around"
                self.offences.add((line, f"{verb} the module {path}"))
            elif path.rpartition(".")[2] in _BY_NAME and not is_literal:
                self.offences.add((line, f"uses {path} otherwise than with literal names"))


def _offence(path: str) -> str | None:
    """What must not be reached on a dotted path, if anything."""
    for match in re.finditer(r"([^.]+)(\.|$)", path):
        before, name, here = path[: match.start()].rstrip("."), match[1], path[: match.end(1)]
        module = _module(here)
        if name in BANNED_ATTRIBUTES or (module is not None and module not in ALLOWED_MODULES):
            return module or name
        if before and name.startswith("_") and not name.endswith("__") and _module(before):
            return f"the private {here}"
    return None


def _module(path: str) -> str | None:
    """Top-level name of the module that a dotted path leads to; None for what is no module, such as ``copy.copy``."""
    top, *rest = path.split(".")
    if top not in ALLOWED_MODULES:
        return top
    value: object = importlib.import_module(top)
    for name in rest:
        value = vars(value).get(name, name) if isinstance(value, ModuleType) else None
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0]
    return value if value == rest[-1] and value in sys.stdlib_module_names else None


def _strings(code: CodeType) -> Iterator[tuple[int, str]]:
    """Format strings reach attributes too: ``"{0.__globals__}".format(f)``; the compiler has put strings together."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _strings(constant)
        elif isinstance(constant, str | bytes | tuple | frozenset) and (match := _TELLING.search(str(constant))):
            places = [step.positions for step in dis.get_instructions(code) if step.argval is constant]
            lines = {at.lineno or 1 for at in places if at} or {code.co_firstlineno}
            yield from ((line, f"names {match[0]} in a string") for line in lines)

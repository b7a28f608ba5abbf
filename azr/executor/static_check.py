"""Refuses a program, before it runs, that imports or names what a task must not use, and says on which line.

It is a filter for honest mistakes and cheap tricks: it keeps proposals deterministic and self-contained. What modules
hold is judged by what it is, whichever path leads there. A module passed around as a value is refused because the rules
could not follow it. A local variable ``input``, a function ``compile`` and an attribute ``self.time`` pass.

Covered: imports, builtins, attributes and members of modules that a program names, in a string too, and patterns that
match by position a class that could name any attribute. Not covered: other names that it puts together while it runs.
Such a program meets the walls, which are the security, and finds no clock.
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
_FIELDS = frozenset({"__dataclass_fields__", "__match_args__", "_fields"})
"""They tell patterns and functions of ast and dataclasses which attributes to read."""
_WRAPPED = frozenset({"wrapped", "wrapper"})
_NAMED_BY_TEXT = frozenset({"getattr", "attrgetter", "methodcaller"})
_CALLED_NAMES = frozenset({*_NAMED_BY_TEXT, *(path.rpartition(".")[2] for path in _WRAPPERS)})
_FUNCTIONS = FunctionType | BuiltinFunctionType
_OWNERS = frozenset(
    {"builtins", "_collections_abc", "_sre"}.union(
        *({top, "_" + top} for top in (name.partition(".")[0] for name in ALLOWED_MODULES))
    )
)
"""Modules that what allowed modules hold may come from."""
_WORDS = BANNED_BUILTINS | BANNED_ATTRIBUTES
_TRIGGER = re.compile(rf"\b(?:import|case|{'|'.join(sorted(FORMATS | _WORDS))})\b", re.ASCII)
_TOLD = {word for word in _WORDS | _FIELDS if "_" in word[:3]}
_TELLING = re.compile("|".join(sorted(word if word[:2] == "__" else rf"\b{word}\b" for word in _TOLD)))


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
        self.texts: dict[Place, list[str]] = {}
        """Where functions are called with literal texts alone (``getattr``: literal names), and these."""
        self.plain: dict[Place, int] = {}
        """Number of arguments of calls with positional arguments only, by source position."""
        self.deleted, self.module_names = set[str](), set[str]()
        self.nodes = syntax.by_kind(tree)
        attributes, in_methods = list[tuple[int, str]](), set[int]()
        in_classes = list[ast.stmt]()
        formats, calls = list[tuple[int, ast.expr | None]](), list[tuple[ast.Call, str]]()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr="__dict__", value=ast.Name(id="self")) if id(node) in in_methods:
                    pass  # a method may look at its own instance
                case ast.Attribute(attr=name, end_lineno=int(line), value=value, ctx=context):
                    attributes.append((line, name))
                    if name in _FIELDS and isinstance(context, ast.Store):
                        self.offences.add((line, f"changes the attribute {name}"))
                    if name in FORMATS:
                        formats.append((line, value))
                case ast.MatchClass(lineno=line, kwd_attrs=names):
                    attributes += [(line, name) for name in names]
                    formats += [(line, None) for name in names if name in FORMATS]
                case ast.ClassDef(body=body):
                    in_classes += body
                    methods = (each for each in body if isinstance(each, ast.FunctionDef))
                    in_methods |= {id(part) for method in methods for part in ast.walk(method)}
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    calls.append((node, name))
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    before = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    for alias in aliases:
                        bound = alias.name if alias.asname or before else alias.name.partition(".")[0]
                        self.imports.add((alias.asname or bound, before + bound))
                        if offence := "relatively" if before.startswith(".") else _offence(before + alias.name):
                            self.offences.add((node.lineno, f"imports {offence}"))
                case ast.Name(id="__annotations__", lineno=line):
                    self.offences.add((line, "uses __annotations__"))
                case ast.Name(id=name, ctx=ast.Del()) | ast.ExceptHandler(name=str(name)):
                    self.deleted.add(name)
        judged = {name for name, path in self.imports if id(_resolve(path)) in _judged()}
        for call, name in calls:
            if name in _CALLED_NAMES or name in judged:
                texts = self._see_call(call, name)
                if name in _NAMED_BY_TEXT:
                    attributes += [(call.lineno, part) for text in texts for part in text.split(".")]
                    formats += [(call.lineno, None) for text in texts if text in FORMATS]
        telling = judged | {name for name, path in self.imports if path.endswith("*") or _is_module(path)}
        self.watched = BANNED_BUILTINS | telling | _FIELDS
        banned = BANNED_ATTRIBUTES | {"samples" for _, path in self.imports if path.startswith("statistics")}
        self.offences |= {(line, f"uses the attribute {name}") for line, name in attributes if name in banned}
        held = _imported_into_classes(in_classes)
        self.offences |= {
            (line, f"reaches the module {name} through a class") for line, name in attributes if name in held
        }
        if ast.MatchClass in self.nodes:
            found = syntax.open_patterns(self.nodes, self.imports)
            lines = [line for line, path in found if not isinstance(_resolve(path), type)]
            self.offences |= {(line, "matches by position a class that may name any attribute") for line in lines}
        computed = syntax.not_literal(self.nodes, formats)
        if computed and syntax.passes_functions_around(self.nodes):
            self.offences |= {(line, "formats a text that is not literal") for line in computed}

    def _see_call(self, node: ast.Call, name: str) -> list[str]:
        """Note how a function is called; the literal texts that it is given, if it is given no other arguments."""
        if ast.Starred in map(type, node.args) or any(each.arg not in _WRAPPED for each in node.keywords):
            return []
        place = node.func.lineno, node.func.col_offset
        self.plain[place] = len(node.args) + len(node.keywords)
        wanted = node.args[1:2] if name == "getattr" else node.args
        texts = [str(each.value) for each in wanted if isinstance(each, ast.Constant)]
        if node.keywords or len(texts) != len(wanted):
            return []
        self.texts[place] = texts
        return texts

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
            elif step.opname == "STORE_NAME" and step.argval in _FIELDS:
                self.judge_fields(step, steps[index - 1])
            elif step.opname == "STORE_NAME" and straight:
                here |= {step.argval} & BANNED_BUILTINS - self.deleted
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"):
                self.judge_name(steps, index, BANNED_BUILTINS - here)
            elif step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and step.argval in local:
                self.judge_name(steps, index, set())

    def judge_fields(self, step: dis.Instruction, before: dis.Instruction) -> None:
        """Judge what a class stores as the names of its fields: only a tuple of literals passes."""
        line = (step.positions or dis.Positions()).lineno or 1
        if before.opname == "LOAD_CONST" and isinstance(before.argval, tuple) and not step.is_jump_target:
            self.offences |= {
                (line, f"uses the attribute {name}") for name in BANNED_ATTRIBUTES.intersection(before.argval)
            }
        else:
            self.offences.add((line, f"computes {step.argval}"))

    def judge_name(self, steps: list[dis.Instruction], index: int, builtins: set[str]) -> None:
        """Judge one name that is read, with the attributes that follow it; ``builtins``: what it may be."""
        name, at = steps[index].argval, steps[index].positions or dis.Positions()
        line, place = at.lineno or 1, (at.lineno or 0, at.col_offset or 0)
        if name == "__annotations__":
            return  # statements read it where they annotate; the tree tells where the program names it
        end = next(i for i in range(index + 1, len(steps)) if steps[i].opname not in ("LOAD_ATTR", "LOAD_METHOD"))
        attributes = [step.argval for step in steps[index + 1 : end]]
        if name in builtins and not (name == "getattr" and self.texts.get(place) and not attributes):
            self.offences.add((line, f"uses {name}"))
        starts = [path for bound, path in self.imports if bound == name and not _offence(path)]
        if builtins and name not in self.module_names:
            # What a star import binds is not known, so every name that nothing else binds may come from it.
            starts += [path[:-1] + name for bound, path in self.imports if bound == "*"]
        for start in starts:
            path = ".".join((start, *attributes))
            if offence := _offence(path):
                self.offences.add((line, f"reaches {offence}"))
            elif _is_module(path):
                verb = "changes" if steps[end].opname in ("STORE_ATTR", "DELETE_ATTR") else "passes around"
                self.offences.add((line, f"{verb} the module {path}"))
            elif why := self._misuse(path, place):
                self.offences.add((line, why))

    def _misuse(self, path: str, place: Place) -> str | None:
        """What is wrong about how a member of a module is used here, if anything."""
        known = _judged().get(id(_resolve(path)))
        if known in _BY_NAME:
            texts = self.texts.get(place)
            if not texts:
                return f"uses {path} otherwise than with literal names"
            parts = [part for text in texts for part in text.split(".")]
            found = [part for part in parts if part in BANNED_ATTRIBUTES]
            return f"uses the attribute {found[0]}" if found else None
        if known in _WRAPPERS and self.plain.get(place) != _WRAPPERS[known]:
            return f"uses {path} otherwise than with functions alone"
        if known in _KINDS and place not in syntax.asked_types(self.nodes):
            return f"reaches {path.rpartition('.')[2]}"
        if known in _DISPATCHERS and not syntax.has_plain_annotations(self.nodes):
            return f"uses {path}, which evaluates annotations, with others than names of classes"
        return None


def _imported_into_classes(body: list[ast.stmt]) -> set[str]:
    """Names that statements of classes, but not of their methods, bind to modules; attributes hold these then."""
    found, level = set[str](), list[ast.AST](body)
    for node in level:  # grows
        if isinstance(node, ast.Import | ast.ImportFrom):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            modules = (alias for alias in node.names if not before or _is_module(before + alias.name))
            found |= {alias.asname or alias.name.partition(".")[0] for alias in modules}
        elif isinstance(node, ast.stmt | ast.excepthandler) and not isinstance(node, ast.FunctionDef):
            level += ast.iter_child_nodes(node)
    return found


def _offence(path: str) -> str | None:
    """What must not be reached on a dotted path, if anything."""
    top, *names = path.split(".")
    value = _resolve(top)
    if value is None:
        return top
    for index, name in enumerate(names):
        is_member = isinstance(value, ModuleType)
        value = _member(value, name)
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
        owner = getattr(value, "__module__", None) if isinstance(value, type | _FUNCTIONS) else None
        if isinstance(owner, str) and owner.partition(".")[0] not in _OWNERS:
            return owner
    return None


def _resolve(path: str) -> object:
    """What a dotted path leads to; None where that is not known before the program runs."""
    top, *names = path.split(".")
    value: object = importlib.import_module(top) if top in ALLOWED_MODULES else None
    for name in names:
        value = _member(value, name)
    return value


def _member(value: object, name: str) -> object:
    """An attribute of a module or class; None for what is neither, or has none. Runs nothing."""
    if isinstance(value, ModuleType):
        return vars(value).get(name)
    if isinstance(value, type):
        return next((vars(each)[name] for each in value.__mro__ if name in vars(each)), None)
    return None


def _is_module(path: str) -> bool:
    """Whether a dotted path leads to a module, as ``copy`` does, and ``copy.copy`` does not."""
    return isinstance(_resolve(path), ModuleType)


@functools.cache
def _banned() -> dict[int, str]:
    """Names of what is banned, by identity."""
    members = {id(_resolve(path)): path.rpartition(".")[2] for path in _BANNED_MEMBERS}
    return members | {id(value): name for name in BANNED_BUILTINS if callable(value := getattr(builtins, name, None))}


@functools.cache
def _judged() -> dict[int, str]:
    """Paths of what is judged by how it is used, by identity."""
    return {id(_resolve(path)): path for path in (*_BY_NAME, *_WRAPPERS, *_KINDS, *_DISPATCHERS)}


def _strings(code: CodeType) -> Iterator[tuple[int, str]]:
    """Format strings reach attributes too: ``"{0.__globals__}".format(f)``; the compiler has put strings together."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _strings(constant)
        elif isinstance(constant, str | bytes | tuple | frozenset) and (match := _TELLING.search(str(constant))):
            places = [step.positions for step in dis.get_instructions(code) if step.argval is constant]
            lines = {at.lineno or 1 for at in places if at} or {code.co_firstlineno}
            yield from ((line, f"names {match[0]} in a string") for line in lines)

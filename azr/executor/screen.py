"""The static screen: refuses programs that name what a task must not use, and says where.

It keeps honest proposals deterministic and self-contained and catches the usual escape tricks early.
It is no wall: a program that slips through still runs inside all of them.

What is refused: importing a banned module in any form, or reaching one (or a module's private names) through another
module; passing a module around as a value, where the last rule could not follow it; builtins that reach code by text,
the outside, or attributes by a computed name; attributes that lead from a value to the interpreter, also when a
string names them, after the compiler has put strings together. A local variable called ``input``, a helper function
called ``compile`` or an attribute ``self.time`` is no offence.

Most programs hold none of the words all this begins with. For those ``load`` only compiles.
"""

from __future__ import annotations

import ast
import dis
import re
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import CodeType

from azr.executor.scopes import Read, Survey
from azr.executor.survey import survey

FILE_NAME = "program"
"""What programs are compiled as."""

BANNED_NAMES = frozenset(
    {
        "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
        "exit", "getattr", "globals", "help", "input", "locals", "open", "quit", "setattr", "vars",
    }
)  # fmt: skip
"""Builtins that reach code by text, the outside, or attributes by name; ``getattr`` with a literal name passes."""

BANNED_ATTRIBUTES = frozenset(
    {
        "__base__", "__bases__", "__builtins__", "__closure__", "__code__", "__defaults__", "__dict__", "__func__",
        "__getattribute__", "__globals__", "__import__", "__kwdefaults__", "__loader__", "__mro__", "__reduce__",
        "__reduce_ex__", "__self__", "__spec__", "__subclasses__", "__traceback__", "ag_code", "ag_frame", "cr_code",
        "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_code", "gi_frame", "mro",
        "tb_frame", "tb_next",
    }
)  # fmt: skip
"""Attributes that lead from a value to the interpreter; ``self.__dict__`` in a method passes."""

BANNED_MEMBERS = {
    "string.Formatter": "reads attributes by name",
    "types.CodeType": "builds code",
    "typing.ForwardRef": "evaluates text",
    "typing.get_type_hints": "evaluates text",
}
"""What otherwise allowed modules offer to the same end, and why it is refused."""

_BY_NAME = ("operator.attrgetter", "operator.methodcaller")
_MODULES = sys.stdlib_module_names | {"bltns"}
_WORDS = BANNED_NAMES | BANNED_ATTRIBUTES
# Whatever the rules below can object to needs an import or one of these words, spelled out: identifiers have no
# escapes, and other spellings of the same letters are not ASCII.
_TRIGGER = re.compile(rf"\b(?:import|{'|'.join(sorted(_WORDS))})\b", re.ASCII)
_TELLING = re.compile(
    "|".join(sorted(word for word in _WORDS if word.startswith("__")))
    + rf"|\b(?:{'|'.join(sorted(word for word in BANNED_ATTRIBUTES if '_' in word.strip('_')))})\b"
)


def load(source: str, banned_modules: Collection[str] | None) -> tuple[CodeType | None, tuple[str, ...]]:
    """The program compiled, or None and the reasons to refuse it, such as ``line 3: imports random``.

    ``banned_modules`` holds names (``os``: refused wherever it occurs in a dotted path) and dotted paths (``os.path``);
    None switches the screen off, so that only a program that does not compile is refused. Nothing is run.
    """
    try:
        code = compile(source, FILE_NAME, "exec", dont_inherit=True)
        if banned_modules is None or not _is_suspect(source, code):
            return code, ()
        reasons = _reasons(ast.parse(source), code, tuple(banned_modules))
    except SyntaxError as error:
        return None, (f"line {error.lineno or 1}: {error.msg}",)
    except (ValueError, MemoryError, RecursionError) as error:
        return None, (f"line 1: cannot be parsed ({type(error).__name__})",)
    return (None, reasons) if reasons else (code, ())


def check(source: str, banned_modules: Collection[str]) -> tuple[str, ...]:
    """Reasons to refuse ``source``; none when it passes. See ``load``."""
    return load(source, banned_modules)[1]


def _is_suspect(source: str, code: CodeType) -> bool:
    """Whether the rules could find anything. Never False where they would."""
    return not source.isascii() or _TRIGGER.search(source) is not None or any(True for _ in _telling_strings(code))


def _reasons(tree: ast.Module, code: CodeType, banned_modules: tuple[str, ...]) -> tuple[str, ...]:
    found = survey(tree)
    banned = _banned(banned_modules)
    offences = {
        *_imports(found, banned),
        *_attributes(found),
        *_builtins(found),
        *_modules(found, banned),
        *_strings(tree, code),
    }
    return tuple(f"line {line}: {why}" for line, why in sorted(offences))


class _Banned:
    """Banned modules, by single name and by dotted path."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.names = frozenset(name for name in modules if "." not in name)
        self.paths = tuple(name for name in modules if "." in name)

    def part(self, path: str) -> str | None:
        """The first banned name or path within a dotted path."""
        single = next((part for part in path.split(".") if part in self.names), None)
        return single or next((banned for banned in self.paths if f".{banned}." in f".{path}."), None)


_banned = lru_cache(maxsize=8)(_Banned)


def _imports(found: Survey, banned: _Banned) -> Iterator[tuple[int, str]]:
    for statement in found.imports:
        parts = statement.path.split(".")
        if statement.relative:
            yield statement.line, "imports relatively"
        bad = banned.part(statement.path) or next((part for part in parts if part in BANNED_ATTRIBUTES), None)
        if bad:
            yield statement.line, f"imports {bad}"
        elif statement.path in BANNED_MEMBERS:
            yield statement.line, f"imports {statement.path}, which {BANNED_MEMBERS[statement.path]}"
        elif any(_is_private(part) for part in parts):
            yield statement.line, f"imports the private {statement.path}"


def _attributes(found: Survey) -> Iterator[tuple[int, str]]:
    used = [*found.attributes]
    for read in found.reads:
        used += read.attributes[1:] if _is_own_dict(read) else read.attributes
    draws = any(statement.path.startswith("statistics") for statement in found.imports)
    for name, line in used:
        if name in BANNED_ATTRIBUTES:
            yield line, f"uses the attribute {name}"
        if draws and name == "samples":
            yield line, "draws random samples"


def _builtins(found: Survey) -> Iterator[tuple[int, str]]:
    for read in found.reads:
        literal = read.name == "getattr" and read.literals and not read.attributes
        if read.name in BANNED_NAMES and not literal and found.may_be_builtin(read):
            yield read.position[0], f"uses {read.name}"


def _modules(found: Survey, banned: _Banned) -> Iterator[tuple[int, str]]:
    stars = [statement.path[:-1] for statement in found.imports if statement.path.endswith("*")]
    for read in found.reads:
        imported = found.import_path(read)
        if imported is not None:
            if not banned.part(imported[0]):
                yield from _module_use(read, *imported, banned)
        elif stars and read.name not in found.module.bound and found.binder(read.name, read.scope) is found.module:
            for star in stars:
                # What a star import binds is not known, so every name that nothing else binds may be a module.
                yield from _reached(read.position[0], star + read.name, banned)
                yield from _module_use(read, star + read.name, False, banned)


def _module_use(read: Read, path: str, is_module: bool, banned: _Banned) -> Iterator[tuple[int, str]]:
    line = read.position[0]
    if read.changes:
        yield line, f"changes the module {read.name}"
    is_module = is_module or _is_module(path)
    for name, line in read.attributes:
        path = f"{path}.{name}"
        if is_module and _is_private(name):
            yield line, f"uses the private {path}"
        yield from _reached(line, path, banned)
        is_module = is_module and _is_module(path)
    if is_module:
        yield line, f"uses the module {path} as a value"
    if path in _BY_NAME and not read.literals:
        yield line, f"uses {path} otherwise than with literal names"


def _reached(line: int, path: str, banned: _Banned) -> Iterator[tuple[int, str]]:
    if bad := banned.part(path):
        yield line, f"reaches the module {bad}"
    if path in BANNED_MEMBERS:
        yield line, f"uses {path}, which {BANNED_MEMBERS[path]}"


def _is_module(path: str) -> bool:
    """Whether something imported or read from a module is a module too; ``copy.copy`` is a function."""
    before, _, last = path.rpartition(".")
    return last in _MODULES and before.rpartition(".")[2] != last


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _is_own_dict(read: Read) -> bool:
    scope = read.scope
    return (
        read.name == "self"
        and [name for name, _ in read.attributes[:1]] == ["__dict__"]
        and scope.kind == "function"
        and scope.parent is not None
        and scope.parent.kind == "class"
        and "self" in scope.bound
    )


def _strings(tree: ast.Module, code: CodeType) -> Iterator[tuple[int, str]]:
    """Format strings reach attributes too: ``"{0.__globals__}".format(f)``."""
    telling = list(_telling_strings(code))
    if not telling:
        return
    whole = [(node.lineno, str(node.value)) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for name, holder, constant in telling:
        lines = [line for line, text in whole if name in text]
        for line in lines or _lines(holder, constant):
            yield line, f"names {name} in a string"


def _telling_strings(code: CodeType) -> Iterator[tuple[str, CodeType, object]]:
    """Telling words among a program's constants, with the code that holds each constant."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _telling_strings(constant)
        elif constant is not None and (match := _TELLING.search(_text(constant))):
            yield match[0], code, constant


def _text(constant: object) -> str:
    if isinstance(constant, str):
        return constant
    return repr(constant) if isinstance(constant, bytes | tuple | frozenset) else ""


def _lines(code: CodeType, constant: object) -> list[int]:
    """Where code uses a constant that the compiler made of several pieces."""
    used = [i.positions.lineno for i in dis.get_instructions(code) if i.argval is constant and i.positions]
    return [line for line in used if line is not None] or [code.co_firstlineno]

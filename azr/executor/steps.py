"""Follows the steps of one code object: which functions, iterators and views it uses up at once, and which it keeps.

Steps are read in the order in which they stand, with the depth of the stack before each. A value is used up when a loop
takes it apart, or a call of something that is known to take that argument apart. Everything else counts as keeping it.
"""

from __future__ import annotations

import collections
import decimal
import dis
import fractions
import re
import sys
from types import CodeType, MethodDescriptorType
from typing import NamedTuple

OPS = dis.opmap
_FIRST = frozenset(
    {"all", "any", "bool", "callable", "dict", "enumerate", "filter", "isinstance", "iter", "len", "list", "map", "max",
     "min", "next", "reversed", "set", "sorted", "sum", "tuple", "zip"}
)  # fmt: skip
"""Builtins that use up their first argument, unless (max, min) they choose one of several."""
_ALL = frozenset({"filter", "map", "zip"})
"""Builtins that use up all of their arguments."""
_FIRST_OF_METHODS = frozenset({"extend", "join", "update"})
_BY_KEY = frozenset({"max", "min", "sort", "sorted"})
"""What calls the function that is given as ``key``."""
ITERATORS = frozenset({"enumerate", "filter", "iter", "map", "reversed", "zip"})
"""Builtins whose results have texts that state addresses."""
_VIEWS = frozenset({"items", "keys"})
_DATA = frozenset(
    {"real", "imag", "numerator", "denominator", "start", "stop", "step", "__name__", "maxlen", "pi", "e", "inf", "nan",
     "tau", "ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "hexdigits", "punctuation", "whitespace",
     "printable", "IGNORECASE", "MULTILINE", "DOTALL", "I", "M", "S"}
)  # fmt: skip
_TYPES = {each.__name__: each for each in (bool, bytes, dict, float, int, list, str, tuple)}
_SINGLETONS = frozenset({*_TYPES, "set", "frozenset", "complex", "type"})
_METHODS = frozenset().union(
    *map(dir, (*_TYPES.values(), complex, range, slice, type(iter(())), type(len), re.Pattern, re.Match)),
    *map(dir, (collections.Counter, collections.deque, collections.OrderedDict, collections.defaultdict)),
    *map(dir, (collections.ChainMap, decimal.Decimal, fractions.Fraction)),
)
_FIELD = re.compile(r"\{[^{}:!]*\.")
"""A field of a format string that goes through an attribute, which may be a bound method."""


def ops(*names: str) -> frozenset[int]:
    """Those of the opcodes that this version of Python has."""
    return frozenset(OPS[name] for name in names if name in OPS)


_SILENT = ops("CACHE", "COPY_FREE_VARS", "MAKE_CELL", "NOP", "PRECALL", "RESUME", "SET_FUNCTION_ATTRIBUTE")
"""They move nothing on the stack here, and the versions of Python differ in where they put them."""
_STORES = ops("STORE_NAME", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL")
_LOADS = ops("LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FAST_CHECK")
_BY_SLOT = ops("STORE_FAST", "STORE_DEREF", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST_CHECK")
_TAKEN_APART = ops("GET_ITER", "LIST_EXTEND", "CONTAINS_OP", "UNPACK_SEQUENCE", "UNPACK_EX", "POP_TOP")
_LOCALS = ops("LOAD_FAST", "LOAD_FAST_CHECK")
_JUMPS = frozenset(dis.hasjrel)
_FORWARD = frozenset(op for op in dis.hasjrel if "BACKWARD" not in dis.opname[op])
_CONST, _GLOBAL, _ATTR = OPS["LOAD_CONST"], OPS["LOAD_GLOBAL"], OPS["LOAD_ATTR"]
_NAME, _METHOD, _KW_NAMES = OPS["LOAD_NAME"], OPS.get("LOAD_METHOD", -2), OPS.get("KW_NAMES", -2)
_CALL, _CALL_KW, _MAKE, _NULL = OPS["CALL"], OPS.get("CALL_KW", -2), OPS["MAKE_FUNCTION"], OPS["PUSH_NULL"]
_CALL_EX, _EXTENDED, _CACHE = OPS["CALL_FUNCTION_EX"], OPS["EXTENDED_ARG"], OPS["CACHE"]
_CALLS = frozenset({_CALL, _CALL_KW, _CALL_EX})
_PAIRS = ops("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST")
_METHOD_BIT = sys.version_info >= (3, 12)
_NULL_IS_ABOVE = sys.version_info >= (3, 13)


def _effect(op: int) -> int | None:
    """How a step moves the stack, whatever its argument; None where that depends on it."""
    try:
        found = {dis.stack_effect(op, argument, jump=False) for argument in range(8)}
    except ValueError:
        found = {dis.stack_effect(op, jump=False)} if op < dis.HAVE_ARGUMENT else set()
    return found.pop() if len(found) == 1 else None


_EFFECTS = [_effect(op) if not dis.opname[op].startswith("<") else None for op in range(256)]


class Question(NamedTuple):
    """What is asked of the steps of a program."""

    stored: frozenset[str]
    """Names that it binds anywhere, so that they may not be builtins."""
    functions: frozenset[str]
    """Names that may be functions, whose text states an address."""
    values: frozenset[str]
    """Attributes of modules that are no functions."""
    views: bool
    """Whether views of dicts may become sets."""
    text: bool
    """Whether values become text."""


class Answer(NamedTuple):
    """What the steps of a code object tell."""

    keeps: bool
    """Something that ``Question`` asks for is kept, or a set constant is used otherwise than by ``in``."""
    compares: bool
    """Identities of values are compared, other than those of None, its like, or builtin types."""


class _Place(NamedTuple):
    """Something on the stack."""

    at: int
    """Depth of the stack below it."""
    floor: int
    """When the stack is as low as this, it is gone."""
    called: str | None
    """Name of what waits to be called; None for a value that should be used up."""
    is_function: bool = False


class Steps:
    """The steps of one code object, without those that say nothing."""

    def __init__(self, code: CodeType, raw: bytes, python_functions: frozenset[str]) -> None:
        """``raw``: ``code.co_code``; ``python_functions``: members of modules that are functions when imported."""
        self.names, self.consts = code.co_names, code.co_consts
        self._slot = code._varname_from_oparg  # type: ignore[attr-defined]
        self.ops, self.arguments, self.depths, self.called = list[int](), list[int](), list[int](), set[int]()
        self._read(raw)
        self.stored, self.functions, self._own = set[str](), set[str](), set[str]()
        """Names that are bound, those bound to functions in modules or cells, and those in this code alone."""
        for at, op in enumerate(self.ops):
            if op in _STORES:
                name, before = self._name(at), self.ops[at - 1]
                self.stored.add(name)
                if before == _MAKE or (
                    before == OPS["IMPORT_FROM"] and self.names[self.arguments[at - 1]] in python_functions
                ):
                    (self._own if op == OPS["STORE_FAST"] else self.functions).add(name)

    def _read(self, raw: bytes) -> None:
        depth, extended, targets = 0, 0, dict[int, int]()
        called, listed, arguments, depths = self.called, self.ops, self.arguments, self.depths
        has_null = False
        for offset in range(0, len(raw), 2):
            op = raw[offset]
            if op == _CACHE:
                continue
            argument = extended | raw[offset + 1]
            if op == _EXTENDED:
                extended = argument << 8
                continue
            extended = 0
            if op in _SILENT:
                continue
            if op == _NULL:
                if _NULL_IS_ABOVE:
                    called.add(len(listed) - 1)
                has_null = not _NULL_IS_ABOVE
                depth += 1
                continue
            depth = targets.get(offset, depth)
            if has_null:
                called.add(len(listed))
                has_null = False
            listed.append(op)
            arguments.append(argument)
            depths.append(depth)
            if op == _CALL:
                depth -= argument + 1
            elif op in _JUMPS:
                if op in _FORWARD:
                    start = offset + 2
                    while raw[start] == _CACHE:
                        start += 2
                    targets[start + 2 * argument] = depth + dis.stack_effect(op, argument, jump=True)
                depth += dis.stack_effect(op, argument, jump=False)
            elif (effect := _EFFECTS[op]) is not None:
                depth += effect
            else:
                depth += dis.stack_effect(op, argument if op >= dis.HAVE_ARGUMENT else None, jump=False)
        listed += (-1, -1)
        arguments += (0, 0)
        depths += (depth, depth)

    def _name(self, at: int) -> str:
        """The variable that a step stores or loads."""
        op, argument = self.ops[at], self.arguments[at]
        if op in _BY_SLOT:
            return str(self._slot(argument))
        return self.names[argument >> 1 if op == _GLOBAL else argument]

    def _attribute(self, at: int) -> tuple[str, bool]:
        """The attribute that a step reads, and whether to call it at once."""
        argument = self.arguments[at]
        if self.ops[at] == _ATTR and _METHOD_BIT:
            return self.names[argument >> 1], bool(argument & 1)
        return self.names[argument], self.ops[at] == _METHOD

    def answer(self, asked: Question) -> Answer:
        """Go through all steps once."""
        waiting, keeps, compares = list[_Place](), False, False
        for at, op in enumerate(self.ops[:-2]):
            depth, after = self.depths[at], self.depths[at + 1]
            if op in _CALLS:
                keeps |= self._call(at, waiting, asked)
                continue
            if op not in _JUMPS and op != _KW_NAMES:
                while waiting and after <= waiting[-1].floor:
                    gone = waiting.pop()
                    keeps |= gone.called is None or gone.is_function
            if op == OPS["IS_OP"]:
                compares |= not self._is_singleton(at - 1, asked.stored)
            elif op == _CONST:
                keeps |= type(self.consts[self.arguments[at]]) is frozenset and self.ops[at + 1] != OPS["CONTAINS_OP"]
            elif op in (_ATTR, _METHOD):
                name, is_called = self._attribute(at)
                if is_called:
                    waiting.append(_Place(depth - 1, depth, name))
                    keeps |= asked.text and name in ("format", "format_map") and not self._is_plain(at - 1)
                elif asked.views and name in _VIEWS:
                    keeps = True
                elif asked.text and not self._is_data(at, name, asked):
                    self._leave(at, waiting)
            elif op in _LOADS:
                name = self._name(at)
                is_function = asked.text and name in (self._own if op in _LOCALS else asked.functions)
                if (op == _GLOBAL and self.arguments[at] & 1) or at in self.called:
                    below = depth if op == _GLOBAL or _NULL_IS_ABOVE else depth - 1
                    builtin = name if op in (_GLOBAL, _NAME) else ""
                    waiting.append(_Place(below, below + 2, builtin, is_function))
                elif is_function:
                    self._leave(at, waiting)
                else:
                    keeps |= asked.text and name in ITERATORS and op not in _LOCALS
            elif op in _PAIRS:
                keeps |= asked.text and len(self._own) > 0
            elif op == _MAKE:
                made = self.consts[self.arguments[at - 1]] if self.ops[at - 1] == _CONST else None
                name = made.co_name if isinstance(made, CodeType) else ""
                if name in ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"):
                    waiting.append(_Place(after - 1, after - 1, name))
                elif asked.text and self.ops[at + 1] not in _STORES:
                    self._leave(at, waiting)
        return Answer(keeps or any(place.called is None or place.is_function for place in waiting), compares)

    def _leave(self, at: int, waiting: list[_Place]) -> None:
        """Watch over what a step leaves on the stack, unless the next one uses it up."""
        if self.ops[at + 1] not in _TAKEN_APART:
            below = self.depths[at + 1] - 1
            waiting.append(_Place(below, below + 1, None))

    def _call(self, at: int, waiting: list[_Place], asked: Question) -> bool:
        """Whether a call keeps what it is given; its own result may have to be used up in turn."""
        op, count = self.ops[at], self.arguments[at]
        spread = op == _CALL_EX
        bottom = self.depths[at] - (3 + (count & 1) if spread else count + 2 + (op == _CALL_KW))
        given = list[_Place]()
        keeps, called = False, None
        while waiting and waiting[-1].at >= bottom:
            place = waiting.pop()
            if place.at == bottom and place.called is not None:
                called = place
            elif place.called is None:
                given.append(place)
            else:
                keeps |= place.is_function
        name = called.called if called is not None and called.called else ""
        words = () if spread else self._keywords(at)
        for place in given:
            index = place.at - bottom - 2
            keeps |= spread or name in asked.stored or not _uses_up(name, index, count - len(words), words)
        if (asked.text and (name == "<genexpr>" or name in ITERATORS)) or (asked.views and name in _VIEWS):
            self._leave(at, waiting)
        return keeps

    def _keywords(self, at: int) -> tuple[str, ...]:
        """Names of the last arguments of a call."""
        if self.ops[at] == _CALL_KW or (at and self.ops[at - 1] == _KW_NAMES):
            words = self.consts[self.arguments[at - 1]]
            return words if isinstance(words, tuple) else ("",)
        return ()

    def _is_singleton(self, at: int, stored: frozenset[str]) -> bool:
        """Whether the instruction pushes None, True, False, Ellipsis or a builtin type."""
        if self.ops[at] == _CONST:
            constant = self.consts[self.arguments[at]]
            return constant is None or constant is True or constant is False or constant is Ellipsis
        return self.ops[at] in (_GLOBAL, _NAME) and self._name(at) in _SINGLETONS - stored

    def _is_data(self, at: int, name: str, asked: Question) -> bool:
        """Whether the text of an attribute states no address: data, no function, or a method of a type itself."""
        if name in _DATA or (name in asked.values and name not in _METHODS):
            return True
        if self.ops[at - 1] not in (_GLOBAL, _NAME):
            return False
        owner = self._name(at - 1)
        return owner not in asked.stored and type(vars(_TYPES.get(owner, object)).get(name)) is MethodDescriptorType

    def _is_plain(self, at: int) -> bool:
        """Whether the step puts down a format whose fields go through no attributes."""
        constant = self.consts[self.arguments[at]] if self.ops[at] == _CONST else None
        return type(constant) is str and _FIELD.search(constant) is None


def _uses_up(name: str, index: int, count: int, words: tuple[str, ...]) -> bool:
    """Whether a function or method uses up its argument number ``index``, the first ``count`` of which have no name."""
    if index >= count:
        return name in _BY_KEY and words[index - count] == "key"
    if index == 0:
        return (name in _FIRST and (count == 1 or name not in ("max", "min"))) or name in _FIRST_OF_METHODS
    return name in _ALL and index > 0

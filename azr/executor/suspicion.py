"""Flag programs whose result may depend on hash order, on addresses or on earlier calls.

Read off names, constants and opcodes before the program runs, and off its tree where these leave a doubt. The rules
name what is known to be harmless and suspect the rest, so a suspect is usually innocent: it only is run more often, or
call by call.

A result can depend on hashes or addresses through sets, through hashes and identities themselves, and through text:
the default text of functions, iterators, bound methods and instances states an address. Text is suspect only where a
program both writes text of values that it computes (``str``, f-strings, ``%``) and could hold such an object.

A call can leave something for the next one only in what both share: builtins, which cannot be changed, and what
modules hold. The next call gets a fresh module, so a program's own globals, classes and functions do not count.

A program that catches whatever is raised may ask how much memory or stack is left, and so is suspect of both.

Covered: sets, hashes, identities, text of objects, state in modules and classes of the library, memory that runs out.
Not covered: coins of chance that a program finds on roads past the static check; four runs find seven of eight.
"""

from __future__ import annotations

import ast
import dis
import importlib
import opcode
import re
from collections.abc import Iterable
from types import CodeType, FunctionType

from azr.executor import syntax
from azr.executor.static_check import BANNED_ATTRIBUTES, BANNED_BUILTINS

ORDER = 1
"""Suspicion: its result may depend on the order of hashes, on identity or on addresses. It is repeated more often."""
STATE = 2
"""Suspicion: a call may leave something behind for the next one in the same process. Every call gets a process of its
own."""
_ALL = ORDER | STATE
_HARMLESS: dict[str, str] = {
    # Their results are plain values or containers whose text states no address, and they keep nothing.
    "__future__": "annotations",
    "base64": "b16decode b16encode b32decode b32encode b64decode b64encode",
    "binascii": "a2b_hex b2a_hex crc32 hexlify unhexlify",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "cmath": "*",
    "collections": "ChainMap Counter OrderedDict abc defaultdict deque namedtuple",
    "collections.abc": "Callable Container Hashable Iterable Iterator Mapping MutableMapping MutableSequence Sequence",
    "colorsys": "hls_to_rgb hsv_to_rgb rgb_to_hls rgb_to_hsv",
    "copy": "copy",
    "decimal": "Decimal ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP",
    "fnmatch": "filter fnmatch fnmatchcase",
    "fractions": "Fraction",
    "functools": "reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "html": "escape unescape",
    "json": "JSONDecodeError dumps loads",
    "keyword": "iskeyword issoftkeyword",
    "math": "*",
    "operator": "add concat contains countOf eq floordiv ge getitem gt itemgetter le lt mod mul ne neg not_ pos pow "
    "truediv truth",
    "re": "A ASCII DOTALL I IGNORECASE L LOCALE M MULTILINE Match NOFLAG Pattern S U UNICODE VERBOSE X compile error "
    "escape findall fullmatch match search split sub subn",
    "statistics": "fmean median_grouped mode multimode",
    "string": "ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits printable punctuation "
    "whitespace",
    "struct": "calcsize pack unpack",
    "textwrap": "dedent fill indent shorten wrap",
    "typing": "Any Callable ClassVar DefaultDict Deque Dict Final Generic Hashable Iterable Iterator List Literal "
    "Mapping MutableMapping MutableSequence NoReturn Optional OrderedDict Sequence Sized Text Tuple Type TypeVar Union "
    "cast",
    "unicodedata": "bidirectional category combining decimal digit mirrored name normalize numeric",
    "zlib": "adler32 compress crc32 decompress",
}  # fmt: skip
"""Modules, and what of them leaves no state and depends on no order; whoever uses anything else is suspect of both."""
_UNCHANGEABLE = frozenset({"__future__", "bisect", "cmath", "itertools", "math"})
"""Modules whose members take no attributes."""
_ADDRESSED: dict[str, str] = {
    "functools": "cache cached_property cmp_to_key lru_cache partial partialmethod",
    "heapq": "merge",
    "itertools": "*",
    "re": "finditer",
    "typing": "Generator NamedTuple Protocol",
}
"""The same, except that the text of what they make may state an address."""
_ORDERED: dict[str, str] = {
    "collections.abc": "ItemsView KeysView MappingView MutableSet Set ValuesView",
    "copy": "deepcopy",  # its memo has addresses as keys
    "operator": "and_ or_ sub xor",  # of views of dicts
    "statistics": "geometric_mean harmonic_mean mean median median_high median_low pstdev pvariance quantiles stdev "
    "variance",  # they go through a set of types
    "typing": "AbstractSet FrozenSet MutableSet Set",
}
"""Suspect of depending on order alone."""
_OWN_DUNDERS = frozenset({
    "__add__", "__and__", "__annotations__", "__author__", "__bool__", "__call__", "__contains__", "__delitem__",
    "__doc__", "__divmod__", "__enter__", "__eq__", "__exit__", "__float__", "__floordiv__", "__ge__", "__getitem__",
    "__gt__", "__iadd__", "__imul__", "__index__", "__init__", "__int__", "__invert__", "__isub__", "__iter__",
    "__le__", "__len__", "__lt__", "__main__", "__matmul__", "__missing__", "__mod__", "__module__", "__mul__",
    "__name__", "__ne__", "__neg__", "__next__", "__or__", "__pos__", "__post_init__", "__pow__", "__qualname__",
    "__radd__", "__repr__", "__reversed__", "__rmul__", "__round__", "__rsub__", "__setitem__", "__str__", "__sub__",
    "__truediv__", "__version__", "__xor__",
})  # fmt: skip
"""Names between double underscores that programs write down honestly; any other is suspect of everything."""
_WILD = (BANNED_BUILTINS | BANNED_ATTRIBUTES | {
    "BaseException", "MemoryError", "RecursionError", "cache_clear", "cache_info", "dir", "id", "memoryview",
    "register",
}) - {"input", "__annotations__"}  # fmt: skip
"""Names that lead to the interpreter, to an address, to what is left of memory, or to a table that others share."""
_HASHING = frozenset({"set", "frozenset", "hash"})
_CATCH_ALL = frozenset({"Exception", "RuntimeError"})
"""Where errors are handled, these catch that memory or stack ran out."""
_VIEWS = frozenset({"keys", "items"})
_SET_METHODS = frozenset({"__and__", "__isub__", "__or__", "__rsub__", "__sub__", "__xor__"})
_TEXT = frozenset(
    {"str", "repr", "ascii", "format", "format_map", "type", "args", "mod", "__mod__", "__repr__", "__str__"}
)
"""Names by which a value becomes text; ``type`` of a text is ``str``, exceptions hold texts."""
_ADDRESSED_NAMES = frozenset(
    {"super", "property", "staticmethod", "classmethod",
     "object", "aiter", "anext", "elements", "finditer", "scanner",
     "__iter__", "__reversed__"}
)  # fmt: skip
"""Names of what makes objects whose default text states an address."""
_DUNDER = re.compile(r"__\w*__")
_INNER = re.compile(r"_[^\W_]\w*")
"""Names of what classes of the library keep for themselves, such as the table of an enumeration's members."""
OPS = dis.opmap


def ops(*names: str) -> frozenset[int]:
    """Those of the opcodes that this version of Python has."""
    return frozenset(OPS[name] for name in names if name in OPS)


_SET_OPS = ops("BUILD_SET", "SET_ADD", "SET_UPDATE")
_TEXT_OPS = ops("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
_OBJECT_OPS = ops("LOAD_BUILD_CLASS", "STORE_ATTR", "DELETE_ATTR")
_ATTRIBUTE_OPS = ops("STORE_ATTR", "DELETE_ATTR")
_SYMBOLS = [symbol.rstrip("=") for _, symbol in opcode._nb_ops]  # type: ignore[attr-defined]
_SET_OPERATORS = frozenset(index for index, symbol in enumerate(_SYMBOLS) if symbol in {"&", "|", "^", "-"})
_REMAINDERS = frozenset(index for index, symbol in enumerate(_SYMBOLS) if symbol == "%")
_IS_GENERATOR, _IS_ASYNC = 0x20, 0x80 | 0x100 | 0x200
_RERAISE, _IS_OP = OPS["RERAISE"], OPS["IS_OP"]
_MATCH_CLASS, _CALL_EX, _PUSH_EXC_INFO = OPS["MATCH_CLASS"], OPS["CALL_FUNCTION_EX"], OPS["PUSH_EXC_INFO"]
_BINARY_OP, _LOAD_CONST, _IMPORT_NAME = OPS["BINARY_OP"], OPS["LOAD_CONST"], OPS["IMPORT_NAME"]
_EXTENDED_ARG, _IMPORT_FROM, _STORE_NAME = OPS["EXTENDED_ARG"], OPS["IMPORT_FROM"], OPS["STORE_NAME"]


def _is_odd(texts: Iterable[str]) -> bool:
    """Whether a text holds a name between double underscores that honest programs do not write."""
    return any("__" in text and not _OWN_DUNDERS.issuperset(_DUNDER.findall(text)) for text in texts)


def _catches_all(raw: bytes) -> bool:
    """Whether a handler does not raise again what it does not expect. ``raw``: the steps of one code object."""
    steps = [raw[at : at + 2] for at in range(0, len(raw), 2)]
    return steps.count(bytes((_RERAISE, 0))) < raw[::2].count(_PUSH_EXC_INFO)


def _words(module: str, table: dict[str, str]) -> frozenset[str]:
    words = table.get(module, "").split()
    return frozenset(dir(importlib.import_module(module)) if words == ["*"] else words)


_OTHERS = {
    module: frozenset(name for name in dir(importlib.import_module(module)) if _DUNDER.fullmatch(name) is None)
    - _words(module, _HARMLESS) - _words(module, _ADDRESSED) - _words(module, _ORDERED)
    for module in {*_HARMLESS, *_ADDRESSED, *_ORDERED}
}  # fmt: skip
"""Names of a module that are suspect of everything."""
_ORDERED_WORDS = {module: _words(module, _ORDERED) for module in _OTHERS}
_ADDRESSED_WORDS = {module: _words(module, _ADDRESSED) for module in _OTHERS}
_TYPING = {"typing"} | _words("typing", _HARMLESS) | _words("typing", _ADDRESSED) | _words("typing", _ORDERED)
_FUNCTIONS = frozenset(
    name
    for module in _OTHERS
    for name, value in vars(importlib.import_module(module)).items()
    if isinstance(value, FunctionType)
)
"""Names of functions of modules that are written in Python: their text states an address."""
_VALUES = frozenset().union(*(_words(module, _HARMLESS) for module in _HARMLESS)) - _FUNCTIONS
"""Members of modules whose text states no address."""


def has_sets(arguments: tuple[object, ...]) -> bool:
    """Whether plain data holds a set at any depth: the result may then depend on its order."""
    level: list[object] = list(arguments)
    for value in level:  # grows
        if isinstance(value, set | frozenset):
            return True
        if isinstance(value, dict):
            level += value
            level += value.values()
        elif isinstance(value, list | tuple):
            level += value
    return False


def suspicion(code: CodeType, source: str) -> int:
    """`ORDER` and `STATE` for what a compiled program could betray. Runs nothing of it and raises nothing."""
    program = _Program(code)
    found = program.by_names()
    return found if found == _ALL else program.by_tree(found, source)


class _Program:
    """All code of a program, and what it holds."""

    def __init__(self, code: CodeType) -> None:
        self.codes = [code]
        self.texts, self.labels = list[str](), set[str]()
        self.has_set_constant = self.nests_set_constant = self.makes_addressed = False
        for each in self.codes:  # grows
            for constant in each.co_consts:
                kind = type(constant)
                if kind is CodeType:
                    self.codes.append(constant)
                elif kind is str:
                    self.texts.append(constant)
                elif kind is frozenset:
                    self.has_set_constant = True
                elif kind is tuple:
                    self._take_tuple(constant)
        self.raw = [each.co_code for each in self.codes]
        self.names = set[str]().union(*(each.co_names for each in self.codes))
        self.ops = set[int]().union(*(raw[::2] for raw in self.raw))

    def _take_tuple(self, constant: tuple[object, ...]) -> None:
        level: list[object] = list(constant)
        while level:
            part = level.pop()
            if type(part) is str:
                self.labels.add(part)
            elif type(part) is tuple:
                level += part
            elif type(part) is frozenset:
                self.nests_set_constant = True

    def by_names(self) -> int:
        """What names, constants and kinds of opcodes tell."""
        words = self.names | self.labels
        found = _ALL if not words.isdisjoint(_WILD) or _is_odd(words) or _is_odd(self.texts) else 0
        if any(_INNER.fullmatch(word) for word in (*words, *self.texts)):
            found |= STATE
        if _IMPORT_NAME in self.ops:
            found |= self._imports()
        if self.nests_set_constant or not self.ops.isdisjoint(_SET_OPS) or not words.isdisjoint(_HASHING):
            found |= ORDER
        if _MATCH_CLASS in self.ops and self.labels:
            found |= ORDER
        flags = [each.co_flags for each in self.codes]
        if any(flag & _IS_ASYNC for flag in flags):
            found |= _ALL
        if _PUSH_EXC_INFO in self.ops and (
            not self.names.isdisjoint(_CATCH_ALL) or any(_catches_all(raw) for raw in self.raw)
        ):
            found |= _ALL
        generators = [raw for raw, flag in zip(self.raw, flags, strict=True) if flag & _IS_GENERATOR]
        if any(_PUSH_EXC_INFO in raw[::2] for raw in generators):
            # What is left of a generator may be collected, and its handler run, in the next call.
            found |= STATE
        return found

    def _imports(self) -> int:
        """What the imported modules allow, by any name of theirs that the program holds."""
        modules, renames = set[str](), False
        for each, raw in zip(self.codes, self.raw, strict=True):
            extended, imported = 0, ""
            for op, argument in zip(raw[::2], raw[1::2], strict=True):
                if op == _EXTENDED_ARG:
                    extended = (extended | argument) << 8
                    continue
                if op == _IMPORT_NAME:
                    modules.add(each.co_names[extended | argument])
                if op in (_IMPORT_NAME, _IMPORT_FROM):
                    imported = each.co_names[extended | argument]
                elif imported:
                    renames |= op == _STORE_NAME and each.co_names[extended | argument] != imported.partition(".")[0]
                    imported = ""
                extended = 0
        if "collections" in modules and "abc" in self.names:
            modules.add("collections.abc")
        if not modules.issubset(_OTHERS):
            return _ALL
        if any(not self.names.isdisjoint(_OTHERS[module]) for module in modules):
            return _ALL
        found = 0
        if "typing" in modules and (renames or any(_TYPING & set(each.co_names) for each in self.codes[1:])):
            # It keeps what was put in brackets: once List[1] was made, List[True] is the same.
            found |= STATE
        if not self.ops.isdisjoint(_ATTRIBUTE_OPS) and not modules.issubset(_UNCHANGEABLE):
            found |= STATE
        if any(not self.names.isdisjoint(_ORDERED_WORDS[module]) for module in modules):
            found |= ORDER
        self.makes_addressed = any(not self.names.isdisjoint(_ADDRESSED_WORDS[module]) for module in modules)
        return found

    def by_tree(self, found: int, source: str) -> int:
        """What the syntax tree tells; it is looked at only where something could come of it."""
        combines = self._computes(_SET_OPERATORS) or not _SET_METHODS.isdisjoint(self.names)
        views = combines and not _VIEWS.isdisjoint(self.names)
        text = not found & ORDER and self._writes_text()
        if text and (
            self.makes_addressed
            or not self.names.isdisjoint(_ADDRESSED_NAMES)
            or not self.ops.isdisjoint(_OBJECT_OPS)
            or any(each.co_flags & _IS_GENERATOR and each.co_name != "<genexpr>" for each in self.codes)
        ):
            found, text = found | ORDER, False
        if not (views or text or self.has_set_constant or _IS_OP in self.ops or "type" in self.names):
            return found
        try:
            nodes = syntax.by_kind(ast.parse(source))
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return _ALL
        if _IS_OP in self.ops and syntax.compares_identities(nodes):
            return _ALL
        if "type" in self.names and syntax.makes_classes(nodes):
            return _ALL
        if (self.has_set_constant and syntax.keeps_sets(nodes)) or (views and syntax.keeps_views(nodes)):
            found |= ORDER
        if text and (syntax.formats_attributes(nodes) or syntax.keeps_addressed(nodes, _FUNCTIONS, _VALUES)):
            found |= ORDER
        return found

    def _computes(self, operators: frozenset[int], unless_number: bool = False) -> bool:
        """Whether one of these operators occurs; ``unless_number``: with something else than a number on its right."""
        for each, raw in zip(self.codes, self.raw, strict=True):
            at = raw.find(_BINARY_OP)
            while at >= 0:
                if at % 2 == 0 and raw[at + 1] in operators:
                    is_number = (
                        at >= 2 and raw[at - 2] == _LOAD_CONST and type(each.co_consts[raw[at - 1]]) in (int, float)
                    )
                    if not unless_number or not is_number or (at >= 4 and raw[at - 4] == _EXTENDED_ARG):
                        return True
                at = raw.find(_BINARY_OP, at + 1)
        return False

    def _writes_text(self) -> bool:
        if not self.names.isdisjoint(_TEXT) or not self.labels.isdisjoint(_TEXT) or not self.ops.isdisjoint(_TEXT_OPS):
            return True
        if "print" in self.names and ("file" in self.labels or _CALL_EX in self.ops):
            return True
        return self._computes(_REMAINDERS, unless_number=True)

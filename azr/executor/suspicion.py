"""What a program could betray: the order of a set or an address in its result, or state for a later call.

Read off names, constants and opcodes before the program runs, and off its tree where it imports or writes text. The
rules name what is known to be harmless and suspect the rest, so a suspect is usually innocent: it only is run more
often, or call by call.

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
import enum
import importlib
import re
from collections.abc import Iterable
from types import CodeType

from azr.executor.static_check import BANNED_ATTRIBUTES, BANNED_BUILTINS


class Suspicion(enum.IntFlag):
    """Reasons to run a program otherwise than others."""

    ORDER = 1
    """Its result may depend on the order of hashes, on identity or on addresses: it is repeated more often."""
    STATE = 2
    """A call may leave something behind for the next one in the same process: every call gets a process of its own."""


ORDER, STATE = int(Suspicion.ORDER), int(Suspicion.STATE)
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
_ORDERED: dict[str, str] = {
    "collections.abc": "ItemsView KeysView MappingView MutableSet Set ValuesView",
    "copy": "deepcopy",  # its memo has addresses as keys
    "functools": "cache cached_property cmp_to_key lru_cache partial partialmethod",  # the text of what they make
    "heapq": "merge",
    "itertools": "*",
    "operator": "and_ or_ sub xor",  # of views of dicts
    "re": "finditer",
    "statistics": "geometric_mean harmonic_mean mean median median_high median_low pstdev pvariance quantiles stdev "
    "variance",  # they go through a set of types
    "typing": "AbstractSet FrozenSet Generator MutableSet NamedTuple Protocol Set",
}
"""Suspect of depending on order or addresses alone."""
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
    "register", "type",
}) - {"input", "__annotations__"}  # fmt: skip
"""Names that lead to the interpreter, to an address, to new classes, to what is left of memory, or to a table that
others share."""
_HASHING = frozenset({"set", "frozenset", "hash"})
_CATCH_ALL = frozenset({"Exception", "RuntimeError"})
"""Where errors are handled, these catch that memory or stack ran out."""
_VIEWS = frozenset({"keys", "items"})
_SET_METHODS = frozenset({"__and__", "__isub__", "__or__", "__rsub__", "__sub__", "__xor__"})
_TEXT = frozenset({"str", "repr", "ascii", "format", "format_map", "args", "mod", "__mod__", "__repr__", "__str__"})
"""Names by which a value becomes text; exceptions hold texts."""
_ADDRESSED = frozenset(
    {"super", "property", "staticmethod", "classmethod",
     "object", "aiter", "anext", "elements", "finditer", "scanner", "enumerate", "filter", "iter", "map", "reversed",
     "zip", "__iter__", "__reversed__"}
)  # fmt: skip
"""Names of what makes objects whose default text states an address."""
_DATA = frozenset({"real", "imag", "numerator", "denominator", "start", "stop", "step", "maxlen", "__name__"})
"""Attributes that are no bound methods."""
_FIELD = re.compile(r"\{[^{}:!]*\.")
"""Field of a format that goes through an attribute, which may be a bound method."""
_DUNDER = re.compile(r"__\w*__")
_INNER = re.compile(r"_[^\W_]\w*")
"""Names of what classes of the library keep for themselves, such as the table of an enumeration's members."""
OPS = dis.opmap


def ops(*names: str) -> frozenset[int]:
    """Those of the opcodes that this version of Python has."""
    return frozenset(OPS[name] for name in names if name in OPS)


_SET_OPS = ops("BUILD_SET", "SET_ADD", "SET_UPDATE")
_TEXT_OPS = ops("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
_ATTRIBUTE_OPS = ops("STORE_ATTR", "DELETE_ATTR")
_IS_GENERATOR, _IS_ASYNC = 0x20, 0x80 | 0x100 | 0x200
_RERAISE, _IS_OP, _IMPORT_NAME = OPS["RERAISE"], OPS["IS_OP"], OPS["IMPORT_NAME"]
_MATCH_CLASS, _CALL_EX, _PUSH_EXC_INFO = OPS["MATCH_CLASS"], OPS["CALL_FUNCTION_EX"], OPS["PUSH_EXC_INFO"]


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


_ORDERED_WORDS = {module: _words(module, _ORDERED) for module in {*_HARMLESS, *_ORDERED}}
_OTHERS = {
    module: frozenset(name for name in dir(importlib.import_module(module)) if _DUNDER.fullmatch(name) is None)
    - _words(module, _HARMLESS) - ordered
    for module, ordered in _ORDERED_WORDS.items()
}  # fmt: skip
"""Names of a module that are suspect of everything."""
_TYPING = {"typing"} | _words("typing", _HARMLESS) | _ORDERED_WORDS["typing"]


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
    """Flags of `Suspicion` for what a compiled program could betray. Runs nothing of it and raises nothing."""
    program = _Program(code, source)
    found = program.by_names()
    if found == _ALL or not (program.imports or program.may_combine or program.may_write_text):
        return found
    try:
        return found | program.by_tree(list(ast.walk(ast.parse(source))))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return _ALL


class _Program:
    """All code of a program, and what it holds."""

    def __init__(self, code: CodeType, source: str) -> None:
        self.codes = [code]
        self.texts, self.labels, self.has_sets = list[str](), set[str](), False
        for each in self.codes:  # grows
            level: list[object] = list(each.co_consts)
            for constant in level:  # grows
                if isinstance(constant, CodeType):
                    self.codes.append(constant)
                elif isinstance(constant, str):
                    self.texts.append(constant)
                elif isinstance(constant, frozenset):
                    self.has_sets = True
                elif isinstance(constant, tuple):
                    self.labels.update(part for part in constant if isinstance(part, str))
                    level += (part for part in constant if not isinstance(part, str))
        self.names = set[str]().union(*(each.co_names for each in self.codes))
        self.words = self.names | self.labels
        self.ops = set[int]().union(*(each.co_code[::2] for each in self.codes))
        self.imports = _IMPORT_NAME in self.ops
        self.may_combine = not self.names.isdisjoint(_VIEWS)
        self.may_write_text = "%" in source or self._names_text()

    def by_names(self) -> int:
        """What names, constants and kinds of opcodes tell."""
        found = 0
        if not self.words.isdisjoint(_WILD) or _is_odd(self.words) or _is_odd(self.texts) or _IS_OP in self.ops:
            found |= _ALL
        if any(_INNER.fullmatch(word) for word in (*self.words, *self.texts)):
            found |= STATE
        if self.has_sets or not self.ops.isdisjoint(_SET_OPS) or not self.words.isdisjoint(_HASHING):
            found |= ORDER
        if _MATCH_CLASS in self.ops and self.labels:
            found |= ORDER
        if any(each.co_flags & _IS_ASYNC for each in self.codes):
            found |= _ALL
        if _PUSH_EXC_INFO in self.ops and (
            not self.names.isdisjoint(_CATCH_ALL) or any(_catches_all(each.co_code) for each in self.codes)
        ):
            found |= _ALL
        if any(each.co_flags & _IS_GENERATOR and _PUSH_EXC_INFO in each.co_code[::2] for each in self.codes):
            # What is left of a generator may be collected, and its handler run, in the next call.
            found |= STATE
        return found

    def by_tree(self, nodes: list[ast.AST]) -> int:
        """What the syntax tree tells."""
        found = self._by_imports(nodes) if self.imports else 0
        operators = {type(node.op) for node in nodes if isinstance(node, ast.BinOp | ast.AugAssign)}
        combines = not operators.isdisjoint({ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub})
        if self.may_combine and (combines or not self.names.isdisjoint(_SET_METHODS)):
            found |= ORDER
        if (self._names_text() or any(map(_writes_text, nodes))) and self._holds_addressed(nodes):
            found |= ORDER
        return found

    def _by_imports(self, nodes: list[ast.AST]) -> int:
        """What the imported modules allow, by any name of theirs that the program holds."""
        aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        members = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        modules = {*(alias.name for alias in aliases), *("." * node.level + (node.module or "") for node in members)}
        if "collections" in modules and "abc" in self.names:
            modules.add("collections.abc")
        if not modules.issubset(_OTHERS) or any(not self.names.isdisjoint(_OTHERS[module]) for module in modules):
            return _ALL
        renames = any(alias.asname for alias in (*aliases, *(each for node in members for each in node.names)))
        found = 0
        if "typing" in modules and (renames or any(_TYPING & set(each.co_names) for each in self.codes[1:])):
            # It keeps what was put in brackets: once List[1] was made, List[True] is the same.
            found |= STATE
        if not self.ops.isdisjoint(_ATTRIBUTE_OPS) and not modules.issubset(_UNCHANGEABLE):
            found |= STATE
        if any(not self.names.isdisjoint(_ORDERED_WORDS[module]) for module in modules):
            found |= ORDER
        return found

    def _names_text(self) -> bool:
        if not self.words.isdisjoint(_TEXT) or not self.ops.isdisjoint(_TEXT_OPS):
            return True
        return "print" in self.names and ("file" in self.labels or _CALL_EX in self.ops)

    def _holds_addressed(self, nodes: list[ast.AST]) -> bool:
        """Whether an object could be at hand whose text states an address."""
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        imported = (node.names for node in nodes if isinstance(node, ast.ImportFrom))
        functions |= {alias.asname or alias.name for aliases in imported for alias in aliases}
        for node in nodes:
            match node:
                case ast.ClassDef() | ast.Lambda() | ast.GeneratorExp() | ast.Yield() | ast.YieldFrom():
                    return True
                case ast.FunctionDef(decorator_list=[_, *_]) | ast.alias(name="*"):
                    return True
                case ast.Attribute(attr="format" | "format_map", value=text):
                    if not isinstance(text, ast.Constant) or _FIELD.search(str(text.value)):
                        return True
                case ast.Attribute(attr=name) if name not in _DATA and id(node) not in called:
                    return True
                case ast.Name(id=name, ctx=ast.Load()) if name in functions and id(node) not in called:
                    return True
        return not self.names.isdisjoint(_ADDRESSED)


def _writes_text(node: ast.AST) -> bool:
    """Whether a text may be filled in by ``%``: its right side is no number."""
    match node:
        case ast.BinOp(op=ast.Mod(), right=value) | ast.AugAssign(op=ast.Mod(), value=value):
            return not (isinstance(value, ast.Constant) and isinstance(value.value, int | float))
    return False

from __future__ import annotations

import ast
import importlib
import sys
import types
from textwrap import indent

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from azr.executor import static_check
from azr.executor.static_check import ALLOWED_MODULES, load
from tests.executor.public_data import public_programs, seed_programs

# Public programs and fragments hold odd escapes and numbers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")

MATCH = "def f(x):\n match x:\n  case P(b): return b"
REFUSED = [
    # imports in every form
    ("1: imports random", "import random", "from random import *"), ("3: imports os", "\n\nimport os.path as p"),
    ("1: imports sys", "import math, sys", "from collections import _sys as s"),
    ("1: imports time", "from time import time", "from time import time as honest", "import math; import \\\n  time"),
    ("1: imports os", "from os.path import join", "import os .   path"),
    ("1: imports concurrent", "from concurrent.futures import wait"), ("1: imports relatively", "from . import x"),
    ("2: imports uuid", "def f():\n    import uuid"), ("2: imports time", "class A:\n    from time import time"),
    ("4: imports secrets", "try:\n    import zlib\nexcept ImportError:\n    import secrets"),
    ("2: imports os", "if False:\n    import os"), ("1: imports _random", "import _random"),
    ("1: imports __loader__", "from math import __loader__"),
    # modules reached through other modules
    ("1: imports random", "from statistics import random"),
    ("2: reaches random", "import statistics\ndef f(): return statistics.random.random()",
     "import statistics as s\ndef f(): return s.random.random()"),
    ("2: reaches sys", "import re\nre.enum.sys.exit()", "import collections\ncollections._sys.exit()",
     "from re import enum as e\ne.sys", "from ast import *\nsys.exit()", "from ast import *\nx = [sys]"),
    ("2: reaches builtins", "import enum\nenum.bltns.open('x')"),
    ("2: reaches posixpath", "import fnmatch\nfnmatch.posixpath.genericpath"),
    ("2: passes around the module statistics", "import statistics\nx = statistics\nx.random",
     "import statistics\ngetattr(statistics, 'random')"),
    ("2: passes around the module re.enum", "import re\nx = re.enum"),
    ("3: passes around the module math", "import math\ndef g(m): return m.x\ng(math)",
     "def f():\n    import math\n    def g(): return [math]\n    return g()"),
    ("4: passes around the module re", "def f():\n    global re\n    import re\ndef g(): return [re]"),
    ("2: changes the module math", "import math\nmath.pi = 3", "import math\ndel math.pi",
     "import math\nfor math.pi in (1, 2): pass"),
    ("3: reaches the private copy._reconstruct", "def f():\n    import copy as d\n    return d._reconstruct"),
    ("1: imports numpy", "import numpy as np"),
    # builtins, however they are called
    ("1: uses __import__", "x = __import__('os')"),
    ("1: uses __builtins__", "__builtins__['eval']", "__builtins__.open('x')"),
    ("1: uses __loader__", "__loader__.load_module('posix')"),
    ("1: uses eval", "def f(x): return eval(x)", "x = [eval][0]('1')", "(e := eval)('1')", "[e := eval, e('1')]",
     "@eval\ndef g(): pass", "class A(metaclass=eval): pass", "lambda x=eval: x", "x: eval('1') = 2",
     "def f(x: eval('1')): return x", "def f(x) -> eval('1'): return x", "def f(x): return f'{x}{eval(x)}'",
     "def f(x): return f'{x:{eval(x)}}'", "\U0001d4eeval('1')"),
    ("2: uses exec", "def f(x):\n exec('1')\n return open"),
    ("1: uses open", "g = open", "with open('x') as y: pass", "\uff4f\uff50\uff45\uff4e('x')"),
    ("3: uses eval", "def f(x):\n    match x:\n        case eval(): return 1"), ("1: uses input", "input()"),
    ("1: uses globals", "globals()['x']"), ("1: uses the attribute __globals__", "f.__gl\U0001d45cbals__"),
    ("2: uses eval", "from __future__ import annotations\ndef f(x: eval('1')): return x"),
    # names that are the builtin after all
    ("2: uses eval", "class A:\n    eval = eval", "def f():\n    return eval('1')\nf()\neval = 1"),
    ("3: uses eval", "if 0:\n    eval = 1\neval('1')", "def f():\n    global eval\n    eval('1')\n    eval = 1",
     "eval = 1\ndel eval\neval('1')"),
    ("6: uses eval", "eval = 1\ndef g():\n    global eval\n    del eval\ng()\neval('1')"),
    ("5: uses eval", "try:\n    1 / 0\nexcept Exception as eval:\n    pass\neval('1')"),
    ("3: uses open", "def deco(f): return f()\n@deco\ndef open(): return open('x')",
     "class A:\n    open = 1\n    def m(self): return open('x')"),
    ("1: uses open", "def open(x=open): return x", "class open(open): pass", "[open for open in open]"),
    ("4: uses open", "def f():\n    def g():\n        nonlocal x\n        return open(x)\n    x = 1"),
    # attributes by name
    ("1: uses getattr", "def f(x, g=getattr): return g(x, 'a')", "getattr(1, 'a' + 'b')", "getattr(*(1,), 'a')",
     "getattr(1, *['a'])"),
    ("1: names __globals__ in a string", "getattr(f, '__globals__')"),
    ("1: names gi_frame in a string", "getattr((i for i in ()), 'gi_frame')"),
    ("1: uses the attribute mro", "getattr(int, 'mro')()"),
    ("2: uses getattr", "import functools\nfunctools.reduce(getattr, ['a'], 1)"),
    ("1: uses setattr", "setattr(1, 'a', 2)"),
    ("2: names __globals__ in a string", "import operator\noperator.attrgetter('__globals__')(f)",
     "from operator import attrgetter as a\na('__globals__')(f)"),
    ("2: uses operator.attrgetter otherwise", "import operator\noperator.attrgetter(chr(95))",
     "from operator import attrgetter as a\ng = a"),
    ("2: uses operator.methodcaller otherwise", "from operator import methodcaller\nmethodcaller(*'ab')"),
    ("2: reaches Formatter", "import string\nstring.Formatter()"),
    ("1: imports get_type_hints", "from typing import get_type_hints"),
    ("3: uses the attribute samples", "from statistics import NormalDist as N\nx = N()\nx.samples(3)"),
    ("2: reaches CodeType", "from types import *\nCodeType()"),
    ("2: uses typing.operator.attrgetter otherwise", "import typing\nx = typing.operator.attrgetter"),
    ("2: uses typing.operator.attrg", "from typing import operator as o\ndef f(x, n): return o.attrgetter(n)(x)"),
    ("2: uses the attribute mro", "from operator import attrgetter as a\na('a.mro')(f)",
     "from operator import methodcaller as m\nm('mro')(int)"),
    # what evaluates, makes code, reaches files or other modules, on any path
    ("2: reaches CodeType", "import dataclasses\nx = dataclasses.types.CodeType",
     "from dataclasses import types as t\nx = t.CodeType"),
    ("2: reaches FunctionType", "from dataclasses import FunctionType as F\nF(1, {})",
     "import types as t\nmap(t.FunctionType, [1])", "from types import *\nx = [FunctionType]",
     "import types\nisinstance(types.FunctionType(1, {}), int)"),
    ("2: reaches LambdaType", "import types\nx = types.LambdaType"),
    ("1: imports FrameType", "from types import FrameType as F"),
    ("2: reaches TracebackType", "from dataclasses import types\ntypes.TracebackType"),
    ("2: reaches global_enum", "import enum\nenum.global_enum",
     "from enum import *\n@global_enum\nclass A(Enum): pass"),
    ("2: uses the attribute _convert_", "from enum import IntEnum as I\nI._convert_('X', 'posix', str)"),
    ("2: reaches chdir", "import contextlib as c\nc.chdir('/')"),
    ("1: imports main", "from base64 import main", "from ast import main as m"),
    ("1: imports _io", "from csv import StringIO"), ("1: imports _thread", "from functools import RLock"),
    ("2: reaches copyreg", "import copy\ncopy.copyreg.pickle"), ("1: imports codecs", "from json import codecs"),
    ("3: reaches codecs", "import json\njson.decoder.scanner.x\njson.codecs.open"),
    ("1: imports io", "from csv import io"),
    ("1: imports sys", "from pprint import _sys", "from fractions import sys as s"),
    ("1: imports os", "from contextlib import os"),
    ("2: reaches sys", "import contextlib\ncontextlib.sys.x", "import typing\ntyping.sys.x", "import enum\nenum.sys.x"),
    ("1: imports builtins", "from enum import bltns"), ("1: imports ForwardRef", "from typing import ForwardRef as R"),
    ("2: reaches get_type_hints", "import typing as t\nt.get_type_hints(f)"),
    ("1: imports Formatter", "from string import Formatter as F\nclass A(F): pass"),
    ("2: reaches Formatter", "from string import *\nclass A(Formatter): pass"),
    ("1: imports the private copy._reconstruct", "from copy import _reconstruct"),
    ("3: reaches the module typing through a class", "class A:\n    import typing\nx = A.typing.sys"),
    ("4: reaches the module e thr", "class A:\n    if 1:\n        from re import enum as e\nx = A().e"),
    ("3: reaches the module statistics thr", "class A:\n    import statistics\ngetattr(A, 'statistics').random"),
    ("2: changes the attribute _fields", "import ast\nf._fields = ['a']\nast.iter_fields(f)"),
    ("2: changes the attribute __match_args__", "class P: pass\nP.__match_args__ = ('a',)\n" + MATCH),
    ("1: computes __match_args__", "class P: __match_args__ = ('a' + x,)\n" + MATCH),
    ("1: uses the attribute mro", "class P: __match_args__ = ('mro',)\n" + MATCH),
    ("2: computes _fields", "import ast\nclass C: _fields = ('a' + x,)\nast.iter_fields(C)",
     "import ast\nclass C: _fields: int = 1\nast.iter_fields(C)"),
    ("3: computes _fields", "import ast\nclass C:\n _fields = (x,) or ('a',)",
     "import ast\nclass C:\n from ast import parse as _fields", "import ast\nclass C:\n for _fields in x: 1"),
    ("1: names _fields in a string", "import ast; C = type('C', (), {'_fields': ('a' + x,)})"),
    ("4: matches by position a class that may name", "class P(metaclass=M): pass\n" + MATCH,
     "class P(type): pass\n" + MATCH, "P = type('P', (), {})\n" + MATCH, "def g(P): pass\n" + MATCH,
     "import copy; copy.copy.p = 1\n" + MATCH.replace("P(", "copy.copy.p(")),
    ("5: matches by position a class that may name", "@deco\nclass P: pass\n" + MATCH,
     "class P:\n a = int\n" + MATCH.replace("P(", "P.a("), "from abc import ABC\nclass P(ABC): pass\n" + MATCH),
    ("6: matches by position", "from dataclasses import dataclass as d\n@d(type)\nclass P: pass\n" + MATCH),
    ("2: changes the attribute __dataclass_fields__", "import dataclasses\nf.__dataclass_fields__ = {}"),
    # attributes that are copied by name
    ("2: uses functools.wraps otherwise", "from functools import wraps\nwraps(f, assigned=['a'])(g)",
     "from functools import wraps as w\nw(f, ('a',))(g)", "from functools import wraps\nwraps(*x)",
     "from functools import wraps\nwraps(**x)", "from functools import wraps\nw = wraps",
     "from functools import *\nw = wraps", "from functools import partial, wraps\npartial(wraps, assigned=x)"),
    ("2: uses functools.update_wrapper otherwise", "import functools as t\nt.update_wrapper(f, g, x)",
     "import functools as t\nt.update_wrapper(f, g, updated=x)"),
    # annotations that are evaluated
    ("2: uses functools.singledispatch, which evaluates annotations",
     "import functools\n@functools.singledispatch\ndef g(x): pass\n@g.register\ndef h(x: 'len(1)'): pass"),
    ("3: uses functools.singledispatch, which evaluates",
     "from functools import singledispatch as s\nt = 'len(1)'\ng = s(f)\ndef h(x: t): pass\ng.register(h)"),
    ("2: uses functools.singledispatch, which evaluates",
     "from functools import *\n@singledispatch\ndef g(x): pass\ndef h(x: 'a' + 'b'): pass",
     "from functools import *\n@singledispatch\ndef g(x): pass\nclass A:\n    t = 'a'\n    x: t",
     "from functools import *\n@singledispatch\ndef g(x): pass\nclass A: t = 'a'\ndef h(x: A.t): pass"),
    ("3: uses functools.singledispatchmethod, which evaluates",
     "from functools import singledispatchmethod as s\nclass A:\n    @s\n    def g(self, x: list['len']): pass"),
    ("2: uses the attribute __annotations__", "def g(x): pass\ng.__annotations__ = {}"),
    ("2: uses __annotations__", "class A:\n    __annotations__['a=1'] = int",
     "from typing import *\nx = __annotations__"),
    ("1: names __annotations__ in a string", "type('A', (), {'__annotations__': 1})"),
    # computed formats, where more than plain data is at hand
    ("1: formats a text that is not literal", "def f(x): return ''.join(['{0.', '__glo', 'bals__}']).format(f)",
     "def f(x): return x.format(f)", "def f(x): return f'{x}'.format(f)", "def f(x): return str.format(x, f)",
     "def f(x): return x.format_map({'a': f})", "def f(x): return x.format(lambda: 0)",
     "def f(x): return x.format(y for y in x)", "def f(x): return getattr(x, 'format')(f)"),
    ("2: formats a text that is not literal", "def f(x):\n    g = str.format\n    return g(x, f)",
     "def g(): yield\ndef f(x): return x.format(g())", "class A: pass\ndef f(x): return x.format(A())",
     "from re import sub\ndef f(x): return x.format(sub)", "g = f = len\ndef f(x): return x.format(1)\nh = [f]",
     "t = '{}'\ndef f(t): return t.format(f)"),
    ("3: formats a text that is not", "def f(x):\n    try: 1 / 0\n    except Exception as e: return x.format(e)"),
    ("3: formats a text that is not literal", "def f(x):\n    match x:\n        case str(format=g): return g(f)"),
    ("4: formats a text that is not literal", "def f(x):\n    t = '{}'\n    t += x\n    return t.format(f)"),
    # attributes that lead to the interpreter
    ("1: uses the attribute __base__", "().__class__.__base__.__subclasses__()"),
    ("1: uses the attribute __self__", "print.__self__.eval('1')", "x = [].append.__self__"),
    ("1: uses the attribute __globals__", "f.__globals__"), ("2: uses the attribute __globals__", "f.\\\n__globals__"),
    ("1: uses the attribute __code__", "f.__init__.__func__.__code__ = 1"),
    ("1: uses the attribute f_back", "(i for i in ()).gi_frame.f_back"),
    ("1: uses the attribute __traceback__", "def f(e): return e.__traceback__"),
    ("3: uses the attribute __globals__", "def f(x):\n    match x:\n        case object(__globals__=g): return g"),
    ("1: uses the attribute __dict__", "def f(x): return x.__dict__", "def f(self): return self.__dict__"),
    ("3: uses the attribute __dict__", "self = int\nclass A:\n    x = self.__dict__"),
    # ... and strings that name them
    ("1: names __globals__ in a string", "'{0.__globals__}'.format(f)", "x = '\\x5f\\x5fglobals__'",
     "x = '__glob\\\nals__'", "x = b'__globals__'.decode()", "x = f'{1}__globals__'"),
    ("2: names gi_frame in a string", "x = 1\ny = '{0.gi_frame.f_locals}'"),
    ("2: names __globals__ in a string", "x = 1\ny = '__glo' 'bals__'", "x = 1\ny = '__glo' + 'bals__'",
     "x = 1\ny = ('_' * 2 + 'globals' + '_' * 2)"),
    ("1: names __builtins__ in a string", "x = 1 in ('a', '__builtins__')"),
]  # fmt: skip
NO_PROGRAMS = [
    ("1: invalid syntax", "def f(:"), ("2: 'return' outside function", "x = 1\nreturn 2"),
    ("2: 'yield' outside function", "x = 1\nyield 2"),
    ("2: no binding for nonlocal 'x' found", "def f():\n    nonlocal x"),
    ("1: duplicate argument 'a'", "def f(a, a): pass"), ("1: ", "\x00"),
    ("1: cannot be parsed (UnicodeEncodeError)", "x = '\ud800'"),
    ("1: cannot be parsed", "x = " + "-" * 20_000 + "1", "x = open" + ".a" * 50_000),
    ("1: too many nested parentheses", "x = " + "(" * 500 + ")" * 500),
]  # fmt: skip

HONEST = [
    "from typing import NamedTuple\nfrom dataclasses import dataclass\nimport ast\n@dataclass(frozen=True)\nclass P:\n"
    "    x: int\nclass Q(P): pass\nclass R(NamedTuple):\n    x: int\nclass S:\n    __match_args__ = ('a', 'b')\n"
    "def f(x):\n    match x:\n        case int(y) | P(y) | Q(y) | R(y) | S(y) | ast.Expr(y) | complex(real=y): pass",
    "def parse_input(text): return text\ndef f(x): return parse_input(x)",
    "def f(input): return input",
    "def f(items):\n    vars = len(items)\n    return [vars for _ in items]",
    "def f(open):\n    def g(): return open\n    return g()",
    "def f(data):\n    for open, close in data:\n        print(open)\n    return [input for input in data if input]",
    "input = [1, 2]\ndef f(x): return [input, x]",
    "def compile(node):\n    return [compile(child) for child in node]\ndef f(x): return compile(x)",
    "class A:\n    @property\n    def input(self): return 1\n    @input.setter\n    def input(self, x): pass\n"
    "    help = 'a'\n    text = help * 2\ndef f(x): return A().input",
    "def f(x):\n    match x:\n        case [open, *vars]: return open, vars\n"
    "        case {'a': 1, **input}: return input\n        case _ as exit: return exit",
    "def f(x):\n    try: return 1 / x\n    except ZeroDivisionError as input: return str(input)",
    "def f(x): return (input := x) + input, [y for y in x if (vars := y)], lambda open: open",
    "from collections import Counter, defaultdict\ndef f(s): return dict(Counter(s))",
    "import collections.abc\nimport heapq, itertools, math\ndef f(x): return math.sqrt(x)",
    "import collections.abc as c\ndef f(x): return isinstance(x, c.Iterable)",
    "from collections import abc\ndef f(x): return isinstance(x, abc.Iterable)",
    "from copy import copy\nfrom bisect import bisect\nimport copy as c\n"
    "def f(x): return map(copy, [x]), bisect, c.copy",
    "import string\ndef f(string): return string.upper(), [string for string in string]",
    "import string\ndef f(x): return string.ascii_lowercase.index(x)",
    "import operator\nfrom operator import attrgetter, itemgetter\n"
    "def f(x): return sorted(x, key=attrgetter('a', 'b.c')), operator.methodcaller('upper')('a'), itemgetter(*x)",
    "from math import *\ndef f(x): return sqrt(x) + pi + len(str(x))",
    "from typing import *\nfrom dataclasses import dataclass\n"
    "@dataclass\nclass A:\n    x: List[int]\n    open: bool = True\ndef f(x: Optional[int]) -> Any: return A(x).x",
    "class A:\n    def __init__(self):\n        super().__init__()\n        self.time = 1\n"
    "def f(): return A().time, type(A()).__name__",
    "class A:\n    def __eq__(self, other): return self.__dict__ == other.x\n    def __hash__(self): return 1\n"
    "def f(x): return A() == x.__class__.__name__",
    "def f(x): return getattr(x, 'real', None), hasattr(x, 'imag')",
    "# import os, eval\ndef f(): return 'import random, time.time(), half_back and self_code; open(x)'",
    "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    "def f(x): return A(x).x",
    "import decimal\ndef f(x):\n    decimal.getcontext().prec = 5\n    return str(decimal.Decimal(x))",
    "from enum import Enum\nclass Kind(Enum):\n    A = 1\ndef f(x): return Kind(x).name",
    "from functools import lru_cache, reduce\n@lru_cache(maxsize=None)\ndef g(n): return n\ndef f(x): return g(x)",
    "def f(x): return {'naïve \uff45\uff56\uff41\uff4c': '日本', 'ß': x}",
    "def f(x):\n    random = [1]\n    random.sort()\n    self = {'os': random}\n    return self['os'].pop()",
    "if __name__ == '__main__':\n    print(1)\ndef f(x): return x",
    "from functools import wraps\ndef deco(g):\n    @wraps(g)\n    def inner(*a): return g(*a)\n    return inner\n"
    "@deco\ndef f(x): return x",
    "import functools as t\ndef f(x): return t.update_wrapper(lambda y: y, len)(x), t.wraps(wrapped=len)(len)(x)",
    "from functools import singledispatch\nfrom typing import List\nimport collections\nclass A: pass\n"
    "@singledispatch\ndef g(x): return 0\n@g.register\ndef _(x: int) -> None: return 1\n@g.register(str)\n"
    "def _(x, y: list[int] | None = None): return 2\n@g.register\ndef _(x: A) -> List[int]: return 3\n"
    "@g.register\ndef _(x: collections.Counter): return 4\ndef f(x): return g(x)",
    "import types\ndef f(x): return isinstance(x, (types.FunctionType, int)), type(x) is types.LambdaType",
    "def f(x): return '{} {a.real}'.format(x, a=f), 'x'.format_map({'a': f}), list(map('{:02d}'.format, x))",
    "TEXT = '{}: {:>5}'\nclass A: pass\ndef f(x): return TEXT.format(x, A())",
    "def f(x, y): return x.format(len(y)), x.format_map({'a': y}), sorted(y, key=lambda c: c), sum(c for c in y)",
    "def g(x, y): return x.format(y)\nf = g",
    "class A:\n    def format(self, x): return [x]\ndef f(x): return A().format(x)",
    "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass A:\n    x: 'int' = 1\n"
    "    y: list = field(default_factory=list)\ndef f(x): return A(x).x",
    "from collections import namedtuple, Counter\nP = namedtuple('P', 'a b')\ndef f(x): return Counter(P(1, x))",
    "import ast\ndef f(x): return ast.literal_eval(x)",
    "class A:\n    import math\n    x = math.pi\ndef f(x): return A.x",
    "class A:\n    def m(self):\n        import math\n        self.math = math.pi\n        return self.math\n"
    "def f(): return A()",
    "import re\ndef f(x): return re.sub('a', lambda m: m.group().upper(), x)",
    "from enum import Enum\nKind = Enum('Kind', 'a b')\ndef f(x): return Kind.a.name",
    "def f(x): return " + " + ".join(["x"] * 800) + " + len(x.items) + vars if (vars := 1) else 0",
]  # fmt: skip

ORIGINALS = (
    "logging", "random", "multiprocessing", "pebble", "subprocess", "threading", "datetime", "time", "hashlib", "hmac",
    "bcrypt", "os.sys", "os.path", "sys.exit", "os.environ", "calendar",
)  # fmt: skip
"""The words of the original's list, one of which stood there twice."""


def check(source: str) -> tuple[str, ...]:
    return load(source)[1]


@pytest.mark.parametrize("case", REFUSED + NO_PROGRAMS, ids=lambda case: case[0])
def test_refuses_and_says_where(case):
    reason, *sources = case
    for source in sources:
        code, reasons = load(source)
        assert code is None, source
        assert any(found.startswith(f"line {reason}") for found in reasons), (source, reasons)


def test_lets_honest_programs_pass():
    for source in HONEST:
        code, reasons = load(source)
        assert reasons == () and isinstance(code, types.CodeType), source
        assert static_check._reasons(ast.parse(source), code) == (), source


@pytest.mark.parametrize("word", ORIGINALS)
def test_every_word_of_the_original_list_is_refused_in_every_form(word):
    module, _, member = word.partition(".")
    forms = [
        f"import {word}", f"import {word} as honest", f"import math, {word}", f"import {word}.deeper",
        f"from {word} import x", f"from {word} import x as y", f"from {word} import *", f"__import__({word!r})",
    ]  # fmt: skip
    if member:
        forms += [
            f"from {module} import {member}", f"from {module} import {member} as honest",
            f"from {module} import *\n{member}", f"import {module}\n{word}", f"import {module} as m\nm.{member}",
            f"import {module}\n{word}.deeper()", f"import {module}\nx = {module}\nx.{member}",
            f"import {module}\ngetattr({module}, {member!r})", f"import {module} as m\n[m][0].{member}",
        ]  # fmt: skip
    elif module in sys.stdlib_module_names:  # nothing that is allowed leads to what is not installed
        forms += [
            f"import statistics as s\ns.{module}.x", f"from statistics import {module}",
            f"from ast import *\n{module}.x()",
        ]  # fmt: skip
    for form in forms:
        assert check(form), form
        assert check("if 1:\n" + indent(form, "    ")), form
        if "*" not in form:
            assert check("def g():\n" + indent(form, "    ")), form


def reachable(module: types.ModuleType, path: str, seen: frozenset[types.ModuleType]) -> list[tuple[str, str]]:
    """Paths from a module through modules only, with the name of the module at their ends."""
    paths = []
    for name, value in vars(module).items():
        if isinstance(value, types.ModuleType) and value not in seen:
            paths.append((f"{path}.{name}", value.__name__))
            if value.__name__ in ALLOWED_MODULES and len(seen) < 3:
                paths += reachable(value, f"{path}.{name}", seen | {value})
    return paths


def test_no_allowed_module_leads_to_another():
    count = 0
    for name in ALLOWED_MODULES:
        module = importlib.import_module(name)
        for path, end in reachable(module, name, frozenset({module})):
            if end.split(".")[0] not in ALLOWED_MODULES:
                count += 1
                assert check(f"import {name}\ndef f(): return {path}.x"), path
                parent, _, last = path.rpartition(".")
                assert check(f"from {parent} import {last} as x"), path
    assert count > 20


def test_what_is_banned_is_refused_on_every_path():
    """Whatever module holds it, however it is imported, and under another name."""
    banned, count = {**static_check._banned(), **static_check._judged()}, 0
    for name in ALLOWED_MODULES:
        module = importlib.import_module(name)
        inner = [(f"{name}.{last}", each) for last, each in vars(module).items() if isinstance(each, types.ModuleType)]
        for path, holder in [(name, module), *inner]:
            for last in sorted(member for member, value in vars(holder).items() if id(value) in banned):
                annotated = "\ndef g(x: 'len'): pass"  # what dispatches on types evaluates it
                assert check(f"import {name} as m\nx = {path.replace(name, 'm', 1)}.{last}{annotated}"), (path, last)
                assert check(f"from {path} import {last} as y\nx = [y]{annotated}"), (path, last)
                if path == name and last in getattr(module, "__all__", ()):
                    assert check(f"from {name} import *\nx = {last}{annotated}"), (path, last)
                count += 1
    assert count > 50


def test_every_module_that_is_not_allowed_is_refused():
    names = sys.stdlib_module_names - {name.split(".")[0] for name in ALLOWED_MODULES}
    assert {name for name in names if check(f"import {name}") != (f"line 1: imports {name}",)} == set()
    assert {"datetime", "os", "random", "secrets", "sys", "time", "uuid"} < names
    assert {name for name in ALLOWED_MODULES if check(f"import {name}")} == set()


def test_offences_come_in_order_and_unchecked_only_what_does_not_compile_is_refused():
    reasons = check("import os\nimport math\nimport time\neval('1')")
    assert reasons == ("line 1: imports os", "line 3: imports time", "line 4: uses eval")
    assert check("# -*- coding: rot13 -*-\nvzcbeg bf") == ("line 2: invalid syntax",), "a cookie changes nothing"
    assert check("# coding: utf-7\nx = '+AF8AXw-globals__'") == ()
    code, reasons = load("import os\neval('1')", checked=False)
    assert code is not None and reasons == ()
    assert load("def f(:", checked=False) == (None, ("line 1: invalid syntax",))


def test_public_programs_pass_but_for_the_one_that_asks_the_interpreter():
    sources = public_programs()
    refused = {source: reasons for source in sources if (reasons := check(source))}
    assert list(refused.values()) == [("line 2: imports sys",)], refused
    assert "sys.getsizeof" in next(iter(refused))
    for source in sources:
        assert_exact(source)
    short = [source for source in sources if not static_check.is_suspect(source, compile(source, "", "exec"))]
    assert len(short) > 0.8 * len(sources), "most take the short way"


def test_of_all_seed_tasks_33_programs_are_refused():
    refused = list(filter(None, map(check, seed_programs())))
    assert len(refused) == 33
    reasons = {reason.partition(": ")[2] for each in refused for reason in each}
    imported = {"cv2", "numpy", "os", "queue", "secrets", "sympy", "sys", "timeit"}
    assert reasons == {"uses eval", "uses open", *(f"imports {name}" for name in imported)}


def assert_exact(source: str) -> None:
    """When the short way lets a program pass, so do all the rules."""
    try:
        code = compile(source, static_check.FILE_NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    if not static_check.is_suspect(source, code):
        assert static_check._reasons(ast.parse(source), code) == ()


FRAGMENTS = st.sampled_from(
    ["import os", "from re import enum", "import math as m", "from math import *", "m.sys", "math", "x", "open", "eval",
     "x.__globals__", "x.f_back", "x.mro", "self.__dict__", "'__glo' 'bals__'", "'__glo' + 'bals__'", "'_' * 2",
     "'gi_fr'", "'ame'", "'%s__' % '__globals'", "f'{x}__dict__'", "b'__mro__'", "'\\x5f_code__'", "r'\\x5f'",
     "'\uff41'", "\U0001d4eeval", "\ufb01", "getattr(x, 'a')", "getattr(x, y)", "input", "def", "class A", "lambda",
     "global open", "nonlocal x", "del open", "match x", "case A(__code__=x)", "case open", "with x as open",
     "for open in x", "@open", "return", "yield", "await x", "async", "if 0", "if x", "else", "try", "except x as open",
     "finally", "pass", ":=", "=", "==", "+", "%", "*", "**", ".", "...", ",", ":", ";", "(", ")", "[", "]", "{", "}",
     "\n", "\n    ", "\n        ", " ", "\\\n", "#", "'", '"', "'''", "1", "0x5f", "\f", "\t", "\r", "\ufeff", "\xa0",
     "\x00", "\ud800", "__", "_", "globals", "f", "rb"]
)  # fmt: skip
SOURCES = [source for _, *sources in REFUSED for source in sources] + HONEST[:-1]
STATEMENTS = st.sampled_from([source.replace("\n", "\n    ") for source in SOURCES])
WRAPPERS = st.sampled_from(
    ["{}", "def f(open, x):\n    {}", "class A:\n    {}", "if 0:\n    {}", "x = 1\n{}", "{}\nopen = 1"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=12).map(" ".join) | st.lists(FRAGMENTS, max_size=12).map("".join))
@example("x = '__glo' 'bals__'")
def test_the_short_way_is_exact_on_fragments(source):
    assert_exact(source)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(WRAPPERS, STATEMENTS | FRAGMENTS), min_size=1, max_size=4))
def test_the_short_way_is_exact_on_assembled_programs(pieces):
    assert_exact("\n".join(wrapper.format(piece) if "{" in wrapper else piece for wrapper, piece in pieces))

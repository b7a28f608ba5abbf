from __future__ import annotations

import ast
import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from azr.execution import CallStatus, ExecutionRequest
from azr.executor.suspicion import Suspicion, has_sets, suspicion
from tests.executor.conftest import execute_many
from tests.executor.public_data import public_programs, rows, seed_programs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")

ORDER, STATE = int(Suspicion.ORDER), int(Suspicion.STATE)


def judge(source: str) -> int:
    """Suspicion of a program, or of the body of its ``f``."""
    if "def f(" not in source:
        before, star, body = source.rpartition("import *\n")
        source = f"{before}{star}def f(x, *more):\n    " + body.replace("\n", "\n    ")
    return suspicion(compile(source, "program", "exec", dont_inherit=True), source)


ORDERED = [
    # sets, however they are made
    "return {x, 'a'}", "return [y for y in {z for z in x}]", "return list({*x})", "return list({1, 2, 3, *x})",
    "for y in {'a', 'b'}: return y", "return [y for y in {'a', 'b', 'c'}]", "return [*{'a', 'b', 'c'}]",
    "return list(set(x))", "return list(map(frozenset, x))", "s = set()\ns.add(x)\nreturn s.pop()",
    "s = set\nreturn s(x)", "return [(s := set), s(x)][1].pop()",
    # hashes and identities
    "return sorted(x, key=id)", "return hash(x) % 2", "return x.__hash__()", "return 'abc'.__hash__() & 1",
    "return str.__hash__(x)", "return getattr(x, '__hash__')()", "return getattr(x, '__ha' 'sh__')()",
    "g = getattr\nreturn g(x, x.lower())()", "from operator import methodcaller\nreturn methodcaller('__hash__')(x)",
    "import operator\nreturn operator.attrgetter('__hash__')(x)()", "match x:\n    case object(__hash__=h): return h()",
    "match x:\n    case str(__hash__=h, __len__=n): return h() % n()",
    "match x:\n    case dict(keys=k): return list(k() & {}.keys())", "match x:\n    case str(upper=u): return str(u)",
    "return [y is z for y in x for z in x]", "return x is more", "return [] is not x",
    # views that become sets
    "return list(x.keys() & x)", "return list(x - x.items())", "v = x.keys()\nreturn list(v & v)",
    "v, w = x.items(), 1\nreturn list(v ^ x)", "v = x.keys()\nv |= more\nreturn list(v)",
    "v = x.keys()\nv -= more\nreturn list(v)", "v = x.keys\nreturn list(v() | more)",
    "v = dict.keys\nreturn list(v(x) | more)", "return list(dict.keys(x) - more)",
    "def g(v): return v & v\nreturn list(g(x.keys()))", "def g(v, w=1): return v & v\nreturn list(g(w=2, v=x.keys()))",
    "for v in [x.keys()]: return list(v - more)", "v, = [d.keys() for d in [x]]\nreturn list(v - more)",
    "from functools import reduce\nfrom operator import or_\nreturn list(reduce(or_, [x.keys(), more]))",
    "import operator as o\nreturn list(o.sub(x.keys(), more))", "return x.keys().__and__(more)",
    "return x.keys().__rsub__(more)", "return [a & b for a, b in zip(map(dict.keys, x), more)]",
    "return [a & b for a, b in map(lambda d: (d.keys(), more), x)]",
    "from functools import reduce\nreturn list(reduce(lambda a, b: a | b, map(lambda d: d.keys(), x)))",
    "return list(max(x.keys(), {}.keys(), key=len) - more)", "return list(next(iter([x.keys()])) - more)",
    "return list(list((x.keys(), more))[0] - more)", "return list(x.get(0, more.keys()) - more)",
    "return list(sum((), x.keys()) - more)", "return list((x.keys() if more else more) ^ more)",
    "return list((v := x.keys()) ^ v)", "list = tuple\nreturn [list(x.keys()), x - more]", "return x.__mod__(f)",
    "return str(x.__iter__())", "return str(x.__len__)",
    "from collections import ChainMap\nreturn list(ChainMap(x).keys() & more)",
    # text of functions, iterators, bound methods and instances
    "return str(f)", "@repr\ndef g(): pass\ndef f(x): return g.upper()",
    "def h(g): return repr(g)\n@h\ndef g(): pass\ndef f(x): return g.upper()", "return f.__repr__()",
    "return x.append.__repr__()", "return x.__str__.__repr__()", "return repr(lambda: 0)", "return f'{(lambda: 0)}'",
    "return '%s' % f", "return '%s' % (f,)", "return x % f", "x %= f\nreturn x", "return '{}'.format(f)",
    "return '{0.append}'.format(x)", "return '{a.keys}'.format(a=x)", "return '{:{a.b}}'.format(x, a=x)",
    "return x.format(x)", "return x.format_map({'a': f})", "return format(f)", "return ascii(f)",
    "return ''.join(map(str, [f]))", "return type('')(f)", "return type(x)(iter(x))", "g = f\nreturn str(g)",
    "def g(): pass\nreturn str(g)", "def g(): pass\nh = [g]\nreturn str(h)", "g = lambda: 0\nreturn str([g])",
    "def g(h): return str(h)\nreturn g(g)", "def g(): return 1\nreturn str((t := (g, 0))[0]()) + str(t)",
    "def g(): return 1\nreturn str((t := g)()) + str(t)", "return str(map(len, x))",
    "return str(list((map(len, x), 0)))", "return str([*map(iter, [x])])", "z = zip\nreturn str(z(x))",
    "zip = zip([1])\ndef f(x): return str(zip)", "def g():\n    zip = 1\ndef f(x): return str(zip(x))",
    "return str(zip(*x))", "return str(x and zip(x))", "return str(list(zip(x) if x else zip()) or zip(x))",
    "return str((zip(x) if x else 0))", "return str(next(iter([zip(x)])))",
    "return str(max(zip(x), zip(x), key=lambda y: 0))", "return str(list(t := zip(x)) and t)",
    "a, b = zip(x), 1\nreturn str(a)", "return str(sorted([lambda: 0], key=lambda y: 0))",
    "return str(sorted(x, key=lambda y: str(f)))", "return str(list(map(lambda y: lambda: y, x)))",
    "return str(dict(key=lambda y: y))", "return '{key}'.format(key=lambda y: y)",
    "def g(x, key): return str(key)\ndef f(x): return g(x, key=lambda y: y)",
    "def sorted(x, key): return str(key)\ndef f(x): return sorted(x, key=lambda y: y)",
    "return str(x.setdefault(1, f))", "def g(): return g\ndef f(x): return str(g())",
    "def g():\n    def h(): return 1\n    return h\ndef f(x): return str(g())",
    "def g(): return 1\nh = g or 0\ndef f(x): return str(h)", "def f(x): return [str(g) for g in (f, f)]",
    "def f(x): return str([y.append for y in x])", "return str((f, 1)[0])", "return str({1: f}[1])",
    "return str([f].pop())", "return str(f if x else 1)", "return str(x or f)", "return str(f(f) if x else f)",
    "def f(x):\n    while x: str(yield_ := f)\n    return str(yield_)", "for y in (f,): return str(y)",
    "with x as y: return str(f)", "def g(*a): return str(a)\ndef f(x): return g(*(f,))",
    "def g(**a): return str(a)\ndef f(x): return g(a=f)", "return str(print(f) or f)", "return f'{reversed(x)}'",
    "return f'{zip(x, x)}'", "return str(enumerate(x))", "return str(filter(None, x))", "return str(iter(x))",
    "return str(y for y in x)", "g = (y for y in x)\nreturn str(g)", "return str([(y for y in x)])",
    "return str(max((y for y in x), (y for y in x), key=type))", "return str((0, (y for y in x)))",
    "return str(sum((y for y in ()), [(y for y in x)]))", "def sum(y): return str(y)\nreturn sum(y for y in x)",
    "return str(x.append)", "return str(dict.fromkeys)", "return f'{x.upper}'", "u = x.upper\nreturn f'{u}'",
    "str = x.upper\nreturn f'{str}'", "return str(object())", "return str(memoryview(x))", "return str(super)",
    "class A: pass\nreturn str(A())", "class A: pass\nreturn repr([A()])", "class A: pass\nreturn f'{A()}'",
    "class A:\n    def __repr__(self): return 'A'\nclass B: pass\nreturn str([A(), B()])",
    "class A: write = x.append\nprint(object(), file=A())", "def g(): yield 1\nreturn str(g())",
    "async def g(): pass\nreturn str(g())", "try: [].index(f)\nexcept ValueError as e: return e.args",
    "try: [].index(f)\nexcept ValueError as e: return str(e)", "try: {}[f]\nexcept KeyError as e: return str(e)",
    "try: x()\nexcept TypeError as e:\n    match e:\n        case TypeError(args=a): return a",
    "from collections import defaultdict\nreturn str(defaultdict(lambda: 0))",
    "from functools import partial\nreturn str(partial(f))",
    "from functools import lru_cache\n@lru_cache\ndef g(): pass\nreturn str(g)",
    "from itertools import chain\nreturn str(chain(x))", "import itertools\nreturn repr(itertools.permutations(x))",
    "import re\nreturn str(re.sub)", "from re import sub\nreturn str(sub)", "from re import *\nreturn str(sub)",
    "import re as r\nreturn str(r.finditer('a', x))", "from heapq import merge\nreturn str(merge(x))",
    "from collections import Counter\nreturn str(Counter(x).elements())",
    "from operator import mod\nreturn mod('%s', f)",
    # modules
    "import copy\nm = {}\ncopy.deepcopy(x, m)\nreturn list(m)",
    "from pprint import pformat\nreturn pformat({1j: 1, 2j: 2})", "import typing\nreturn list(typing.Set(x))",
    "from collections.abc import Set\nreturn 1", "import dataclasses\nreturn 1", "from enum import Flag\nreturn 1",
    "import abc\nreturn list(abc.ABC.__abstractmethods__)", "from statistics import mean\nreturn mean(x)",
    "import random\nreturn random.random()", "return dir(x)", "return vars()", "return eval('{1, 2}')",
    "return x.__class__", "return x.__dir__()", "return globals()['s' + 'et'](x)", "return __builtins__",
    "try: f(x)\nexcept RecursionError: return 1", "try: x = x * 10**9\nexcept MemoryError: return 1",
]  # fmt: skip
"""Programs, or bodies of ``f``, whose result may depend on hashes, identities or addresses."""

STATEFUL = [
    "from typing import List\nreturn str(List[x])", "import typing\nreturn str(typing.Optional[x])",
    "from typing import List as L\ndef f(x): return str(L[x])", "import typing as t\ndef f(x): return str(t.List[x])",
    "from typing import *\ndef f(x): return str(List[x])",
    "from keyword import *\nkwlist.append(1)\nreturn len(kwlist)",
    "from decimal import getcontext as g\ng().prec += 1\nreturn g().prec", "from decimal import localcontext\nreturn 1",
    "from decimal import DefaultContext\nreturn 1",
    "from collections import Counter as C\nfor C.seen in x: pass\nreturn C.seen",
    "from fractions import Fraction\nFraction.a = 1\nreturn 1", "import re\nre.sub.a = 1\nreturn 1",
    "from heapq import merge\nmerge.a = 1\nreturn 1",
    "from collections import Counter\nsetattr(Counter, 'a', 1)\nreturn 1",
    "from collections import Counter\ntype(Counter).__setattr__(Counter, 'a', 1)\nreturn 1",
    "from functools import wraps\nfrom re import sub\ndef g(): pass\nwraps(g)(sub)\nreturn 1",
    "from functools import update_wrapper\nreturn 1", "from functools import total_ordering\nreturn 1",
    "from functools import singledispatch\nreturn 1",
    "from dataclasses import dataclass\nfrom fractions import Fraction\ndataclass(Fraction)\nreturn 1",
    "from collections.abc import Sequence\ny = isinstance(1, Sequence)\nSequence.register(int)\nreturn y",
    "from collections import abc\nabc.Sequence.register(int)\nreturn 1",
    "from abc import ABC\nclass A(ABC): pass\nreturn len(ABC.__subclasses__())",
    "class A(Exception): pass\nreturn len(Exception.__subclasses__())",
    "class A(dict):\n    def __init_subclass__(cls): pass\nreturn 1", "class A:\n    def __del__(self): pass\nreturn 1",
    "def g():\n    try: yield 1\n    finally: x.append(1)\nnext(g())\nreturn x", "import re\nre.purge()\nreturn 1",
    "import copy\ncopy.dispatch_table = 1\nreturn 1", "import copyreg\nreturn 1", "from enum import Enum\nreturn 1",
    "import typing\ntyping.overload(f)\nreturn len(typing.get_overloads(f))",
    "import string\nstring.Template.idpattern = 1\nreturn 1", "from string import Formatter\nreturn 1",
    "import types\nreturn 1", "import ast\nreturn 1", "import contextlib\nreturn 1", "import difflib\nreturn 1",
    "import sys\nreturn sys.intern(x)", "import numpy\nreturn 1", "from . import a\nreturn 1",
    *(f"import re\nreturn len({got})" for table in ("_member_map_", "_value2member_map_", "_member_names_")
      for got in (f"type(re.I).{table}", f"getattr(type(re.I), '{table}')")),
    "import functools\nfunctools.reduce.cache_clear()\nreturn 1", "return type('A', (), {x: f})",
    "return type(int)('A', (), {x: f})", "return [type][0]('A', (), {x: f})", "return list(map(type, x, x, x))",
    "return id(x)", "return x.lower() is x", "return __builtins__['x']", "__builtins__.x = 1\nreturn 1",
    "return (lambda: 0).__globals__", "import math as m\nreturn m.__dict__", "return exec('import keyword')",
    "return globals()", "try: x = x * 10**9\nexcept MemoryError: return 1",
    "try: x = x * 10**9\nexcept Exception: return 1",
    "try: x = x * 10**9\nexcept ValueError: return 2\nexcept: return 1", "try: x = x * 10**9\nexcept: return 1",
    "try: x = x * 10**9\nfinally: return 1", "try: f(x)\nexcept RuntimeError as e: return 1",
    "class A:\n    def __enter__(self): pass\n    def __exit__(self, *a): return 1\nwith A(): x = x * 10**9\nreturn x",
]  # fmt: skip
"""Programs, or bodies of ``f``, whose calls may leave something behind for the next; test_determinism.py has more."""

HARMLESS = [
    "return {'a': x}", "return {y: 1 for y in x}", "return x & 1, x | 2, x - 1, x ^ x", "return sorted(x)",
    "return {**x}", "return 'set(x)'", "return x in {1, 2, 3}, x not in {'a', 'b'}",
    "return [y for y in x if y in {'a', 'e', 'i'}]", "return x.keys() == more",
    "return [k for k, v in x.items() if v - 1 & 2]", "return sum(v - 1 for k, v in x.items())",
    "return len(x.keys()) - 1", "return sorted(x.keys(), key=lambda k: k - 1), list(x.items())[0][1] - 1",
    "for k in x.keys(): x[k] -= 1\nreturn x", "return x is None or x is not True", "return 1 if type(x) is int else 2",
    "return type(x).__name__ + f'{type(x)}', type(x) in (int, str), type(x) == type(more)",
    "return isinstance(x, str) and str(x)", "return f'{x} {len(x):>5}' + '%s' % x + '%d' % 1",
    "return '{:.2f} {} {a}'.format(x, x, a=1)", "return ''.join(str(c) for c in x)",
    "return str(sum(int(c) for c in str(x)))",
    "return str(next((c for c in x if c), None)), str(max((c for c in x), default=0))",
    "return [str(c) for c in x], {c: str(c) for c in x}", "return str(abs(x))",
    "def f(n): return 1 if n < 2 else n * f(n - 1)", "def g(n): return n\ndef f(n): return str(g(n) + g(g(n)))",
    "return str(len(x)), ','.join(x)", "return list(zip(x, x)), list(map(len, x)), [i for i, _ in enumerate(x)]",
    "return sorted(x, key=lambda y: y[1])", "return ''.join(f'{i}{y}' for i, y in enumerate(x))",
    "for i, (a, b) in enumerate(zip(x, reversed(x)), 1): x = str(i) + str(a)\nreturn x",
    "return str(sum(map(int, str(x)))), str(list(filter(None, x))), str(sorted(x, key=lambda y: y[0], reverse=True))",
    "def g(n):\n    return str(n)\nreturn g(x) + g(1 if x else 2) + ''.join(map(g, x)) + str(max(x, key=g))",
    "return str(dict(zip(x, range(3)))), str(max(x, key=x.get)), ' '.join(reversed(x)), str(all(y for y in x))",
    "return f'{len(list(zip(*x)))} {sorted(x.items(), key=lambda y: (-y[1], y[0]))}'",
    "a, b = zip(*x)\nreturn str(a) + str(b)",
    "return [str(v - 1) for k, v in sorted(x.items(), key=lambda y: y[1] - 1, reverse=True)]",
    "def f(x):\n    class A:\n        def __init__(self): self.a = 1\n        def __len__(self): return self.a\n"
    "    return len(A())",
    "def f(x):\n    f.count = 1\n    return f.count", "import math\nreturn str(math.sqrt(x)), math.pi",
    "from typing import List, Dict, Optional\ndef f(x: List[int], y: Optional[Dict] = None) -> List[int]: return x",
    "import typing\ndef f(x: typing.List[int]) -> typing.Any: return x",
    "from collections import Counter, defaultdict, deque\nreturn dict(Counter(x)), defaultdict(int), deque(x)",
    "import collections\nreturn collections.Counter(x).most_common()",
    "from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f(x): return P(1, 2).a",
    "import re\nreturn re.sub('a', 'b', x), re.findall('a', x), bool(re.match('a', x))",
    "import heapq\nheapq.heappush(x, 1)\nreturn heapq.nlargest(2, x)",
    "from functools import reduce, lru_cache\n@lru_cache(maxsize=None)\ndef g(n): return n\n"
    "def f(x): return reduce(lambda a, b: a + b, x)",
    "import itertools\nreturn [list(p) for p in itertools.permutations(x)]", "from math import *\nreturn sqrt(x) + pi",
    "import json\nreturn json.loads(json.dumps(x))", "from bisect import bisect_left\nreturn bisect_left(x, 1)",
    "import string\nreturn string.ascii_lowercase.index(x)",
    "from fractions import Fraction\nreturn Fraction(x).numerator",
    "from decimal import Decimal\nreturn float(Decimal(x))", "try: return 1 / x\nexcept ZeroDivisionError: return 0",
    "try: return int(x)\nexcept (ValueError, TypeError) as e: return 0\nfinally: x = 1",
    "try: x = x[0]\nexcept IndexError: x = 1\nexcept KeyError: x = 2\nelse: x = 3\nreturn x",
    "def f(x):\n    '''Docs of __init__ and {a.b}.'''\n    return x\nif __name__ == '__main__': print(f(1))",
]  # fmt: skip
"""Programs, or bodies of ``f``, that must not be suspected of anything."""


@pytest.mark.parametrize(
    ("sources", "flag"), [(ORDERED, ORDER), (STATEFUL, STATE)], ids=["order or addresses", "the next call"]
)
def test_what_may_hang_on_something_is_suspect(sources, flag):
    assert [source for source in sources if not judge(source) & flag] == []


def test_what_cannot_is_not():
    assert [source for source in HARMLESS if judge(source)] == []


def test_sets_are_found_at_any_depth():
    for arguments in (({"a"},), (1, [(frozenset(), 2)]), ({"a": {1: set()}},), ({frozenset({1}): 1},), ([[[{1}]]],)):
        assert has_sets(arguments), arguments
    for arguments in ((), (1, "{2}", None), ({"a": [1, (2,)]},), ([[[{}]]],)):
        assert not has_sets(arguments), arguments


def test_few_real_programs_are_suspect():
    for programs, most_of_order in ((seed_programs(), 0.20), (public_programs(), 0.06)):
        found = []
        for program in programs:
            with contextlib.suppress(SyntaxError):
                found.append(suspicion(compile(program, "program", "exec", dont_inherit=True), program))
        order, state = (sum(bool(each & flag) for each in found) / len(found) for flag in (ORDER, STATE))
        assert order < most_of_order and state < 0.02


def test_it_is_cheap():
    sources = [row["code"] for row in rows("cruxeval.jsonl")]
    codes = [(compile(source, "program", "exec", dont_inherit=True), source) for source in sources]
    laps = []
    for _ in range(5):
        start = time.process_time()
        for code, source in codes:
            suspicion(code, source)
        laps.append(time.process_time() - start)
    assert min(laps) / len(codes) < 1e-4


def is_value(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def expressions(sources: list[str]) -> list[ast.AST]:
    """Return the values in programs or bodies of ``f``; in none that do not parse."""
    found = list[ast.AST]()
    for source in sources:
        with contextlib.suppress(SyntaxError):
            whole = source if "def f(" in source else "def f(x):\n    " + source.replace("\n", "\n    ")
            found += filter(is_value, ast.walk(ast.parse(whole)))
    return found


class Mutator(ast.NodeTransformer):
    """Puts nodes of other programs in the place of a program's own."""

    def __init__(self, others: list[ast.AST], chance: random.Random) -> None:
        self.others, self.chance = others, chance

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if is_value(node) and self.chance.random() < 0.05:
            return self.chance.choice(self.others)
        return super().generic_visit(node)

    def mutants(self, sources: list[str]) -> Iterator[tuple[int, str, int]]:
        """Give each mutant that compiles, its suspicion, and the index of its source."""
        for index, source in enumerate(sources):
            try:
                tree = ast.fix_missing_locations(self.visit(ast.parse(source)))
                code, text = compile(tree, "program", "exec", dont_inherit=True), ast.unparse(tree)
            except (SyntaxError, ValueError, TypeError, RecursionError):
                continue
            yield suspicion(code, text), text, index


def test_it_raises_for_no_code():
    chance = random.Random(15)
    programs = chance.sample(seed_programs(), 300) + [source for source in ORDERED + STATEFUL if "def f(" in source]
    others = expressions([*programs, *ORDERED])
    judged = [suspected for suspected, _, _ in Mutator(others, chance).mutants(programs * 4)]
    assert len(judged) > 600 and set(judged) <= set(range(4))


@pytest.mark.asyncio(loop_scope="session")
async def test_programs_that_are_no_suspects_agree_in_all_interpreters(hasty):
    """CRUXEval's programs with parts of suspects in them: what the rules let pass is run and compared."""
    tested = rows("cruxeval.jsonl")[::2]
    mutator = Mutator(expressions(ORDERED) + expressions(HARMLESS), random.Random(7))
    mutants = list(mutator.mutants([row["code"] for row in tested]))
    requests = [
        ExecutionRequest(program=text, inputs=(tested[index]["input"],), repeats=2)
        for suspected, text, index in mutants
        if not suspected & ORDER
    ]
    results = await execute_many(hasty, requests)
    differing = [
        request.program
        for request, result in zip(requests, results, strict=True)
        if result.deterministic is False and not has_sets(tuple(ast.literal_eval(f"[{request.inputs[0]}]")))
    ]
    assert differing == []
    values = [result for result in results if result.outputs[0].status is CallStatus.OK]
    assert len(mutants) - len(requests) > 30 and len(values) > 100

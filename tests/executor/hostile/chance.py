"""Programs whose value changes from run to run, and values that are odd but honest."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

import math
from typing import Any

from tests.executor.hostile.attack import ANY, DENIED, ROUTES, Family

CHANCE = Family("non-determinism")
_WAYS = {
    "the time": "import time; return time.time()", "nanoseconds": "import time; return time.time_ns()",
    "a monotonic clock": "import time; return time.monotonic()",
    "a performance counter": "import time; return time.perf_counter_ns()",
    "processor time": "import time; return time.process_time_ns()",
    "how long a loop takes": "import time\n    t = time.perf_counter()\n    sum(range(1000))\n    return time.perf_counter() - t",
    "how far a loop gets": "import time\n    t = time.monotonic() + 0.01\n    n = 0\n    while time.monotonic() < t: n += 1\n    return n",
    "chance": "import random; return random.random()", "the kernel's chance": "import posix; return posix.urandom(8)",
    "chance for secrets": "import secrets; return secrets.token_hex()",
    "a UUID": "import uuid; return str(uuid.uuid4())", "an address": "return id(object())",
    "an address in a text": "return repr(object())", "an address of a function": "return str(f)",
    "a hash of a text": "return hash('abc')", "a hash of bytes": "return hash(b'abc')",
    "a hash of an object": "return hash(object())",
    "order of a set": "return list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})",
    "one of a set": "return {str(n) for n in range(1000)}.pop()",
    "order of a set of classes": "return [c.__name__ for c in {type(str(n), (), {}) for n in range(30)}]",
    "a set in a loop": "r = ''\n    for w in set('the quick brown fox jumps over a lazy dog'.split()): r += w\n    return r",
    "a sort by address": "return sorted(range(40), key=lambda n: id(object()))and sorted(map(id, [object() for _ in range(40)]))[0]",
    "a maximum by hash": "return max(('w%d' % n for n in range(1000)), key=hash)",
    "a thread's number": "import _thread; return _thread.get_ident()",
    "a frame's address": "import sys; return id(sys._getframe())",
    "a class made by chance": "raise type('E%d' % (hash('x') % 10**9), (Exception,), {})",
    "times of the process": "import posix; return list(posix.times())",
    "the date": "import datetime; return str(datetime.datetime.now())",
    "the date as text": "import time; return time.ctime(time.time_ns())",
    "the environment": "import posix; return posix.environ[b'PYTHONHASHSEED']",
    "the address in an error": "try: f.x\n    except AttributeError as e: return repr(e) + repr(e.obj)",
    "a default that is an address": "import dataclasses\n    return dataclasses.field().__repr__()",
    "order by a dict of sets": "return list(dict.fromkeys({'a', 'b', 'c', 'd', 'e', 'f', 'g'}))",
    "JSON of a set's items": "import json; return json.dumps(list(frozenset('abcdefghijkl')))",
    "a weak reference": "import weakref; return repr(weakref.ref(f))",
}  # fmt: skip
for _name, _body in _WAYS.items():
    for _checked in (False, True):
        _how = ", static_check" if _checked else ""
        CHANCE.add(f"{_name}{_how}", ANY, f"def f():\n    {_body}", repeats=2, static_check=_checked, never_ok=True)
for _name, _body in {
    "the load": "return syscall(99, b'-' * 200) and 0",
    "memory never written": "return namespace('ctypes')['string_at'](id(f) - 4096, 4096)",
    "an address on the stack": "c = namespace('ctypes'); return c['addressof'](c['c_int']())",
}.items():
    CHANCE.add(_name, ANY, f"{ROUTES}\ndef f():\n    {_body}", repeats=2, never_ok=_name != "the load")
for _name, _body in {
    # The same in every run of one interpreter on one machine, and so not found out: addresses move by whole pages,
    # and those of an interpreter built for a fixed place do not move at all.
    "a hash of None": "return hash(None)",
    "a hash of a class": "return hash(int) % 10**6",
    "order of a small set of objects": "x = [object() for _ in range(30)]\n    return [x.index(o) for o in set(x)]",
    "the low bits of an address": "return id(object()) % 4096",
}.items():
    CHANCE.add(_name, ANY, f"def f():\n    {_body}", repeats=2)
for _name, _body in {
    # The walls make these the same every time, or nearly; only the static check can know better.
    "the second": "import time; return int(time.time()) // 10**6",
    "the process's number": "import os; return os.getpid()",
    "the parent's number": "import os; return os.getppid()",
    "the year": "import time; return time.localtime().tm_year",
    "coarse resources": "import resource; return resource.getrusage(0).ru_maxrss",
}.items():
    CHANCE.add(
        f"{_name}, static_check", "rejected", f"def f():\n    {_body}", repeats=2, static_check=True, never_ok=True
    )

CLOCKS = Family("coarse clocks")
"""All runs of a validation agree on the hour, and a verification later does not."""
_TWO = "two = chr(95) * 2"
for _name, _program in {
    **{name: f"import time\ndef f(): return {value}" for name, value in {
        "the hour": "int(time.time()) // 3600", "the year": "time.localtime().tm_year",
        "the year as text": "time.strftime('%Y')", "the day of the week": "time.ctime()[:3]",
        "days since the start": "time.monotonic_ns() // (86400 * 10**9)", "the date in words": "time.asctime()[-4:]",
        "processor time": "int(time.process_time() + time.thread_time()) // 60",
        "a clock by number": "[int(time.clock_gettime(n)) // 3600 for n in range(8)]",
        "a sleep": "time.sleep(0.1)",
    }.items()},
    "times of the process": "import posix\ndef f(): return posix.times().elapsed // 10**9",
    "the date": "import _datetime\ndef f(): return _datetime.date.today().year",
    "the module made anew": "import sys\ndef f():\n    del sys.modules['time']\n    import time\n    return time.gmtime().tm_year",
    "a class of dates": "import _datetime\nclass D(_datetime.datetime): pass\ndef f(): return D.today().year",
    "a loader's module": "import _frozen_importlib as m\ndef f():\n    spec = m.BuiltinImporter.find_spec('time')\n"
    "    made = m.module_from_spec(spec)\n    spec.loader.exec_module(made)\n    return made.time_ns() // (3600 * 10**9)",
    "the module made by the machinery": "import _imp\nclass Spec: name, origin = 'time', None\ndef f():\n    made = _imp.create_builtin(Spec)\n"
    "    _imp.exec_builtin(made)\n    return int(made.time()) // 3600",
}.items():  # fmt: skip
    CLOCKS.add(_name, DENIED + " TypeError AttributeError KeyError", _program, repeats=2)
CLOCKS.add("one that the sandbox kept for itself", "ok", """
    import gc, sys
    def f():
        gc.unfreeze()
        frames, found = [sys._getframe()], list(gc.get_objects())
        while frames[-1].f_back: frames.append(frames[-1].f_back)
        for frame in frames: found += [*frame.f_globals.values(), *frame.f_locals.values()]
        count = 0
        for one in found:
            if type(one) is type(len) and one.__name__ in ('monotonic', 'clock_gettime', 'time', 'perf_counter'):
                for given in ((), (0,)):
                    try: one(*given)
                    except TypeError: continue
                    count += 1
        return count
""", value=lambda count: count == 0)  # fmt: skip
_LIBRARY = f"{ROUTES}\nctypes = namespace('ctypes')\nlibrary, room = ctypes['CDLL'](None), ctypes['create_string_buffer'](32)\n"
for _name, _value in {
    "seconds": "library.time(room)", "microseconds": "library.gettimeofday(room, None)",
    "every clock": "[library.clock_gettime(number, room) for number in range(16)]",
    "the time in ISO C": "library.timespec_get(room, 1)",
}.items():  # fmt: skip
    _program = f"{_LIBRARY}def f(): return {_value}, any(room.raw)"
    CLOCKS.add(f"machine code: {_name}", "ok", _program, value=lambda read: not read[1])
for _name, _arguments in {
    "time": "201, 0", "gettimeofday": "96, bytes(16), 0", "clock_nanosleep": "230, 0, 0, bytes(16), 0",
    "times": "100, bytes(64)", **{f"clock {number}": f"228, {number}, bytes(16)" for number in (0, 1, 5, 7, 11)},
}.items():  # fmt: skip
    CLOCKS.add_call(f"system call: {_name}", _arguments)
_ANY = "class M(type):\n    def __instancecheck__(c, o): return True\n"
for _name, _program in {
    "a computed name": "class P(metaclass=M): __match_args__ = ('gi_' + ''.join(['fra', 'me']),)",
    "a named tuple's": "import collections\nclass P(collections.namedtuple('T', ['a' 'b'.upper()]), metaclass=M): pass",
    "a data class's": "import dataclasses\nclass P(dataclasses.make_dataclass('T', ['g' + 'i']), metaclass=M): pass",
    "a metaclass's": "class N(M):\n    def __getattr__(c, name): return ('gi_' + ''.join(['fra', 'me']),)\nclass P(metaclass=N): pass",
    "a class that is registered": "import abc\nclass P(abc.ABC): __match_args__ = ('a' + 'b'.upper(),)\nP.register(type(i for i in ()))",
    "a name that is bound twice": "class P: __match_args__ = ('real',)\nP = [M][0]('P', (), {chr(95) * 2: 1})",
}.items():
    _use = "def f(x):\n    match (i for i in ()):\n        case P(b): return str(type(b))\n"
    CLOCKS.add(
        f"by a pattern's positions: {_name}", "rejected", f"{_ANY}{_program}\n{_use}", inputs=("1",), static_check=True
    )
CLOCKS.add("by fields that a pattern binds", "rejected", """
    import ast
    class C:
        match [("".join(["__getattr", "ibute__"]),)]:
            case [_fields]: pass
    def f(): return dict(ast.iter_fields(C))
""", static_check=True)  # fmt: skip
for _name, _program in {
    # Past the static check; the clock that is at the end of the road does not go.
    "fields of a function": f"""
    import ast, functools, types
    {_TWO}
    def named(place, name):
        fields = types.SimpleNamespace(**{{chr(95) + 'fields': (name,)}})
        return dict(ast.iter_fields(functools.update_wrapper(place, fields)))[name]
    def f():
        builtin = named(lambda: 0, two + 'globals' + two)[two + 'builtins' + two]
        return int(named(builtin, two + 'import' + two)('time').time()) // 3600
    """,
    "text that a dataclass writes": f"""
    import dataclasses
    {_TWO}
    code = 'eval(chr(95)*2+chr(105)+chr(109)+chr(112)+chr(111)+chr(114)+chr(116)+chr(95)*2)(chr(116)+chr(105)+chr(109)+chr(101))'
    made = type('X', (), {{two + 'annotations' + two: {{'a or ' + code + '.time()//3600': int}}, 'a': 0}})
    def f(): return str(dataclasses.dataclass(init=False, eq=False)(made)())
    """,
    "a copy that sets attributes": f"""
    import copy
    {_TWO}
    def g(): return 1
    def h(): return 2
    def f():
        ways = {{two + 'reduce_ex' + two: lambda s, p: ((lambda: g), (), (None, {{two + 'name' + two: 'h'}}))}}
        return copy.copy(type('X', (), ways)()) is g and int(h() / 0)
    """,
}.items():
    _ends = "rejected TypeError AttributeError SyntaxError ZeroDivisionError"
    CLOCKS.add(_name, _ends, _program, repeats=2, static_check=True, never_ok=True)

COMPANY = Family("calls of one request")
"""Each call looks for a mark, and leaves one for those after it."""
_MARKED = {
    "members of an enumeration": "d = type(re.I)._member_map_\n    was = 'mark' in d\n    d['mark'] = 1",
    "values of an enumeration": "d = type(re.I)._value2member_map_\n    was = 'mark' in d\n    d['mark'] = 1",
    "names of an enumeration": "d = type(re.M | re.I)._member_names_\n    was = 'mark' in d\n    d += ['mark']",
    "by a literal name": "d = getattr(type(re.I), '_member_map_')\n    was = 'mark' in d\n    d['mark'] = 1",
    "by a pattern": "match type(re.I):\n        case object(_member_map_=d): was = 'mark' in d\n    d['mark'] = 1",
    "by a getter": "d = operator.attrgetter('_member_map_')(type(re.I))\n    was = 'mark' in d\n    d['mark'] = 1",
    "an attribute of a member": "was = hasattr(re.I, 'mark')\n    re.I.mark = 1",
    "an attribute of a class": "was = hasattr(type(re.I), 'mark')\n    type(re.I).mark = 1",
    "an attribute of a caught class": "try: json.loads('')\n    except json.JSONDecodeError as e:\n        was = hasattr(type(e), 'mark')\n        type(e).mark = 1",
    "a copy that sets attributes": "two = chr(95) * 2\n    ways = {two + 'reduce_ex' + two: lambda s, p: ((lambda: json.dumps), (), {'mark': 1})}\n"
    "    was = hasattr(json.dumps, 'mark')\n    copy.copy(type('X', (), ways)())",
    "a copy of what another type makes": "two = chr(95) * 2\n    ways = {two + 'reduce_ex' + two: lambda s, p: ((lambda: json.dumps), (), {'mark': 1})}\n"
    "    was = hasattr(json.dumps, 'mark')\n    copy.copy([type][0]('X', (), ways)())",
    "what collection finds": "class A:\n        def __del__(self): keyword.kwlist.append('mark')\n    a = A()\n    a.a = a\n    was = 'mark' in keyword.kwlist",
    "a loop's target": ("was = hasattr(json.JSONDecodeError, 'mark')\n    for json.JSONDecodeError.mark in [1]: pass"),
    "a dialect": "import csv\n    was = 'mark' in csv.list_dialects()\n    csv.register_dialect('mark', delimiter='|')",
    "a data class of the library": "import collections, dataclasses\n    was = dataclasses.is_dataclass(collections.Counter)\n    dataclasses.dataclass(collections.Counter)",
    "a class without heirs": "import collections, typing\n    was = getattr(collections.Counter, '__fi' 'nal__', False)\n    typing.final(collections.Counter)",
    "the collector": "a = []\n    a.append(a)\n    was = gc.get_count()[0] > 200 or gc.get_stats()[1]['collections'] > 50",
}
for _name, _body in _MARKED.items():
    for _checked in (False, True):
        if _checked and "gc." in _body:
            continue
        _how, _modules = (", static_check", "") if _checked else ("", ", gc")
        _program = f"import copy, json, keyword, operator, re{_modules}\ndef f(x):\n    {_body}\n    return was"
        _options = {"inputs": ("1", "2", "3"), "static_check": _checked, "value": lambda was: was is False}
        COMPANY.add(f"{_name}{_how}", "ok", _program, **_options)

ODD = Family("odd values")


def _same(value: Any) -> Any:
    """Equal, of the same type, and with the same text, where NaN and signed zeros show."""
    return lambda got: type(got) is type(value) and repr(got) == repr(value)


for _name, _text, _value in (
    ("not a number", "float('nan')", math.nan), ("negative zero", "-0.0", -0.0),
    ("infinity", "[1e999, -1e999]", [math.inf, -math.inf]), ("nothing", "None", None), ("true", "True", True),
    ("one", "1", 1), ("one as a float", "1.0", 1.0),
    ("a complex number", "complex(-0.0, float('inf'))", complex(-0.0, math.inf)),
    ("a lone surrogate", "'a\\ud800b'", "a\ud800b"), ("null characters", "'\\0' * 3", "\0\0\0"),
    ("all sorts of quotes", "'\\'\"\\\\\\n\\r\\x85\\u2028'", "'\"\\\n\r\x85\u2028"),
    ("bytes", "bytes(range(256))", bytes(range(256))),
    ("the empty containers", "[[], (), {}, set(), frozenset(), '', b'']", [[], (), {}, set(), frozenset(), "", b""]),
    ("a tuple of one", "((1,),)", ((1,),)), ("keys that are equal", "{1: 'a', True: 'b', 1.0: 'c'}", {1: "c"}),
    ("frozen sets in sets", "{frozenset({frozenset()})}", {frozenset({frozenset()})}),
    ("a large integer", "10 ** 3999", 10**3999), ("a large negative integer", "-10 ** 3999", -(10**3999)),
    ("the smallest floats", "[5e-324, 2.2250738585072014e-308]", [5e-324, 2.2250738585072014e-308]),
    ("emoji that join", "'\\U0001F468\\u200d\\U0001F469'", "\U0001f468\u200d\U0001f469"),
    ("text that looks like code", "'__import__(\"os\")'", '__import__("os")'),
    ("text that looks like a frame", "'\\0\\0\\0\\x02{}'", "\0\0\0\x02{}"),
):  # fmt: skip
    ODD.add(_name, "ok", f"def f(): return {_text}", value=_same(_value))
for _name, _depth, _outcome in (("deepest allowed", 64, "ok"), ("one too deep", 65, "output_too_large")):
    ODD.add(_name, _outcome, f"def f():\n    x = []\n    for _ in range({_depth - 1}): x = [x]\n    return x")
for _name, _inputs in {
    "an argument that is code": "__import__('os').system('id')", "an injected parenthesis": "1), (2",
    "an injected comment": "1 # ) or True", "a null byte": "'a\0b'", "a homoglyph": "\N{FULLWIDTH DIGIT ONE}",
    "a bomb": "9**9**9", "depth": "[" * 10_000, "a formatted string": "f'{1}'", "a comprehension": "[x for x in (1,)]",
    "a keyword": "x=1", "a star": "*[1]", "a walrus": "(y := 1)",
}.items():  # fmt: skip
    ODD.add(f"argument: {_name}", "rejected ok TypeError", "def f(x): return x", inputs=(_inputs,), value=_same(1))

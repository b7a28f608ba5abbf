"""Programs whose value changes from run to run, and values that are odd but honest."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

import math
from typing import Any

from tests import tables
from tests.executor.hostile.attack import ANY, DENIED, PROGRAMS, ROUTES, Family

CHANCE = Family("non-determinism")
for _name, _body in tables.values(PROGRAMS, "chance: bodies"):
    for _checked in (False, True):
        _how = ", static_check" if _checked else ""
        CHANCE.add(f"{_name}{_how}", ANY, f"def f():\n    {_body}", repeats=2, static_check=_checked, never_ok=True)
for _name, _body in {
    "the load": "return syscall(99, b'-' * 200) and 0",
    "memory never written": "return namespace('ctypes')['string_at'](id(f) - 4096, 4096)",
    "an address on the stack": "c = namespace('ctypes'); return c['addressof'](c['c_int']())",
}.items():
    CHANCE.add(_name, ANY, f"{ROUTES}\ndef f():\n    {_body}", repeats=2, never_ok=_name != "the load")
for _name, _body in tables.values(PROGRAMS, "chance: the same in every run"):
    CHANCE.add(_name, ANY, f"def f():\n    {_body}", repeats=2)
for _name, _body in tables.values(PROGRAMS, "chance: refused by the static check"):
    CHANCE.add(
        f"{_name}, static_check", "rejected", f"def f():\n    {_body}", repeats=2, static_check=True, never_ok=True
    )

CLOCKS = Family("coarse clocks")
"""All runs of a validation agree on the hour, and a verification later does not."""
_TWO = "two = chr(95) * 2"
_ENDS = DENIED + " TypeError AttributeError KeyError"
for _name, _value in tables.values(PROGRAMS, "clocks: values"):
    CLOCKS.add(_name, _ENDS, f"import time\ndef f(): return {_value}", repeats=2)
for _name, _program in tables.values(PROGRAMS, "clocks: programs"):
    CLOCKS.add(_name, _ENDS, _program, repeats=2)
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
for _name, _program in tables.values(PROGRAMS, "clocks: patterns"):
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
for _name, _body in tables.values(PROGRAMS, "company: bodies"):
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

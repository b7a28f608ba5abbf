"""Programs that attack the parser, the compiler and the interpreter itself."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

from tests.executor.hostile.attack import ROUTES, Family

PARSING = Family("parser and compiler")
_REFUSED = "rejected crashed memory timeout"
for _name, _program in {
    "brackets": "f = " + "(" * 8000, "balanced brackets": "f = " + "(" * 4000 + ")" * 4000,
    "lists": "f = " + "[" * 190 + "]" * 190 + "\nx = " + "[" * 4000, "negations": "f = lambda: " + "not " * 4000 + "1",
    "signs": "f = lambda: " + "-" * 16000 + "1", "powers": "f = lambda: " + "2 ** " * 3000 + "1",
    "lambdas": "f = " + "lambda: " * 2000 + "1",
    "indentation": "def f():\n" + "".join(f"{' ' * i}if 1:\n" for i in range(1, 120)) + " " * 120 + "0",
    "loops in loops": "def f():\n" + "".join(f"{' ' * i}for x in y:\n" for i in range(1, 60)) + " " * 60 + "0",
    "a null byte": "def f(): return 1\0", "a lone surrogate": "def f(): return '\ud800'",
    "an unknown coding": "# coding: no-such\ndef f(): return (",
    "a wide letter that is not ASCII's": "def f(): return 1 \N{GREEK QUESTION MARK} import os",
    "an unprintable name": "def f\u200b(): return 1", "an await outside": "def f(): await 1",
    "a return outside": "return 1\ndef f(): return 1", "a nonlocal that is not": "def f():\n    nonlocal x",
    "an endless string": "def f(): return '''" + "a" * 1000,
    "formatted strings in each other": "def f(): return " + "f'{" * 200 + "1" + "}'" * 200,
    "too many digits": "def f(): return " + "9" * 5000, "nothing": "", "only a comment": "# nothing",
    "no f": "def g(): return 1", "f is data": "f = 3",
}.items():  # fmt: skip
    PARSING.add(_name, _REFUSED, _program)
for _name, _program in {
    "attributes": "def f():\n    x = 1\n    return x" + ".real" * 3000, "calls": "def f(): return f" + "()" * 6000,
    "comparisons": "def f(): return " + "1 < " * 4000 + "2", "sums": "def f(): return " + "1 + " * 3900 + "1",
    "else after else": "def f(x=0):\n    if x == 1: pass\n" + "    elif x == 2: pass\n" * 700,
    "matches": "def f():\n    match 1:\n        case " + "[" * 150 + "]" * 150 + ": pass",
    "a folded constant": "def f(): return len((((('a' * 4000) * 4000) * 4000) * 4000) * 4000)",
    "a folded power": "def f(): return 1 if 9 ** 9 ** 9 else 2",
    "a constant while loading": "x = 9 ** 9 ** 9\ndef f(): return 1",
    "a coding of its own": "# -*- coding: utf-7 -*-\ndef f(): return 1",
    "other line ends": "def f():\r\n    return 1\r\n", "a form feed": "\f\ndef f(): return 1",
    "a homoglyph": "def \N{FULLWIDTH LATIN SMALL LETTER F}(): return 1",
}.items():  # fmt: skip
    PARSING.add(_name, "ok raised rejected crashed memory timeout", _program)
for _name, _body in {
    "compile brackets": "return compile('(' * 10**6, '', 'eval') is None",
    "evaluate negations": "return eval('not ' * 10**6 + '1')",
    "evaluate digits": "return eval('9' * 10**6)",
    "a literal": "import ast; return ast.literal_eval('[' * 10**6)",
    "a deep tree": "import ast\n    n = ast.Constant(1)\n    for _ in range(10**6): n = ast.UnaryOp(ast.Not(), n)\n"
    "    return eval(compile(ast.fix_missing_locations(ast.Expression(n)), '', 'eval'))",
    "a tree of wrong things": "import ast\n    return eval(compile(ast.Expression(ast.Name('x', 3)), '', 'eval'))",
    "a tree that holds itself": "import ast\n    n = ast.UnaryOp(ast.Not(), None, lineno=1, col_offset=0)\n    n.operand = n\n"
    "    return compile(ast.Expression(n), '', 'eval') is None",
    "JSON": "import json; return json.loads('[' * 10**6)",
    "code from text, deep": "exec('def g():\\n' + ''.join(' ' * i + 'if 1:\\n' for i in range(1, 99)) + ' ' * 99 + '1')",
}.items():
    PARSING.add(_name, "ok raised crashed memory timeout", f"def f():\n    {_body}")

CRASHES = Family("crashes of the interpreter")
_CODE = "def g(): pass\ng.__code__ = g.__code__.replace({})\ndef f(): return g()"
_FATAL = "crashed raised memory timeout rejected output_too_large ok"
for _name, _change in {
    "a constant that is not there": "co_code=b'\\x97\\x00\\x64\\xff\\x53\\x00'",
    "a constant far away": "co_code=b'\\x97\\x00' + b'\\x90\\xff' * 3 + b'\\x64\\xff\\x53\\x00'",
    "a local that is not there": "co_code=b'\\x97\\x00\\x7c\\xff\\x53\\x00'",
    "a pop too many": "co_code=b'\\x97\\x00' + b'\\x01\\x00' * 60 + b'\\x53\\x00'",
    "a jump outside": "co_code=b'\\x97\\x00' + b'\\x90\\xff' * 2 + b'\\x6e\\xff'",
    "a stack too small": "co_stacksize=0, co_code=b'\\x97\\x00' + b'\\x64\\x00' * 5000 + b'\\x53\\x00'",
    "instructions that do not exist": "co_code=bytes(range(256)) * 4",
    "no instruction": "co_code=b''",
    "a table of exceptions": "co_exceptiontable=bytes(range(200))",
}.items():
    CRASHES.add(_name, _FATAL, _CODE.format(_change))
for _name, _body in {
    "exit at once": "import posix; posix._exit(0)", "exit with a number": "import posix; posix._exit(77)",
    "abort": "import posix; posix.abort()", "a real segmentation fault": "import faulthandler; faulthandler._sigsegv()",
    "a stack overflow": "import faulthandler; faulthandler._stack_overflow()",
    "a fatal error": "import faulthandler; faulthandler._fatal_error_c_thread()",
    "recursion in C": "import sys\n    sys.setrecursionlimit(10**9)\n    return sorted([0], key=lambda _: f())",
    "recursion in Python": "import sys\n    sys.setrecursionlimit(10**9)\n    return f()",
    "recursion in attributes": "import sys\n    sys.setrecursionlimit(10**9)\n    class A:\n"
    "        def __getattr__(s, n): return getattr(s, n + 'a')\n    return A().b",
    "recursion in repr": "import sys\n    sys.setrecursionlimit(10**9)\n    class A:\n"
    "        def __repr__(s): return repr(s)\n    return repr(A())",
    "recursion in hash": "import sys\n    sys.setrecursionlimit(10**9)\n    x = ()\n    for _ in range(10**6): x = (x,)\n    return hash(x)",
    "recursion in comparison": "import sys\n    sys.setrecursionlimit(10**9)\n    x, y = [], []\n"
    "    for _ in range(10**6): x, y = [x], [y]\n    return x == y",
    "partial functions in each other": "import functools\n    p = print\n    for _ in range(10**6): p = functools.partial(p)\n    return repr(p)",
    "iterators in each other": "import itertools\n    x = iter(())\n    for _ in range(3 * 10**5): x = itertools.chain(x)\n    return list(x)",
    "maps in each other": "x = iter('a')\n    for _ in range(3 * 10**5): x = map(str, x)\n    return list(x)",
    "filters dropped": "x = iter('a')\n    for _ in range(3 * 10**5): x = filter(None, x)\n    del x\n    return 1",
    "a deep expression": "import re; return re.match('(?:' * 90 + 'a*' + ')*' * 90 + 'b', 'a' * 50000)",
    "a deep copy": "import copy\n    x = []\n    for _ in range(10**5): x = [x]\n    return copy.deepcopy(x)",
    "marshalled noise": "import marshal; return marshal.loads(b'c' + bytes(range(256)) * 40)",
    "marshalled depth": "import marshal; return marshal.loads(b'(\\x01\\x00\\x00\\x00' * 10**5)",
    "a function of marshalled noise": "import marshal, types\n    c = marshal.loads(marshal.dumps(f.__code__).replace(b'd', b'z'))\n"
    "    return types.FunctionType(c, {})()",
    "classes in a circle": "class A: pass\n    class B(A): pass\n    A.__bases__ = (B,)",
    "a key that changes the dict": "class K:\n        def __hash__(s): return 1\n        def __eq__(s, o): d.clear(); return False\n"
    "    d = {K(): 1 for _ in range(9)}\n    return [d.get(K()) for _ in range(9)]",
    "a sort that changes the list": "x = list(range(1000))\n    x.sort(key=lambda i: x.append(i) or i)\n    return x",
    "a tuple not finished": "import gc\n    return tuple(gc.get_referrers(x) and x for x in ([1], [2]))",
    "an iterator used inside itself": "def g():\n        yield next(i)\n    i = g()\n    return next(i)",
    "debug statistics": "import sys; sys._debugmallocstats()",
    "the dictionary of builtins": "import builtins; builtins.__dict__.clear()",
    "no modules": "import sys; sys.modules.clear(); import math; return math.pi",
}.items():  # fmt: skip
    CRASHES.add(_name, _FATAL, f"def f():\n    {_body}")
for _name, _body in {
    "read address 0": "namespace('ctypes')['string_at'](0, 8)",
    "write address 0": "namespace('ctypes')['memset'](8, 0, 8)",
    "no references to None": "namespace('ctypes')['memset'](id(None), 0, 8)",
    "a type without a type": "namespace('ctypes')['memset'](id(int) + 8, 0, 8)",
    "another value for 1": "namespace('ctypes')['memset'](id(1) + 24, 7, 1)",
    "the true value of True": "namespace('ctypes')['memset'](id(True) + 24, 0, 4)",
    "jump into data": "namespace('ctypes')['CFUNCTYPE'](None)(id(f))()",
    "a bytearray over all memory": "namespace('ctypes')['memmove'](id(b := bytearray(8)) + 16, bytes([255] * 7 + [127]) + "
    "bytes([255] * 7 + [127]) + bytes(16), 32) and len(b)",
}.items():
    CRASHES.add(_name, _FATAL, f"{ROUTES}\ndef f():\n    return bool({_body})")

"""Using up time, memory, output, the parser and the C stack."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

from tests.executor.hostile.attack import DENIED, ROUTES, Family

TIME = Family("endless loops")
for _name, _body in {
    "loop": "while True: pass",
    "swallow every exception": "while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    "swallow in finally": "while True:\n        try: return 1\n        finally: continue",
    "a power": "return 7 ** 9 ** 9", "a sum": "return sum(range(10**15))",
    "search an endless iterator": "import itertools; return 'a' in itertools.repeat('b')",
    "exhaust an endless iterator": "import itertools, collections; collections.deque(itertools.count(), maxlen=0)",
    "regular expression": "import re; return re.match('(a+)+$', 'a' * 60 + 'b')",
    "a decimal": "import decimal; c = decimal.Context(prec=10**6); return c.exp(decimal.Decimal(10)**5) > 0",
    "factorial": "import math; return math.factorial(10**7)",
    "digits": "import sys; sys.set_int_max_str_digits(0); return len(str(1 << 10**8))",
    "a lock taken twice": "import _thread; l = _thread.allocate_lock(); l.acquire(); l.acquire()",
    "recursion that catches its own end": "try: return f()\n    except RecursionError: return f()",
    "compare": "import functools\n    class E:\n        def __lt__(s, o):\n            while True: pass\n    return sorted([E(), E()])",
    "a generator that will not close": "def g():\n        while True:\n            try: yield\n            except BaseException: "
    "pass\n    for _ in iter(int, 1): next(g())",
    "a destructor": "class E:\n        def __del__(s):\n            while True: pass\n    E()",
    "many destructors": "class E:\n        def __del__(s): E()\n    E()\n    while True: E()",
    "a trace function": "import sys\n    def t(*a):\n        while True: pass\n    sys.settrace(t)\n    return (lambda: 1)()",
    "an audit hook": "import sys\n    def h(*a):\n        while True: pass\n    sys.addaudithook(h)\n    return id(1)",
    "a warning filter": "import re; return [re.compile('(' * n + ')' * n) for n in iter(int, 1)]",
    "difflib": "import difflib; return len(difflib.ndiff(['a' * 500 + str(i) for i in range(900)], "
    "['b' * 500 + str(i) for i in range(900)]).__next__())",
}.items():  # fmt: skip
    TIME.add(_name, "timeout", f"def f():\n    {_body}")
for _name, _program in {
    "while loading": "while True: pass",
    "in a class body": "class A:\n    while True: pass\ndef f(): return 1",
    "in a decorator": "def d(f):\n    while True: pass\n@d\ndef f(): return 1",
    "in a default": "def f(x=sum(1 for _ in iter(int, 1))): return x",
}.items():
    TIME.add(_name, "timeout", _program)
TIME.add("in the value's conversion", "timeout rejected",
    "class E(list):\n    def __iter__(s):\n        while True: pass\n    __len__ = __repr__ = __iter__\ndef f(): return E()")  # fmt: skip
TIME.add("in the exception's name", "timeout Odd", """
    class Slow(type):
        @property
        def __name__(c):
            while True: pass
    class Odd(Exception, metaclass=Slow):
        def __str__(s):
            while True: pass
        __repr__ = __str__
    def f(): raise Odd
""")  # fmt: skip
TIME.add("ignore the signals of the limits", "timeout", """
    import _signal
    def f():
        for n in range(1, 65):
            try: _signal.signal(n, lambda *_: None)
            except (OSError, ValueError): pass
        try: _signal.pthread_sigmask(0, range(1, 65))
        except OSError: pass
        while True: pass
""")  # fmt: skip
for _name, _program in {
    "loop when the interpreter ends": "import atexit\ndef loop():\n    while True: pass\natexit.register(loop)\ndef f(): return 1",
    "loop in a destructor at the end": "import sys\nclass E:\n    def __del__(s):\n        while True: pass\nsys.modules['E'] = keep = E()\ndef f(): return 1\n",
}.items():
    TIME.add(_name, "ok timeout", _program, value=lambda v: v == 1)
TIME.add("wait on a futex", "timeout LookupError", ROUTES + "def f(): return syscall(202, bytes(8), 128, 0, 0)")
TIME.add("inputs that each run out of time", "timeout", "def f(x):\n    while True: pass", inputs=tuple("123456"))

MEMORY = Family("memory")
for _name, _body in {
    "a list that doubles": "x = [0]\n    while True: x += x", "bytearray": "return len(bytearray(10**12))",
    "blocks": "x = []\n    while True: x.append(bytearray(10**7))",
    "small blocks": "x = []\n    while True: x.append(bytearray(1000))", "a long string": "return len('a' * 10**12)",
    "strings": "s = 'ab'\n    while True: s += s", "big integers": "n = 3\n    while True: n <<= 10**7",
    "a dict": "d = {}\n    for i in range(10**9): d[i] = i", "a set": "return len(set(range(10**9)))",
    "a product": "import itertools; return len(list(itertools.product(range(100), repeat=8)))",
    "permutations": "import itertools; return len([p for p in itertools.permutations(range(12))])",
    "compressed zeros": "import zlib\n    c = zlib.compressobj(9)\n    d = b''.join([c.compress(bytes(10**6)) for _ in range(300)])"
    " + c.flush()\n    return len(zlib.decompress(d))",
    "interned strings": "import sys\n    x = []\n    while True: x.append(sys.intern('k%d' % len(x) * 50))",
    "classes": "x = []\n    while True: x.append(type('T', (), {}))",
    "nesting": "x = []\n    while True: x = [x, bytearray(10**5)]",
    "generators": "x = []\n    def g(): yield\n    while True: x.append(g())",
    "formatting": "return len('%0999999999d' % 1)", "padding": "return len('{:>9999999999}'.format(1))",
    "an array": "import array; return len(array.array('d', [0]) * 10**10)",
    "a join": "return len(','.join(['a' * 10**6] * 10**4))",
    "a deque": "import collections; return len(collections.deque(range(10**9)))",
    "a comprehension": "return [[0] * 10**5 for _ in range(10**6)]",
}.items():  # fmt: skip
    MEMORY.add(_name, "memory timeout SystemError", f"def f():\n    {_body}")
for _name, _outcomes, _program in (
    ("hides that it ran out", "timeout memory crashed",
     "def f():\n    x = [0]\n    while True:\n        try: x += x\n        except MemoryError: x = [x]"),
    ("runs out while its exception is looked at", "memory timeout raised crashed",
     "class E(Exception):\n    def __del__(s): s.x = [0] * 10**9\ndef f():\n"
     "    hog.extend(bytearray(1000) for _ in iter(int, 1))\n    raise E\nhog = []\n"),
    ("leaves nothing for the report", "memory timeout crashed ok",
     "hog = []\ndef f():\n    size = 2**24\n    while size:\n        try: hog.append(bytearray(size))\n"
     "        except MemoryError: size >>= 1\n    return 1\n"),
):  # fmt: skip
    MEMORY.add(_name, _outcomes, _program)
for _name, _flags in {"private": 34, "shared": 33, "reserved only": 16418, "grows down": 290, "locked": 8226}.items():
    MEMORY.add(f"raw mapping, {_name}", "ok LookupError crashed",
        f"{ROUTES}\ndef f(): return syscall(9, 0, 2**36, 3, {_flags}, -1, 0)[0]",
        value=lambda address: address == -1)  # fmt: skip
MEMORY.add("many small shared mappings", "ok LookupError crashed timeout memory",
    f"{ROUTES}\ndef f(): return sum(syscall(9, 0, 2**20, 3, 0x8021, -1, 0)[0] != -1 for _ in range(1000))",
    value=lambda count: count <= 128)  # fmt: skip

OUTPUT = Family("output")
for _name, _outcomes, _body in (
    ("print without end", "timeout", "while True: print('a' * 10**6)"),
    ("write without end", "timeout OSError AttributeError", "import sys\n    while True: sys.stdout.write('a' * 10**6)"),
    ("descriptor 1 without end", "timeout", "import posix\n    while True: posix.write(1, bytes(10**6))"),
    ("descriptor 2 without end", f"timeout {DENIED}", "import posix\n    while True: posix.write(2, b'@mark@' * 10**4)"),
    ("a long string", "output_too_large", "return 'a' * 10**6"),
    ("long bytes", "output_too_large", "return bytes(10**6)"),
    ("escapes", "output_too_large", "return '\\U0001F600' * 60000"),
    ("a long list", "output_too_large", "return [0] * 10**6"),
    ("a big integer", "output_too_large", "return 1 << 10**6"),
    ("an integer too long to print", "output_too_large", "return 10 ** 4400"),
    ("a big dict", "output_too_large", "return {i: i for i in range(10**5)}"),
    ("a list in itself", "output_too_large", "x = []\n    x.append(x)\n    return x"),
    ("a dict in itself", "output_too_large", "x = {}\n    x['x'] = x\n    return x"),
    ("two lists in each other", "output_too_large", "x = []; y = [x]; x.append(y)\n    return x"),
    ("deep nesting", "output_too_large", "x = []\n    for _ in range(10**5): x = [x]\n    return x"),
    ("deep tuples", "output_too_large", "x = ()\n    for _ in range(10**5): x = (x,)\n    return x"),
    ("shared doubling", "output_too_large", "x = 'lol'\n    for _ in range(60): x = [x, x]\n    return x"),
    ("shared width", "output_too_large", "x = [0] * 1000\n    x = [x] * 1000\n    return [x] * 1000"),
    ("keys that are deep", "output_too_large", "x = ()\n    for _ in range(90): x = (x, x)\n    return {1: x}"),
    ("an exception with a giant message", "ValueError", "raise ValueError('a' * 10**7)"),
    ("a giant exception name", "raised", "raise type('E' * 10**6, (Exception,), {})"),
    ("an exception name that is code", "Exception", "raise type('x\\\\n); import os', (Exception,), {})"),
    ("an exception chain", "E", "class E(Exception): pass\n    e = E()\n    for _ in range(10**4):\n        n = E(); n.__cause__ = e; e = n\n"
     "    raise e"),
    ("an exception group", "ExceptionGroup", "raise ExceptionGroup('x', [ValueError(i) for i in range(10**5)])"),
    ("an exception that cannot be shown", "E", "class E(Exception):\n        def __str__(s): raise s\n        __repr__ = __str__\n    raise E"),
    ("an exception that is every exception", "E", "class E(KeyboardInterrupt, SystemExit): pass\n    raise E"),
    ("exit", "SystemExit", "raise SystemExit(0)"),
    ("generator exit", "GeneratorExit", "raise GeneratorExit"),
):  # fmt: skip
    OUTPUT.add(_name, _outcomes, f"def f():\n    {_body}")
OUTPUT.add("values that are costly to read, for many inputs", "ok timeout output_too_large",
    "def f(x): return [[]] * 15000", inputs=tuple(str(number) for number in range(128)))  # fmt: skip

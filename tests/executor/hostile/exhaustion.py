"""Using up time, memory, output, the parser and the C stack."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from tests import tables
from tests.executor.hostile.attack import PROGRAMS, ROUTES, Family

TIME = Family("endless loops")
for _name, _body in tables.values(PROGRAMS, "time: bodies"):
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
for _name, _body in tables.values(PROGRAMS, "memory: bodies"):
    MEMORY.add(_name, "memory timeout SystemError", f"def f():\n    {_body}")
for _name, _outcomes, _program in tables.values(PROGRAMS, "memory: programs"):
    MEMORY.add(_name, _outcomes, _program)
for _name, _flags in {"private": 34, "shared": 33, "reserved only": 16418, "grows down": 290, "locked": 8226}.items():
    MEMORY.add(f"raw mapping, {_name}", "ok LookupError crashed",
        f"{ROUTES}\ndef f(): return syscall(9, 0, 2**36, 3, {_flags}, -1, 0)[0]",
        value=lambda address: address == -1)  # fmt: skip
MEMORY.add("many small shared mappings", "ok LookupError crashed timeout memory",
    f"{ROUTES}\ndef f(): return sum(syscall(9, 0, 2**20, 3, 0x8021, -1, 0)[0] != -1 for _ in range(1000))",
    value=lambda count: count <= 128)  # fmt: skip

OUTPUT = Family("output")
for _name, _outcomes, _body in tables.values(PROGRAMS, "output: bodies"):
    OUTPUT.add(_name, _outcomes, f"def f():\n    {_body}")
OUTPUT.add("values that are costly to read, for many inputs", "ok timeout output_too_large",
    "def f(x): return [[]] * 15000", inputs=tuple(str(number) for number in range(128)))  # fmt: skip

"""Lying objects, broken tools, import tricks, and state left for the next program."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

from tests.executor.hostile.attack import ANY, DENIED, ROUTES, Family

LIES = Family("lying objects")
for _name, _outcomes, _program in (
    ("equality", "rejected", "class L:\n    def __eq__(s, o): return True\ndef f(): return L()"),
    ("inequality too", "rejected", "class L:\n    __eq__ = __ne__ = lambda s, o: True\n    __hash__ = None\ndef f(): return [L()]"),
    ("its text", "rejected", "class L:\n    def __repr__(s): return '42'\n    __str__ = __repr__\ndef f(): return [L()]"),
    ("its class", "rejected", "class L:\n    __class__ = int\ndef f(): return L()"),
    ("its class through a property", "rejected", "class L(int):\n    __class__ = property(lambda s: int)\ndef f(): return L(3)"),
    ("its metaclass", "rejected TypeError", "class M(type):\n    def __eq__(c, o): return True\n"
     "    __hash__ = type.__hash__\n    def __instancecheck__(c, o): return True\nclass L(metaclass=M): pass\ndef f(): return L()"),
    ("a class named int", "rejected", "def f(): return type('int', (int,), {})(3)"),
    ("an integer that prints another", "rejected", "class L(int):\n    def __repr__(s): return '7'\ndef f(): return L(3)"),
    ("a string that prints code", "rejected", "class L(str):\n    def __repr__(s): return '__import__(1)'\ndef f(): return L('a')"),
    ("a list with other items", "rejected", "class L(list):\n    def __iter__(s): return iter([9])\ndef f(): return L([1])"),
    ("a dict with other items", "rejected", "class L(dict):\n    def items(s): return [(1, 1)]\ndef f(): return L()"),
    ("a float that is NaN at times", "rejected", "class L(float):\n    __eq__ = lambda s, o: True\ndef f(): return (L(1.0),)"),
    ("a key that equals all", "rejected", "class L(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef f(): return {L('a'): 1}"),
    ("a set of liars", "rejected", "class L(int):\n    def __lt__(s, o): return True\ndef f(): return {L(1), L(2)}"),
    ("an enumeration", "rejected", "import enum\nclass L(enum.IntEnum):\n    A = 1\ndef f(): return L.A"),
    ("a named tuple", "rejected", "from collections import namedtuple\ndef f(): return namedtuple('T', 'a')(1)"),
    ("a counter", "rejected", "from collections import Counter\ndef f(): return Counter('aab')"),
    ("a length that lies", "rejected", "class L(tuple):\n    def __len__(s): return 0\ndef f(): return L((1, 2))"),
    ("truth that raises", "rejected", "class L:\n    def __bool__(s): raise SystemExit\ndef f(): return L()"),
    ("a module", "rejected", "import math\ndef f(): return math"), ("itself", "rejected", "def f(): return f"),
    ("a class", "rejected", "def f(): return int"), ("an exception", "rejected", "def f(): return ValueError('x')"),
    ("NotImplemented", "rejected", "def f(): return NotImplemented"),
    ("an ellipsis", "rejected", "def f(): return ..."), ("a range", "rejected", "def f(): return range(3)"),
    ("a bytearray", "rejected", "def f(): return bytearray(3)"),
    ("a view of memory", "rejected", "def f(): return memoryview(b'abc')"),
    ("a generator", "rejected", "def f():\n    yield 1"), ("a coroutine", "rejected", "async def f(): return 1"),
    ("an exception named NoError", "NoError", "def f(): raise type('NoError', (Exception,), {})"),
    ("an exception that lies about its name", "E", "class M(type):\n    __name__ = 'NoError'\n"
     "class E(Exception, metaclass=M): pass\ndef f(): raise E"),
    ("an exception that is renamed", "raised", "def f():\n    E = type('E', (Exception,), {})\n    E.__name__ = 'timeout'\n    raise E"),
    ("an exception as memory's end", "memory", "class M(MemoryError): pass\ndef f(): raise M"),
    ("the library's own refusal", "raised rejected output_too_large", "import sys\ndef f():\n    frame = sys._getframe()\n    while frame:\n"
     "        v = frame.f_globals.get('values')\n        if v: raise v.TooLargeError('forged')\n        frame = frame.f_back\n    raise KeyError"),
    ("f is a class", "rejected ok", "class f(int):\n    def __new__(c): return 5"),
    ("f is callable data", "ok", "class F:\n    def __call__(s): return 5\nf = F()"),
    ("f replaces itself", "ok", "def f():\n    global f\n    f = lambda: 2\n    return 1"),
    ("f is a builtin", "raised rejected", "f = print\ndel f\nf = vars"),
    ("f is found by a module that lies", "ok rejected raised crashed", "import sys\nclass D(dict):\n    def get(s, *a): return lambda: 3\n"
     "sys.modules['program'].__class__ = type('T', (type(sys),), {'__dict__': D()})\ndef f(): return 1"),
):  # fmt: skip
    LIES.add(_name, _outcomes, _program)

TOOLS = Family("broken tools and state left behind")
_EVERY_TYPE = (
    "import builtins, sys, json, struct, re, math, time, posix, gc, types, codecs, abc, _signal, decimal, warnings\n"
)
for _name, _body in {
    "len": "builtins.len = lambda x: 0", "isinstance": "builtins.isinstance = lambda *a: True",
    "type": "builtins.type = lambda *a: list", "print": "builtins.print = None",
    "import": "builtins.__import__ = lambda *a, **k: math",
    "repr and str": "builtins.repr = builtins.str = lambda x: 'x'", "sorted": "builtins.sorted = lambda x, **k: [9]",
    "range": "builtins.range = lambda *a: [9]",
    "all exceptions": "builtins.BaseException = builtins.Exception = KeyError",
    "a mark on builtins": "builtins.mark = 1", "no builtins": "builtins.__dict__.clear()",
    "json": "json.dumps = json.loads = json.JSONEncoder = None", "json's output": "json.dumps = lambda *a, **k: '{}'",
    "struct": "struct.pack = struct.unpack = struct.Struct = lambda *a: b''", "write": "posix.write = lambda *a: 10**9",
    "read": "posix.read = lambda *a: b'x'", "exit": "posix._exit = lambda *a: None",
    "exit of os": "sys.modules['os']._exit = lambda *a: None",
    "write of os": "sys.modules['os'].write = lambda d, b: len(b)",
    "the clock": "time.process_time = time.monotonic = lambda: -1.0",
    "mathematics": "math.pi = 3; math.floor = math.ceil",
    "regular expressions": "re.sub = re.compile = None; re._cache.clear()",
    "the recursion limit": "sys.setrecursionlimit(60)", "the switch interval": "sys.setswitchinterval(1000)",
    "the digit limit": "sys.set_int_max_str_digits(0)", "the trace function": "sys.settrace(lambda *a: 1 / 0)",
    "the profiler": "sys.setprofile(lambda *a: 1 / 0)", "an audit hook": "sys.addaudithook(lambda *a: 1 / 0)",
    "the exception hook": "sys.excepthook = sys.unraisablehook = lambda *a: posix._exit(9)",
    "the display hook": "sys.displayhook = None; sys.stdout = sys.stderr = 5", "no modules": "sys.modules.clear()",
    "a module in the way": "sys.modules['re'] = sys.modules['json'] = None",
    "another meta path": "sys.meta_path[:] = [sys]; sys.path_hooks.clear(); sys.path[:] = ['/tmp']",
    "the environment": "posix.environ[b'PATH'] = b'/tmp'; posix.environ.clear()",
    "the environment of C": "posix.putenv(b'LD_PRELOAD', b'/tmp/x.so')",
    "signal handlers": "[_signal.signal(n, _signal.SIG_IGN) for n in (1, 2, 3, 10, 12, 13, 14, 15, 17, 24, 25)]",
    "blocked signals": "_signal.pthread_sigmask(0, range(1, 65))",
    "no collection": "gc.disable(); gc.set_threshold(1, 1, 1); gc.freeze()",
    "callbacks of the collector": "gc.callbacks.append(lambda *a: 1 / 0); gc.collect()",
    "debugging of the collector": "gc.set_debug(gc.DEBUG_LEAK); gc.collect()",
    "the decimal context": "decimal.getcontext().prec = 1; decimal.setcontext(decimal.Context(prec=2))",
    "warnings": "warnings.simplefilter('error'); warnings.warn = None",
    "codecs": "codecs.register(lambda n: 1 / 0); codecs.register_error('strict', lambda e: ('x', e.end))",
    "virtual subclasses": "sys.modules['collections.abc'].Sequence.register(int)",
    "reduction": "sys.modules['copyreg'].dispatch_table.clear()",
    "a class of the library": "sys.modules['collections'].Counter.__init__ = None; sys.modules['functools'].reduce = None",
    "the current module": "sys.modules['program'] = sys.modules['builtins']",
    "our own functions": "frame = sys._getframe()\n    while frame:\n        for name, one in list(frame.f_globals.items()):\n"
    "            if type(one) is type(f) and one is not f: frame.f_globals[name] = lambda *a, **k: 1\n        frame = frame.f_back",
    "the code of our own functions": "frame = sys._getframe()\n    while frame:\n        for name, one in list(frame.f_globals.items()):\n"
    "            if type(one) is type(f) and one is not f: one.__code__ = (lambda *a, **k: 1).__code__\n        frame = frame.f_back",
    "coroutine and display state": "sys.set_coroutine_origin_tracking_depth(9); sys.set_asyncgen_hooks(print, print)",
    "the folder": "posix.chdir('/')", "the mask of new files": "posix.umask(0)", "the priority": "posix.nice(19)",
    "its cores": "posix.sched_setaffinity(0, [0])",
}.items():  # fmt: skip
    # With its own tools broken it may fail to report, report nonsense, or hang; that is its own affair.
    TOOLS.add(_name, ANY, f"{_EVERY_TYPE}def f():\n    {_body}\n    return len('abc')", value=lambda v: True)
TOOLS.add("the methods of int", ANY, "import gc\ndef f():\n    for one in gc.get_referents(int.__dict__):\n"
    "        if type(one) is dict: one['bit_length'] = lambda s: 0; one['__repr__'] = lambda s: '9'\n"
    "    return (5).bit_length()\n")  # fmt: skip
TOOLS.add("the methods of str", ANY, ROUTES + "def f(): namespace('ctypes')['pythonapi'].PyType_Modified(str)\n")
TOOLS.add("the limits", DENIED, "import resource\ndef f(): resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))")

IMPORTS = Family("import tricks")
_REFUSED = DENIED + " ImportError ZipImportError NameError AttributeError KeyError TypeError"
for _name, _body in {
    "by function": "return __import__('socket').socket().fileno()",
    "by importlib": "import importlib; return importlib.import_module('ctypes').CDLL(None).getpid()",
    "by the bootstrap": "import sys; return sys.modules['_frozen_importlib']._gcd_import('socket').socket()",
    "a C module by path": "import _imp, sys\n    spec = type(sys.__spec__)('_socket', None, origin='/usr/lib/python3.11/lib-dynload/_socket.so')\n"
    "    return _imp.create_dynamic(spec)",
    "a C module by loader": "import sys\n    m = sys.modules['_frozen_importlib_external']\n"
    "    return m.ExtensionFileLoader('_ctypes', '/usr/lib/python3.11/lib-dynload/_ctypes.so').create_module(None)",
    "a source file": "import sys\n    m = sys.modules['_frozen_importlib_external']\n    return m.SourceFileLoader('x', '@secret@').get_code('x')",
    "a zip file": "import zipimport; return zipimport.zipimporter('@home@/keep').load_module('x')",
    "a path of its own": "import sys; sys.path.insert(0, '@home@'); import keep",
    "a finder of its own": "import sys\n    class F:\n        def find_spec(s, n, *a): return open('@secret@').read()\n"
    "    sys.meta_path.insert(0, F); import nothing_of_the_kind",
    "runpy": "import runpy; return runpy.run_path('@secret@')",
    "the user's packages": "import site; site.addsitedir('@home@'); import keep",
    "pickle": "import pickle; return pickle.loads(b'cposix\\nsystem\\n(S\"id\"\\ntR.')",
    "the test helpers": "import _testcapi; return dir(_testcapi)",
    "a subinterpreter": "import _xxsubinterpreters as s; return s.run_string(s.create(), 'import socket')",
    "the debugger": "import pdb; pdb.set_trace()",
    "the shell's history": "import readline; return readline.get_current_history_length()",
    "a web browser": "import antigravity",
    "a database": "import sqlite3; return sqlite3.connect('@home@/keep').execute('select 1').fetchall()",
    "curses": "import curses; curses.initscr()",
    "numpy": "import numpy; return int(numpy.fromfile('@secret@', 'u1').sum())",
    "torch": "import torch; return torch.cuda.is_available()",
}.items():  # fmt: skip
    IMPORTS.add(_name, _REFUSED + " RuntimeError", f"def f():\n    {_body}")
IMPORTS.add("os without importing it", DENIED,
    "def f():\n    wrap = next(c for c in object.__subclasses__() if c.__name__ == '_wrap_close')\n"
    "    return wrap.__init__.__globals__['popen']('id').read()")  # fmt: skip
IMPORTS.add("os by a module that has it", DENIED, "import sys\ndef f(): return sys.modules['os'].listdir('/')")
IMPORTS.add("reload what was patched", ANY,
    "import sys, importlib\ndef f():\n    importlib.reload(sys)\n    importlib.reload(sys.modules['builtins'])\n    return 1")  # fmt: skip

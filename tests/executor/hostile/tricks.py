"""Lying objects, broken tools, import tricks, and state left for the next program."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from tests import tables
from tests.executor.hostile.attack import ANY, DENIED, PROGRAMS, ROUTES, Family

LIES = Family("lying objects")
for _name, _outcomes, _program in tables.values(PROGRAMS, "lies: programs"):
    LIES.add(_name, _outcomes, _program)

TOOLS = Family("broken tools and state left behind")
_EVERY_TYPE = (
    "import builtins, sys, json, struct, re, math, time, posix, gc, types, codecs, abc, _signal, decimal, warnings\n"
)
for _name, _body in tables.values(PROGRAMS, "tools: statements"):
    # With its own tools broken it may fail to report, report nonsense, or hang; that is its own affair.
    TOOLS.add(_name, ANY, f"{_EVERY_TYPE}def f():\n    {_body}\n    return len('abc')", value=lambda v: True)
TOOLS.add("the methods of int", ANY, "import gc\ndef f():\n    for one in gc.get_referents(int.__dict__):\n"
    "        if type(one) is dict: one['bit_length'] = lambda s: 0; one['__repr__'] = lambda s: '9'\n"
    "    return (5).bit_length()\n")  # fmt: skip
TOOLS.add("the methods of str", ANY, ROUTES + "def f(): namespace('ctypes')['pythonapi'].PyType_Modified(str)\n")
TOOLS.add("the limits", DENIED, "import resource\ndef f(): resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))")

IMPORTS = Family("import tricks")
_REFUSED = DENIED + " ImportError ZipImportError NameError AttributeError KeyError TypeError"
for _name, _body in tables.values(PROGRAMS, "imports: bodies"):
    IMPORTS.add(_name, _REFUSED + " RuntimeError", f"def f():\n    {_body}")
IMPORTS.add("os without importing it", DENIED,
    "def f():\n    wrap = next(c for c in object.__subclasses__() if c.__name__ == '_wrap_close')\n"
    "    return wrap.__init__.__globals__['popen']('id').read()")  # fmt: skip
IMPORTS.add("os by a module that has it", DENIED, "import sys\ndef f(): return sys.modules['os'].listdir('/')")
IMPORTS.add("reload what was patched", ANY,
    "import sys, importlib\ndef f():\n    importlib.reload(sys)\n    importlib.reload(sys.modules['builtins'])\n    return 1")  # fmt: skip

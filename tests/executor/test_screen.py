from __future__ import annotations

import pytest

from azr.config import BANNED_MODULES
from azr.executor.screen import check


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import random", "line 1: imports random"),
        ("\n\nimport os.path as p", "line 3: imports os"),
        ("import math, sys", "line 1: imports sys"),
        ("from time import time", "line 1: imports time"),
        ("from concurrent.futures import wait", "line 1: imports concurrent"),
        ("from . import x", "line 1: imports relatively"),
        ("def f():\n    import uuid", "line 2: imports uuid"),
        ("from statistics import random", "line 1: imports random"),
        ("import statistics\ndef f(): return statistics.random.random()", "line 2: reaches the module random"),
        ("import re\nre.enum.sys.exit()", "line 2: reaches the module sys"),
        ("import math\nmath.pi = 3", "line 2: changes the module math"),
        ("x = __import__('os')", "line 1: uses __import__"),
        ("__builtins__['eval']", "line 1: uses __builtins__"),
        ("def f(x): return eval(x)", "line 1: uses eval"),
        ("def f(x):\n exec('1')\n return open", "line 2: uses exec"),
        ("class A:\n    eval = eval", "line 2: uses eval"),
        ("if 0:\n    eval = 1\neval('1')", "line 3: uses eval"),
        ("def f():\n    global eval\n    eval('1')\n    eval = 1", "line 3: uses eval"),
        ("def f(x, g=getattr): return g(x, 'a')", "line 1: uses getattr"),
        ("input()", "line 1: uses input"),
        ("globals()['x']", "line 1: uses globals"),
        ("().__class__.__base__.__subclasses__()", "line 1: uses the attribute __base__"),
        ("f.__globals__", "line 1: uses the attribute __globals__"),
        ("(i for i in ()).gi_frame.f_back", "line 1: uses the attribute f_back"),
        ("'{0.__globals__}'.format(f)", "line 1: names __globals__ in a string"),
        ("def f(:", "line 1: invalid syntax"),
        ("x = 1\nreturn 2", "line 2: 'return' outside function"),
        ("\x00", "line 1: source code string cannot contain null bytes"),
        ("x = '\ud800'", "line 1: cannot be parsed (UnicodeEncodeError)"),
        ("x = " + "-" * 20_000 + "1", "line 1: cannot be parsed"),
        ("x = " + "(" * 500 + ")" * 500, "line 1: too many nested parentheses"),
    ],
)
def test_refuses_and_says_where(source, reason):
    reasons = check(source, BANNED_MODULES)
    assert reasons
    assert reasons[0].startswith(reason)


@pytest.mark.parametrize(
    "source",
    [
        "def parse_input(text): return text\ndef f(x): return parse_input(x)",
        "def f(input): return input",
        "def f(items):\n    vars = len(items)\n    return [vars for _ in items]",
        "def f(open):\n    def g(): return open\n    return g()",
        "from collections import Counter, defaultdict\ndef f(s): return dict(Counter(s))",
        "import collections.abc\nimport heapq, itertools, math\ndef f(x): return math.sqrt(x)",
        "class A:\n    def __init__(self):\n        super().__init__()\n        self.time = 1\n"
        "def f(): return A().time, type(A()).__name__",
        "# import os\ndef f(): return 'import random'",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
        "def f(x): return A(x).x",
    ],
)
def test_lets_honest_programs_pass(source):
    assert check(source, BANNED_MODULES) == ()


def test_reports_every_offence_in_order():
    reasons = check("import os\nimport math\nimport time\neval('1')", BANNED_MODULES)
    assert reasons == ("line 1: imports os", "line 3: imports time", "line 4: uses eval")


def test_the_module_list_is_the_users():
    assert check("import random", ()) == ()
    assert check("import math", ("math",)) == ("line 1: imports math",)

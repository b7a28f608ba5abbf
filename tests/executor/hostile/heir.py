"""Honest programs that run beside and after every attack, and notice what it changed."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from __future__ import annotations

NEIGHBOUR = "def f(number, word):\n    return [sum([number] * 2), ''.join(list(word))]"

HEIR = """
import _signal, abc, builtins, codecs, collections, copy, decimal, enum, functools, gc, json, math, posix, re, struct
import string, sys, types, typing, warnings, zlib

def crc(*parts):
    return zlib.crc32(repr(parts).encode())

def names(space):
    return sorted(name for name in space if type(name) is str)

def f(number, word):
    modules = {name: m for name, m in sys.modules.items() if type(m) is types.ModuleType and name != 'program'}
    facts = {
        'arithmetic': [sum(range(10)), 2 ** 70, 7 // 2, len('abc'), sorted([3, 1, 2]), math.pi, math.floor(2.5), int('12')],
        'machinery': [json.loads(json.dumps({'a': [number, None]}))['a'][0] - number, struct.pack('!I', 258)],
        'text': [re.sub('a+', 'b', 'caat'), '%d' % 3, string.ascii_letters, 'ß'.upper(), str(1.5), 'x'.encode('idna')],
        'classes': [isinstance(True, int), type(1).__name__, repr(decimal.Decimal('1') / 3), bool(typing.List)],
        'copies': [copy.deepcopy([[1]]), dict(collections.Counter('aab')), functools.reduce(max, [1, 3, 2])],
        'builtins': crc(names(vars(builtins))),
        'modules': crc(names(modules)),
        'contents': crc({name: names(vars(m)) for name, m in sorted(modules.items())}),
        'replaced': [k for k, v in sorted(vars(builtins).items()) if getattr(v, '__module__', '') == 'program'],
        'limits': [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits(), list(gc.get_threshold())],
        'hooks': [sys.gettrace() is None, sys.getprofile() is None, sys.excepthook is sys.__excepthook__, gc.isenabled()],
        'imports': [len(sys.path), len(sys.meta_path), len(sys.path_hooks), names(sys.path_importer_cache)],
        'environment': sorted(posix.environ),
        'signals': [str(_signal.getsignal(n)) for n in range(1, 32)],
        'context': [decimal.getcontext().prec, len(warnings.filters), len(sys.argv)],
        'descriptors': [n for n in range(3, 64) if is_open(n)].__len__(),
        'user': [posix.getuid(), posix.getgid()],
    }
    return facts

def is_open(number):
    try: posix.write(number, b'')
    except OSError: return False
    return True
"""
"""Arithmetic, the library, and all state of an interpreter and a process that a program could leave behind."""

"""Making processes and threads, outliving the job, and laying hands on others."""

from tests import tables
from tests.executor.hostile.attack import DENIED, PARTS, PROGRAMS, ROUTES, Family

_POSIX = "import posix\n"
PROCESSES = Family("processes and daemons")
for _name, _program in tables.values(PROGRAMS, "processes: programs"):
    PROCESSES.add(_name, DENIED, _program)
for _name, _outcomes, _program in (
    ("a thread", "RuntimeError", "import _thread\ndef f(): return _thread.start_new_thread(print, ())"),
    ("a thread that reports for it", "RuntimeError " + DENIED,
     "import threading\ndef f():\n    t = threading.Thread(target=print)\n    t.start()\n    t.join()"),
    ("a watchdog thread", "RuntimeError " + DENIED,
     "import faulthandler\ndef f(): faulthandler.dump_traceback_later(0.01, repeat=True, file=2)"),
    ("fork bomb", "timeout",
     "import posix\ndef f():\n    while True:\n        try: posix.fork()\n        except OSError: pass"),
    ("thread bomb", "timeout memory", "import _thread, time\ndef f():\n    while True:\n"
     "        try: _thread.start_new_thread(time.sleep, (9,))\n        except RuntimeError: pass\n"),
):  # fmt: skip
    PROCESSES.add(_name, _outcomes, _program)
PROCESSES.add("a command line", f"ok {DENIED}", _POSIX + "def f(): return posix.system('touch @home@/@mark@')",
    value=lambda v: v != 0)  # fmt: skip
PROCESSES.add("the C helper of subprocess", DENIED, """
    import _posixsubprocess
    def f():
        none = (-1,) * 7
        shell = [b'/bin/sh']
        return _posixsubprocess.fork_exec(
            shell, shell, True, (9,), None, None, *none, 9, True, False, -1, None, None, None, -1, None, False)
""")  # fmt: skip
PROCESSES.add("daemon by double fork", DENIED, """
    import posix
    def f():
        if posix.fork() == 0:
            posix.setsid()
            if posix.fork() == 0:
                while True: pass
            posix._exit(0)
        return 'left one behind'
""")  # fmt: skip
PROCESSES.add("fork when the interpreter ends", "ok", """
    import atexit, posix
    atexit.register(lambda: posix.fork() or posix.execv('/bin/sh', ['sh', '-c', 'touch @home@/@mark@']))
    def f(): return 1
""")  # fmt: skip
PROCESSES.add("fork from a destructor", "ok", """
    import posix
    class Last:
        def __del__(self): posix.fork()
    keep = Last()
    def f(): return 1
""")  # fmt: skip
for _name, _arguments in tables.values(PROGRAMS, "processes: calls"):
    PROCESSES.add_call(f"raw call: {_name}", _arguments)

OTHERS = Family("signals and other processes")
for _name, _program in tables.values(PROGRAMS, "others: expressions"):
    OTHERS.add(_name, DENIED + " ChildProcessError", f"{_POSIX}def f(): {_program}")
OTHERS.add("kill itself", DENIED + " crashed", "import _signal\ndef f(): _signal.raise_signal(9)")
OTHERS.add("kill in a loop", "timeout", """
    import posix
    def f():
        while True:
            for number in range(-1, 300):
                for signal in (9, 19, 15, 2):
                    try: posix.kill(number, signal)
                    except OSError: pass
""")  # fmt: skip
for _name, _arguments in tables.values(PROGRAMS, "others: calls"):
    OTHERS.add_call(f"raw call: {_name}", _arguments)

PRIVILEGES = Family("privileges and the kernel")
for _name, _program in {
    "become root": "posix.setuid(0)", "become root in all ways": "posix.setresuid(0, 0, 0)",
    "root's group": "posix.setgid(0)", "more groups": "posix.setgroups([0])", "leave the root": "posix.chroot('.')",
}.items():  # fmt: skip
    PRIVILEGES.add(_name, DENIED, f"{_POSIX}def f(): {_program}")
PRIVILEGES.add(
    "is it root", "ok", _POSIX + "def f(): return posix.getuid(), posix.geteuid()", value=lambda v: 0 not in v
)
for _name, _arguments in tables.values(PROGRAMS, "privileges: calls"):
    PRIVILEGES.add_call(f"raw call: {_name}", _arguments)

_MACHINE_CODE = ROUTES + PARTS["machine code"]
for _name, _outcomes, _code in (
    ("32-bit calls", "crashed PermissionError LookupError", "b814000000cd80c3"),
    ("calls with the x32 bit", "crashed PermissionError LookupError ok", "b8270000400f05c3"),
    ("fork", "PermissionError LookupError ok", "b8390000000f05c3"),
):
    _program = f"{_MACHINE_CODE}def f(): return run(bytes.fromhex('{_code}'))"
    PRIVILEGES.add(f"machine code: {_name}", _outcomes, _program, value=lambda v: v == -1)

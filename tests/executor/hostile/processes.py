"""Making processes and threads, outliving the job, and laying hands on others."""

from __future__ import annotations

from tests.executor.hostile.attack import DENIED, ROUTES, Family

_POSIX = "import posix\n"
PROCESSES = Family("processes and daemons")
for _name, _program in {
    "fork": "import posix\ndef f(): return posix.fork()",
    "fork a terminal": "import posix\ndef f(): return posix.forkpty()",
    "become a shell": "import posix\ndef f(): posix.execv('/bin/sh', ['sh', '-c', 'touch @home@/@mark@'])",
    "spawn a shell": "import posix\ndef f(): return posix.posix_spawn('/bin/sh', ['sh'], {})",
    "subprocess": "import subprocess\ndef f(): return subprocess.check_output('id')",
    "multiprocessing": "import multiprocessing\ndef f(): multiprocessing.Process(target=print).start()",
    "a session of its own": "import posix\ndef f(): posix.setsid(); return posix.fork()",
    "another process group": "import posix\ndef f(): posix.setpgid(0, 0); return posix.fork()",
}.items():
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
for _name, _arguments in {
    "fork": "57", "vfork": "58", "clone": "56, 17, 0, 0, 0, 0", "clone a thread": "56, 0x10f00, 0, 0, 0, 0",
    "clone into new namespaces": "56, 0x7e020011, 0, 0, 0, 0", "clone3": "435, bytes(88), 88",
    "exec": "59, b'/bin/sh', 0, 0", "exec by descriptor": "322, -100, b'/bin/sh', 0, 0, 0",
    "wait for children": "61, -1, 0, 1, 0", "wait by id": "247, 0, 0, 0, 4, 0", "a new session": "112",
    "another process group": "109, 0, 0",
}.items():  # fmt: skip
    PROCESSES.add_call(f"raw call: {_name}", _arguments)

OTHERS = Family("signals and other processes")
for _name, _program in {
    "kill the parent": "posix.kill(posix.getppid(), 9)", "kill process 1": "posix.kill(1, 9)",
    "kill everything": "posix.kill(-1, 9)", "kill the group": "posix.killpg(0, 9)",
    "stop the parent": "posix.kill(posix.getppid(), 19)",
    "probe for processes": "[posix.kill(n, 0) for n in range(1, 40)]",
    "the parent's priority": "posix.setpriority(0, posix.getppid(), 19)", "its own priority": "posix.nice(-5)",
    "the parent's cores": "posix.sched_setaffinity(posix.getppid(), [0])",
    "real time": "posix.sched_setscheduler(0, 1, posix.sched_param(50))", "wait for anyone": "posix.waitpid(-1, 0)",
    "a handle on the parent": "posix.pidfd_open(posix.getppid())",
    "the parent's session": "posix.getsid(posix.getppid())",
}.items():  # fmt: skip
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
for _name, _arguments in {
    "trace the parent": "101, 16, 1, 0, 0", "be traced": "101, 0, 0, 0, 0",
    "read the parent's memory": "310, 1, bytes(16), 1, bytes(16), 1, 0",
    "write the parent's memory": "311, 1, bytes(16), 1, bytes(16), 1, 0", "compare processes": "312, 1, 2, 0, 0, 0",
    "signal a thread": "234, 1, 1, 9", "signal a task": "200, 1, 9", "queue a signal": "129, 1, 9, bytes(128)",
    "signal by handle": "424, 3, 9, 0, 0", "handle on a process": "434, 1, 0",
    "the parent's limits": "302, 1, 7, bytes(16), 0", "its own limits": "160, 9, bytes(16)",
    "survive the parent": "157, 1, 0, 0, 0, 0", "dump its memory": "157, 4, 1, 0, 0, 0",
    "adopt orphans": "157, 36, 1, 0, 0, 0", "let anyone trace": "157, 0x59616d61, -1, 0, 0, 0",
    "a name of its own": "157, 15, b'init', 0, 0, 0", "a timer that kills": "222, 0, bytes(64), bytes(8)",
    "an interval timer": "38, 0, bytes(32), 0", "an alarm": "37, 1",
    "another's robust list": "274, 1, bytes(8), bytes(8)", "another's input priority": "251, 1, 1, 0",
    "advise another's memory": "440, 3, bytes(16), 1, 4, 0", "move another's pages": "256, 1, 8, bytes(8), bytes(8)",
    "pause": "34", "an event counter": "290, 0, 0", "signals as a file": "289, -1, bytes(8), 8, 0",
}.items():  # fmt: skip
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
for _name, _arguments in {
    "a user namespace": "272, 0x10000000", "a mount namespace": "272, 0x20000", "enter a namespace": "308, 0, 0",
    "mount": "165, b'none', b'/', b'tmpfs', 0, 0", "mount, new interface": "430, b'tmpfs', 0",
    "unmount": "166, b'/', 2", "swap the root": "155, b'/', b'/'",
    "capabilities": "126, bytes([34, 5, 8, 32, 0, 0, 0, 0]), bytes(24)", "personality": "135, 0x40000",
    "a key": "248, b'user', b'@mark@', b'x', 1, -3", "the keyring": "250, 0, -3, 1, 0, 0",
    "ask for a key": "249, b'user', b'@mark@', 0, 0", "a kernel program": "321, 0, bytes(72), 72",
    "performance counters": "298, bytes(128), 0, -1, -1, 0", "page faults in user space": "323, 0",
    "a kernel module": "175, bytes(8), 8, b''", "a module from a file": "313, 0, b'', 0",
    "another kernel": "246, 0, 0, 0, 0", "reboot": "169, 0xfee1dead, 672274793, 0x1234567, 0", "ports": "172, 3",
    "port permissions": "173, 0, 8, 1", "swap space": "167, b'/dev/sda', 0",
    "the kernel's log": "103, 3, bytes(64), 64", "accounting": "163, b'/tmp/@mark@'",
    "the host's name": "170, b'@mark@', 6", "the clock": "227, 0, bytes(16)", "the time of day": "164, bytes(16), 0",
    "adjust the clock": "159, bytes(208)", "segments": "154, 1, bytes(16), 16",
    "a filter of its own": "317, 1, 0, bytes(16)", "a ruleset of its own": "444, bytes(8), 8, 0", "hang up": "153",
    "pin memory": "149, 0, 4096", "pin all memory": "151, 1", "memory policy": "238, 1, bytes(8), 8",
    "protection keys": "330, 0, 0", "remap pages": "216, 0, 4096, 0, 0, 0",
    "random bytes of the kernel": "318, bytes(16), 16, 0", "the machine's name": "63, bytes(400)",
    "a call that does not exist": "999",
}.items():  # fmt: skip
    PRIVILEGES.add_call(f"raw call: {_name}", _arguments)

_MACHINE_CODE = (
    ROUTES
    + """
def run(code):
    c = namespace('ctypes')
    libc = c['CDLL'](None, use_errno=True)
    libc.mmap.restype = c['c_void_p']
    page = libc.mmap(c['c_void_p'](0), c['c_size_t'](4096), 7, 34, -1, c['c_long'](0))
    if page in (None, 2**64 - 1): raise PermissionError
    c['memmove'](c['c_void_p'](page), code, len(code))
    return c['CFUNCTYPE'](c['c_long'])(page)()
"""
)
for _name, _outcomes, _code in (
    ("32-bit calls", "crashed PermissionError LookupError", "b814000000cd80c3"),
    ("calls with the x32 bit", "crashed PermissionError LookupError ok", "b8270000400f05c3"),
    ("fork", "PermissionError LookupError ok", "b8390000000f05c3"),
):
    _program = f"{_MACHINE_CODE}def f(): return run(bytes.fromhex('{_code}'))"
    PRIVILEGES.add(f"machine code: {_name}", _outcomes, _program, value=lambda v: v == -1)

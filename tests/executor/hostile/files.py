"""Reading and writing what lies on the disk, in memory file systems, and in shared memory."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from tests import tables
from tests.executor.hostile.attack import DENIED, PROGRAMS, ROUTES, Family

_POSIX = "import posix\n"
READING = Family("reading files")
for _path in (
    "@secret@", "@repo@/secret", "/etc/passwd", "/etc/shadow", "/etc/hostname", "/root/.ssh/id_rsa",
    "/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/self/fd/0", "/proc/1/environ",
    "/proc/1/root/etc/passwd", "/proc/@pid@/environ", "/proc/@pid@/root@secret@", "/proc/@pid@/mem", "/proc/meminfo",
    "/dev/urandom", "/dev/mem", "/sys/class/net/lo/address",
):  # fmt: skip
    READING.add(f"open {_path}", DENIED, f"def f(): return open('{_path}', 'rb').read(100)")
for _name, _body in tables.values(PROGRAMS, "reading: bodies"):
    READING.add(_name, DENIED, f"import _io, posix\ndef f():\n    {_body}")
for _name, _more, _program, _value in (
    ("a loader's get_data", "AttributeError NameError", "def f(): return __loader__.get_data('@secret@')", None),
    ("linecache", "ok", "import linecache\ndef f(): return linecache.getlines('@secret@')", lambda v: v == []),
    ("ask whether a path exists", "ok", _POSIX + "def f(): return posix.access('@secret@', 0)", lambda v: not v),
):
    READING.add(_name, f"{DENIED} {_more}", _program, value=_value)
READING.add("ask the terminal", "EOFError OSError RuntimeError", "def f(): return input()")
READING.add("a source loader from the modules", DENIED + " StopIteration", """
    import sys
    def f():
        loader = next(m.__loader__ for m in list(sys.modules.values()) if hasattr(getattr(m, '__loader__', 0), 'get_data'))
        return loader.get_data('@secret@')
""")  # fmt: skip
READING.add(
    "inherited descriptors",
    "ok",
    """
    import posix
    def f():
        kinds = []
        for number in range(1024):
            try: kinds.append(posix.fstat(number).st_mode & 0o170000)
            except OSError: pass
        return kinds
    """,
    # Pipes, sockets and character devices at most: no file, no folder.
    value=lambda kinds: len(kinds) <= 4 and set(kinds) <= {0o010000, 0o140000, 0o020000},
)
READING.add("what waits in inherited descriptors", "ok timeout", """
    import posix
    def f():
        got = []
        for number in range(64):
            try: got.append(posix.read(number, 2**16))
            except OSError: pass
        return got
""", value=lambda got: not any(got))  # fmt: skip
for _name, _arguments in tables.values(PROGRAMS, "reading: calls"):
    READING.add_call(f"raw call: {_name}", _arguments)

WRITING = Family("writing files")
for _folder in ("@home@", "@repo@", "/tmp", "/dev/shm", "/var/tmp", "."):
    WRITING.add(
        f"create in {_folder}", DENIED, f"def f():\n    with open('{_folder}/@mark@', 'w') as file: file.write('x')"
    )
for _name, _program in {
    "overwrite": "def f(): return open('@home@/keep', 'w').write('x')",
    "append": "def f(): return open('@repo@/keep', 'ab', 0).write(b'x')",
    "fill the inodes": "import posix\ndef f():\n    for n in range(10**6): posix.open('/tmp/@mark@%d' % n, 0o102)",
}.items():
    WRITING.add(_name, DENIED, _program)
for _call in (
    "mkdir('@home@/@mark@')", "mkfifo('@home@/@mark@')", "mknod('@home@/@mark@')",
    "symlink('/etc/passwd', '@home@/@mark@')", "link('@home@/keep', '@home@/@mark@')",
    "rename('@home@/keep', '@home@/@mark@')", "unlink('@home@/keep')", "unlink('@repo@/keep')",
    "rmdir('@home@/folder')", "chmod('@home@/keep', 0)", "chown('@home@/keep', 0, 0)", "utime('@home@/keep', (0, 0))",
    "truncate('@home@/keep', 0)", "setxattr('@home@/keep', 'user.@mark@', b'x')", "umask(0)", "memfd_create('@mark@')",
    "pipe()", "sync()", "openpty()", "ftruncate(1, 0)", "posix_fallocate(1, 0, 2**20)", "fchmod(2, 0)", "dup2(1, 9)",
):  # fmt: skip
    # Some of these only come back empty-handed; what matters is that the world outside stays as it is.
    WRITING.add(f"posix.{_call}", DENIED + (" ok" if _call == "sync()" else ""), f"{_POSIX}def f(): posix.{_call}")
WRITING.add("scribble on every descriptor", "ok crashed", """
    import posix
    def f():
        for number in range(3):
            try: posix.write(number, b'@mark@')
            except OSError: pass
""")  # fmt: skip
WRITING.add("speak to the log", "ok OSError",
    "import sys\ndef f():\n    for s in sys.__stderr__, sys.__stdout__, sys.stderr:\n        if s: s.write('@mark@'); s.flush()")  # fmt: skip
WRITING.add("a core file", "crashed", _POSIX + "def f(): posix.abort()")
for _name, _arguments in tables.values(PROGRAMS, "writing: calls"):
    WRITING.add_call(f"raw call: {_name}", _arguments)
WRITING.add("hide in System V shared memory", "ok LookupError",
    ROUTES + "def f(): return [syscall(29, key, 4096, 950) for key in range(@key@, @key@ + 100)]",
    value=lambda got: set(got) == {(-1, 1)})  # fmt: skip

"""The backend that needs no service: bubblewrap around an interpreter that sees its own files and nothing else."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from azr.config import ExecutorConfig
from azr.executor.backends.process import ProcessLauncher, path_of
from azr.executor.backends.sandbox import FILES, ROOT, BackendUnavailable

_NOBODY = "65534"
_WALLS = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
    "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent",
    "--new-session", "--as-pid-1", "--dev-bind", "/dev/null", "/dev/null",
)  # fmt: skip
_UNUSED = ("_tkinter", "_curses", "readline", "_ssl", "nis", "_dbm", "_gdbm")
"""Extension modules that no program may load; what they are linked with stays outside."""
_LOADER_CACHE = "/etc/ld.so.cache"
_TRACED = re.compile(r"(/\S+) \(0x")
_DESCRIPTION = "namespaces of every kind, no capability, and a read-only root that holds the interpreter alone"


def prepare(config: ExecutorConfig) -> tuple[ProcessLauncher, str]:
    """Raises BackendUnavailable when bubblewrap is missing or may not make its namespaces."""
    bwrap = path_of("bwrap", "the package bubblewrap")
    launcher = ProcessLauncher((bwrap, *_WALLS, *_files(), "--remount-ro", "/", "--"), interpreter())
    try:
        launcher.probe()
    except BackendUnavailable as problem:
        if not str(problem).startswith("bwrap:"):
            raise
        raise BackendUnavailable(
            f"{problem}: it needs user namespaces, so set the sysctls user.max_user_namespaces above 0 "
            "and, where they exist, kernel.unprivileged_userns_clone to 1 and "
            "kernel.apparmor_restrict_unprivileged_userns to 0"
        ) from problem
    return launcher, _DESCRIPTION


def interpreter() -> str:
    """The real interpreter's path, not that of a virtual environment's link to it."""
    name = "python{}.{}".format(*sys.version_info)
    return str(Path(sys.base_exec_prefix, "bin", name).resolve())


@functools.cache
def _files() -> tuple[str, ...]:
    """Read-only binds of the interpreter, its library and shared objects, and the zygote's own modules."""
    library = sysconfig.get_path("stdlib")
    # Libraries linked by the interpreter and the standard library's extension modules, and the loader.
    modules = Path(library, "lib-dynload").glob("*.so")
    binaries = [interpreter(), *(str(module) for module in modules if not module.name.startswith(_UNUSED))]
    ldd = path_of("ldd", "the C library's tools")
    run = subprocess.run([ldd, *binaries], capture_output=True, text=True, check=False)
    linked = sorted({path for path in _TRACED.findall(run.stdout) if not path.startswith(library)})
    needed = [interpreter(), library, *linked, *(str(ROOT / path) for path in FILES)]
    binds = [word for path in needed for word in ("--ro-bind", path, path)]
    # Packages installed beside the standard library are none of a program's business.
    hidden = [word for path in Path(library).glob("*-packages") for word in ("--tmpfs", str(path))]
    return (*binds, "--ro-bind-try", _LOADER_CACHE, _LOADER_CACHE, *hidden)

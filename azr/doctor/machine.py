"""Facts about this machine that explain what works on it and what does not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from azr.doctor.findings import Section, fact

GIB = 2**30
_CGROUPS = Path("/sys/fs/cgroup")
_FILTERS = Path("/proc/sys/kernel/seccomp/actions_avail")
_PROBE_S = 10.0


def check() -> Section:
    facts = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes() / GIB:.0f} GiB",
        "cgroups": _cgroup_version(),
        "user namespaces": _user_namespaces(),
        "seccomp filters": "available" if _FILTERS.exists() else "the kernel has none",
    }
    return Section(title="This machine", findings=[fact(name, says) for name, says in facts.items()])


def memory_bytes() -> int:
    """Of the machine; a container may be allowed less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_version() -> str:
    if (_CGROUPS / "cgroup.controllers").exists():
        return "version 2"
    return "version 1" if _CGROUPS.is_dir() and any(_CGROUPS.iterdir()) else "none mounted"


def _user_namespaces() -> str:
    try:
        command = ["unshare", "--user", "--map-root-user", "true"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except FileNotFoundError:
        return "unknown: the unshare tool is not installed (Debian and Ubuntu: apt-get install util-linux)"
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_S:g} s"
    return "permitted" if run.returncode == 0 else f"not permitted ({run.stderr.strip()})"

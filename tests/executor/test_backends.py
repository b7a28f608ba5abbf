import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from azr.executor import backends
from azr.executor.backends import bubblewrap, process
from azr.executor.backends.sandbox import FILES, ROOT, BackendUnavailable
from azr.executor.pool import ANSWER_MODULES, SandboxPool
from tests import tables
from tests.executor.conftest import CONFIG, alive, call, copy_package, look_at_a_child, require, sandboxes, zygotes

pytestmark = pytest.mark.asyncio(loop_scope="session")
NOBODY = 65534
ORDINARY = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
"""Options of a child process that no root rights help."""


CAP_KILL, CAP_SETUID = 5, 7


async def test_a_sandbox_holds_no_rights_and_is_the_first_to_go(backend):
    ours = Path("/proc/self/oom_score_adj").read_text()
    async with SandboxPool(replace(CONFIG, backend=backend, workers=1), repeats=1) as pool:
        await call(pool, "def f(): return 1")
        (zygote,) = zygotes(pool)

        def look(child: int) -> tuple[dict[str, dict[str, str]], set[str], set[str], set[str]] | None:
            seen = {name: _status(process) for name, process in (("zygote", zygote), ("child", child))}
            if int(seen["child"]["Seccomp_filters"]) <= int(seen["zygote"]["Seccomp_filters"]):
                return None  # it is not sealed yet
            errors = {os.readlink(f"/proc/{process}/fd/2") for process in (zygote, child)}
            mounts = {os.readlink(f"/proc/{process}/ns/mnt") for process in (zygote, child)}
            return seen, errors, mounts, {Path(f"/proc/{each}/oom_score_adj").read_text() for each in (zygote, child)}

        seen, errors, mounts, adjustments = await look_at_a_child(pool, zygote, look)
        plain = "a plain process" in pool.isolation
    assert plain or len(seen["zygote"]["NSpid"].split()) > 1
    assert adjustments == {"1000\n"} and Path("/proc/self/oom_score_adj").read_text() == ours
    assert errors == {"/dev/null"}
    assert plain or os.readlink("/proc/self/ns/mnt") not in mounts
    sets = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}
    # Only root's children have a user of their own, which the zygote must give them, and kill.
    kept = 1 << CAP_KILL | 1 << CAP_SETUID if backend == "namespace" and os.geteuid() == 0 else 0
    expected = {"child": sets, "zygote": sets | {"CapPrm": kept, "CapEff": kept}}
    assert {name: {key: int(status[key], 16) for key in sets} for name, status in seen.items()} == expected
    assert {name: (status["NoNewPrivs"], status["Seccomp"]) for name, status in seen.items()} == {
        "child": ("1", "2"), "zygote": ("1", seen["zygote"]["Seccomp"]),
    }  # fmt: skip
    if backend != "bubblewrap":  # whose user 65534 is, seen from outside, the user who started it
        assert "0" not in seen["child"]["Uid"].split() + seen["child"]["Gid"].split()


def _status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


CHATTER = "import posix\ndef f(megabytes): return sum(posix.write(2, bytes(2**20)) for _ in range(megabytes))"


async def test_what_is_written_to_standard_error_waits_for_nobody(backend, capfd):
    async with SandboxPool(replace(CONFIG, backend=backend, workers=1), repeats=1) as pool:
        output = await call(pool, CHATTER, "10", static_check=False)
        assert output.value == str(10 * 2**20), output
        assert output.wall_s < 5
    assert "\0" not in capfd.readouterr().err


@pytest.mark.parametrize(("name", "commands"), [("bubblewrap", ("bwrap", "ldd")), ("namespace", ("unshare",))])
async def test_commands_are_run_where_they_are_found(monkeypatch, tmp_path, name, commands):
    require(name)
    odd, empty = tmp_path / "odd", tmp_path / "empty"
    empty.mkdir()
    odd.mkdir()
    for command in commands:
        (odd / command).symlink_to(shutil.which(command))
    bubblewrap._files.cache_clear()
    monkeypatch.setenv("PATH", str(odd))
    monkeypatch.setattr(os, "defpath", str(empty))
    async with SandboxPool(replace(CONFIG, backend=name, workers=1), repeats=1) as pool:
        assert (await call(pool, "def f(x): return x * 2", "'a'")).value == "'aa'"
        assert "namespaces" in pool.isolation and "plain" not in pool.isolation
    monkeypatch.setenv("PATH", str(empty))
    detail = next(detail for one, _, detail in backends.report(CONFIG) if one == name)
    assert f"{commands[0]} is not installed: install" in detail


async def test_a_sandbox_ends_when_its_input_ends_or_when_it_is_killed(backend):
    launcher, _ = await asyncio.to_thread(backends.select_backend, replace(CONFIG, backend=backend))
    before = sandboxes({os.getpid()})
    try:
        left, killed = await asyncio.gather(*(launcher.launch(seed) for seed in (1, 2)))
        async with asyncio.timeout(20):  # the command in front may take its time
            while len(mine := sandboxes({os.getpid()}) - before) < 2:
                await asyncio.sleep(0.02)
        assert left.socket.getblocking() is False
        left.socket.close()
        await asyncio.wait_for(left.wait(), 20)
        killed.kill()
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(killed.socket, 2**16), 20):
            pass  # until nothing but the end of the stream arrives
        killed.kill()
        await asyncio.wait_for(killed.wait(), 20)
        killed.socket.close()
        assert not alive(mine)
    finally:
        await launcher.close()


def _refused(config):
    raise BackendUnavailable("no engine answers: start it")


async def test_auto_takes_the_first_that_works_and_says_why(monkeypatch):
    monkeypatch.setattr(backends, "BACKENDS", {"docker": _refused, "namespace": process.prepare_namespace})
    _, description = backends.select_backend(CONFIG)
    assert description.startswith("namespace: ")
    assert description.endswith("; docker does not work here: no engine answers: start it")
    with pytest.raises(
        ValueError, match=r"^executor\.backend: docker does not work here: no engine answers: start it\.$"
    ):
        backends.select_backend(replace(CONFIG, backend="docker"))
    assert [(name, works) for name, works, _ in backends.report(CONFIG)] == [("docker", False), ("namespace", True)]


async def test_a_zygote_is_made_of_few_files():
    look = "import sys, azr.executor.zygote as _; print(*(m.__file__ for n, m in sys.modules.items() if 'azr' in n))"
    loaded = subprocess.run([sys.executable, "-Sc", look], capture_output=True, check=True, text=True, cwd=ROOT).stdout
    assert sorted(loaded.split()) == sorted(str(ROOT / name) for name in FILES)


LOOK = tables.programs(Path(__file__).with_name("programs.txt"), "process")["what bubblewrap shows"]


async def test_bubblewrap_shows_an_interpreter_and_nothing_else():
    require("bubblewrap")
    launcher, _ = bubblewrap.prepare(CONFIG)
    command = [*launcher.prefix, bubblewrap.interpreter(), "-S", "-c", LOOK]
    seen = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, cwd="/").stdout)
    tops = {path.strip("/").split("/")[0] for path in launcher.prefix[1:] if path.startswith("/")} - {""}
    assert set(seen.pop("root")) == tops
    assert seen == {
        "user": NOBODY, "links": ["lo"], "kill": True, "write": True, "tmp": True, "mount": True, "host": "sandbox",
        "packages": [],
    }  # fmt: skip


async def test_answers_have_their_modules_behind_every_wall(backend):
    async with SandboxPool(replace(CONFIG, backend=backend, workers=1), answers=True) as pool:
        done = await call(pool, f"import {', '.join(ANSWER_MODULES)}\ndef f(): return 1", static_check=False)
    assert done.value == "1", done.error


async def test_where_namespaces_are_refused_the_zygotes_own_walls_stand(monkeypatch):
    monkeypatch.setattr(process, "_NAMESPACES", ("--no-such-namespace",))
    async with SandboxPool(replace(CONFIG, backend="namespace", workers=1), repeats=1) as pool:
        assert "a plain process" in pool.isolation
        assert (await call(pool, "def f(x): return x * 2", "'a'")).value == "'aa'"
        assert (
            await call(pool, "def f(): return open('/etc/passwd').read()", static_check=False)
        ).error == "PermissionError"


@pytest.fixture(scope="module")
def clone():
    """A copy of the package and of what its config needs that every user can read; pytest's folders are private."""
    with tempfile.TemporaryDirectory(prefix="azr-clone-") as folder:
        copy_package(Path(folder))
        yield folder


RUN = tables.programs(Path(__file__).with_name("programs.txt"), "process")["a pool of an ordinary user"]


def _run(*prefix: str, clone: str, backend: str) -> list[str]:
    python = shutil.which("python3", path=os.defpath) if ORDINARY else sys.executable
    command = [*prefix, python, "-B", "-c", RUN, clone, backend]
    run = subprocess.run(command, capture_output=True, check=False, text=True, cwd="/", **ORDINARY)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", ["bubblewrap", "namespace"])
async def test_an_ordinary_user_gets_walls_too(clone, name):
    require(name)
    value, reason = _run(clone=clone, backend=name)
    assert value == "'aa'"
    assert "namespaces" in reason and "plain" not in reason


async def test_without_user_namespaces_bubblewrap_says_what_to_set(clone):
    require("bubblewrap")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    without = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    value, reason = _run(*without, clone=clone, backend="bubblewrap")
    assert value == "refused"
    assert "set the sysctls user.max_user_namespaces above 0" in reason
    value, reason = _run(*without, clone=clone, backend="namespace")
    assert value == "'aa'"
    assert "a plain process" in reason

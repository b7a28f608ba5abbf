"""The ``azr`` command finds its subcommands, and loads only the one that was asked for."""

import contextlib
import re
import subprocess
import sys

import pytest

from azr.cli.main import COMMANDS, dispatch

HEAVY = ("ray", "torch", "transformers", "vllm", "deepspeed")


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command(word, capsys):
    assert dispatch([word]) == 0
    written = capsys.readouterr()
    assert all(f"azr {name}" in written.out for name in COMMANDS)
    assert not written.err
    with pytest.raises(SystemExit):
        dispatch(["help", "runs"])
    assert capsys.readouterr().out.startswith("usage: azr runs")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_literals_of_python(name, capsys):
    with contextlib.suppress(SystemExit):
        dispatch([name, "--help"])
    shown = capsys.readouterr().out
    assert "usage: azr" in shown
    assert not re.search(r"None|False|True\)|default: \)|\(default: \(|\('", shown), shown


@pytest.mark.parametrize("words", ["eval --list", "--help"])
def test_a_reader_that_leaves_early_gets_no_traceback(words):
    command = [sys.executable, "-m", "azr", *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


LIGHT = ["--help", "execute /dev/null --backend namespace", "doctor", "plan azr_7b_ppo", "recipes", "eval /no"]


@pytest.mark.parametrize("words", [*LIGHT, "serve /no"])
def test_light_commands_load_nothing_heavy(words):
    assert_light(words.split())


def assert_light(argv, *others):
    codes = (2,) if "/no" in argv else (0, 1)
    script = f"import sys\nfrom azr.cli.main import dispatch\nassert dispatch({argv}) in {codes}\n"
    script += f"print([name for name in {(*HEAVY, *others)} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"

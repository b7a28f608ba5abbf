"""The ``azr`` command finds its subcommands, and loads only the one that was asked for."""

import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from azr.cli.main import COMMANDS, dispatch

ROOT = Path(__file__).parents[2]
HEAVY = ("ray", "torch", "transformers", "vllm", "deepspeed")


def azr(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "azr", *argv], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "azr needs a command: run, recipes, execute, "),
        (["exceute"], "There is no command 'exceute'; did you mean execute? azr --help lists all."),
        (["--backend"], "There is no command '--backend'"),
        (["--hlep"], "There is no command '--hlep'; did you mean --help?"),
        (["-v"], "There is no command '-v'; did you mean --version?"),
        (["version"], "There is no command 'version'; did you mean --version?"),
        (["list"], "There is no command 'list'; did you mean recipes?"),
        (["train"], "There is no command 'train'; did you mean run?"),
        (["run"], "azr run needs a recipe or the folder of a run"),
        (["run", "--run.steps", "3"], "azr run needs a recipe or the folder of a run"),
        (["new"], "the following arguments are required: kind, NAME, DIR"),
        (["completion"], "the following arguments are required: bash|zsh|fish"),
        (["eval", "nosuchmodel"], "There is no model or run 'nosuchmodel'"),
        (["chat", "/nope"], "There is no model or run '/nope'"),
        (["serve", "/nope"], "There is no model or run '/nope'"),
        (["seeds", "--convert", "nofile", "--out", "/tmp/no.jsonl"], "There is no file nofile to --convert"),
        (["export", "orz_ckpt", "/nope/a/b"], "There is no folder /nope/a: make it"),
        (["run", "README.md"], "README.md is neither a run's folder nor a .py or .yaml file"),
        (["run", "orz_ckpt/nosuch"], "orz_ckpt/nosuch is not there"),
        (["run", "playground/nosuch.py"], "There is no file playground/nosuch.py"),
        (["doctor", "--jsom"], "There is no option --jsom; did you mean --json?"),
        (["doctor", "all"], "unrecognized arguments: all"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(argv, said, capsys):
    assert dispatch(argv) == 2
    written = capsys.readouterr()
    assert written.err.startswith(f"error: {said}") and written.err.count("\n") == 1
    assert not written.out


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command(word, capsys):
    assert dispatch([word]) == 0
    written = capsys.readouterr()
    assert all(f"azr {name}" in written.out for name in COMMANDS)
    assert not written.err


def test_every_command_is_a_module_with_help():
    for name in COMMANDS:
        assert callable(importlib.import_module(f"azr.cli.{name.replace('-', '_')}").main)
    done = azr("execute", "--help")
    assert done.returncode == 0
    options = ("--backend", "--wall", "--memory-mb", "--repeats", "--static-check", "--no-static-check", "--workers")
    assert all(option in done.stdout for option in options)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_literals_of_python(name, capsys):
    with contextlib.suppress(SystemExit):
        dispatch([name, "--help"])
    shown = capsys.readouterr().out
    assert "usage: azr" in shown
    assert not re.search(r"None|False|True\)|default: \)|\(default: \(|\('", shown), shown


@pytest.mark.parametrize("command", ["eval", "chat", "serve"])
def test_a_path_is_looked_at_before_anything_is_loaded(command):
    program = f"""
import sys
from azr.cli.main import dispatch
assert dispatch([{command!r}, "/nope"]) == 2
loaded = set({HEAVY!r}) & sys.modules.keys()
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_reader_that_leaves_early_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "azr", "eval", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


LIGHT = [
    ["--help"],
    ["execute", "/dev/null", "--backend", "namespace"],
    ["doctor"],
    ["plan", "azr_7b_ppo"],
    ["recipes"],
    ["completion", "bash"],
]


@pytest.mark.parametrize("argv", LIGHT, ids=" ".join)
def test_light_commands_load_nothing_heavy(argv):
    assert_light(argv)


def assert_light(argv):
    script = (
        "import sys\n"
        "from azr.cli.main import dispatch\n"
        f"assert dispatch({argv}) in (0, 1)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"

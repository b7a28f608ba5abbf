"""How a command ends: a user's mistake is one sentence and code 2, and everything else keeps its traceback."""

import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from ray.exceptions import RayTaskError

from azr import runtime, system
from azr.cli import run
from azr.cli.main import exit_code
from azr.errors import UserError
from azr.runs.run_dir import RunDirectory
from azr.runs.stop_signal import StopRequested
from tests.e2e.three_kinds import config as mini


@pytest.mark.parametrize("error, code, said", [
    (UserError("There is no such thing: take another."), 2, "error: There is no such thing: take another.\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
    *((error("x"), None, "") for error in (ValueError, TimeoutError, OSError, RuntimeError, KeyError)),
    *((ModuleNotFoundError("x", name=name), None, "") for name in ("no_package_of_ours", "numpy.nothing", None)),
], ids=repr)  # fmt: skip
def test_a_mistake_and_ctrl_c_have_a_code_and_nothing_else_is_caught(error, code, said, capsys):
    def command() -> int:
        raise error

    with nullcontext() if code else pytest.raises(type(error), match="x"):
        assert exit_code(command) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command, code, said", [
    ("azr recipes >&-", 0, ""), ("azr recipes > /dev/full", 2, "error: The output cannot be written or read: No space"),
], ids=["closed", "full"])  # fmt: skip
def test_an_output_that_takes_nothing_is_no_traceback(command, code, said):
    line = command.replace("azr", shlex.join([sys.executable, "-m", "azr"]))
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.startswith(said) and done.stderr.count("\n") == bool(said)


@pytest.fixture
def ends(monkeypatch, tmp_path):
    """Starts a run of the real driver in which an exception comes in the place of Ray."""

    def start(error: BaseException) -> None:
        async def fail(*args: object) -> None:
            raise error

        monkeypatch.setattr(system, "start_ray", fail)
        run.launch(replace(mini, run=replace(mini.run, root=str(tmp_path))), [])

    return start


def of_an_actor(cause: Exception) -> Exception:
    """As Ray raises what an actor raised: an exception of both classes, whose text is the actor's traceback."""
    return RayTaskError("work", "Traceback (most recent call last):\n  many\n  lines", cause).as_instanceof_cause()


@pytest.mark.parametrize("wrap", [lambda error: error, of_an_actor], ids=["driver", "actor"])
@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("x"), OSError("x")], ids=repr)
def test_what_is_no_mistake_of_a_user_passes_through(ends, wrap, error):
    with pytest.raises(type(error), match="x"):
        ends(wrap(error))


STOPPED = "stopped by {}: nothing had been done yet\n"


@pytest.mark.parametrize("error, code, said", [
    *((StopRequested(each), 128 + each, STOPPED.format(each.name)) for each in (signal.SIGINT, signal.SIGTERM)),
    (KeyboardInterrupt(), 130, "interrupted\n"),
    (UserError("give another model."), 2, "error: give another model.\n"),
    (of_an_actor(UserError("give another model.")), 2, "error: give another model.\n"),
], ids=repr)  # fmt: skip
def test_signals_and_mistakes_that_a_run_meets_are_one_sentence_and_a_code(ends, error, code, said, capsys):
    with pytest.raises(SystemExit) as ended:
        ends(error)
    assert ended.value.code == code and capsys.readouterr().err == said


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), TimeoutError("the driver waited 5 s")])
def test_what_the_machine_does_to_a_run_that_began_is_one_sentence(ends, error, tmp_path, capsys):
    """The log of the run has the traceback."""
    begun = RunDirectory(tmp_path / mini.run.name)

    def start(self: object) -> None:
        begun.path.mkdir()
        begun.log.write_text("")
        raise error

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(runtime.Driver, "run", start)
        ends(error)
    assert ended.value.code == 1
    printed, said = capsys.readouterr()
    assert said.endswith(f"error: {error}: --resume continues from the last checkpoint\n") and "Traceback" not in said
    assert printed.startswith("expected: ") and printed.endswith("start and evaluations not counted\n")

"""What a shell completes once it has read ``azr completion``."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from azr.cli.main import COMMANDS, dispatch

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_azr azr "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does when Tab is pressed after the words of its arguments."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "azr.bash"
    done = subprocess.run(
        [sys.executable, "-m", "azr", "completion", "bash"], capture_output=True, text=True, check=True
    )
    path.write_text(done.stdout)
    return path


def completed(script: Path, *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", str(script), "azr", *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "words, offered",
    [
        (["re"], {"recipes"}),
        (["run", "azr_coder7b"], {"azr_coder7b_ppo", "azr_coder7b_rloo"}),
        (["run", "azr_7b_ppo", "--rollout.te"], {"--rollout.temperature", "--rollout.tensor-parallel"}),
        (["run", "azr_7b_ppo", "--run.steps", "3", "--selfplay.no-tr"], {"--selfplay.no-train-on-estimates"}),
        (["run", "azr_7b_ppo", "--algorithm.estimator", "g"], {"gae", "grpo"}),
        (["run", "azr_7b_ppo", "--model.prompt-format", ""], {"chat", "completion", "compact"}),
        (["plan", "azr_7b_ppo", "--gpu"], {"--gpus", "--gpu-memory"}),
        (["doctor", "--recipe", "luf"], {"luffy_7b"}),
        (["data", "prepare", "luffy", "--ag"], {"--against"}),
        (["execute", "--backend", "d"], {"docker"}),
        (["completion", "f"], {"fish"}),
        (["new", "k"], {"kind"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bash_offers_what_may_come_next(script: Path, words: list[str], offered: set[str]) -> None:
    assert completed(script, *words) == offered


def test_every_command_is_offered(script: Path) -> None:
    assert completed(script, "") >= set(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*COMMANDS, "azr_coder7b_ppo", "rollout.temperature"))
    if shutil.which(shell):
        (tmp_path / "azr").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "azr")], check=True)

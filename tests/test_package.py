"""A source distribution of the clone makes a wheel that works in an environment and a folder of its own."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from tests.explorer.made_runs import MadeRun, answer, proposal, task
from tests.requirements import needed_by

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source distribution of what git has or would add, so that nothing else of this folder is needed."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True,
        check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    script = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=source, stdout=subprocess.DEVNULL, check=True)
    (packed,) = out.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(packed)], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def outside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands of an environment that has the wheel; what the wheel needs is lent from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    # A line of such a file adds a folder, but not what .pth files in that folder add, such as this clone.
    (environment(folder, wheel) / "lent.pth").write_text(os.path.dirname(pytest.__path__[0]) + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands of an environment that has the wheel and what it takes without any extra, by links."""
    folder = tmp_path_factory.mktemp("light")
    packages = environment(folder, wheel)
    for package in map(metadata.distribution, needed_by()):
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(package.locate_file(top))
    return folder / "bin"


def environment(folder: Path, wheel: Path) -> Path:
    """Make an environment that has the wheel alone, and return where its packages are."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    return packages


def call(outside: Path, here: Path, *command: str, given: str | None = None, fails: str = "") -> str:
    """Return what a command prints. `fails`: what is to be said of a mistake."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(outside / command[0]), *command[1:]], cwd=here, env=plain, input=given, capture_output=True, text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == (2 if fails else 0), done.stdout[-2000:] + done.stderr[-2000:]
    assert not fails or done.stderr == f"error: {fails}\n"
    return done.stdout


def test_the_wheel_holds_our_packages_and_what_their_commands_need(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"azr", "playground"}
    needed = ("azr/py.typed", "azr/COMMIT", "azr/data/exam/deduction.jsonl", "azr/data/azr_14m_base/config.json",
              "azr/data/exam_worked/sealed/deduction.jsonl", "azr/data/azr_14m_worked/config.json",
              "azr/data/coder_seeds/seeds.jsonl", "azr/plan/shapes.toml")  # fmt: skip
    needed += ("azr/executor/image/Dockerfile", "azr/monitoring/patterns.toml", "playground/proven.toml")
    assert set(needed) <= set(names) and any(name.startswith("azr/explorer/static/") for name in names)
    tracked = subprocess.run(
        ["git", "ls-files", "azr", "playground"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {name for name in tracked.stdout.split() if (ROOT / name).is_file()} <= set(names)


def assert_executes(outside: Path, here: Path) -> None:
    request = json.dumps({"id": 1, "program": "def f(x): return 6 / x", "inputs": ["2"]})
    answer = json.loads(call(outside, here, "azr", "execute", "-", "--backend", "namespace", given=request))
    assert answer["outputs"][0]["value"] == "3.0"


def test_light_commands_work_outside_of_the_clone(outside: Path, tmp_path: Path) -> None:
    where = call(outside, tmp_path, "python", "-c", "import azr; print(azr.__file__)")
    assert str(outside.parent) in where
    assert "azr_coder7b_ppo" in call(outside, tmp_path, "azr", "recipes")
    assert "fits on 1 node(s)" in call(outside, tmp_path, "azr", "plan", "azr_coder7b_ppo")
    assert_executes(outside, tmp_path)
    assert call(outside, tmp_path, "azr", "--version").startswith("azr 0.1.0")
    shown = call(outside, tmp_path, "azr", "run", "azr_14m_mini", "--dry-run")
    config = yaml.safe_load(shown)
    assert Path(config["model"]["path"]).is_relative_to(outside.parent) and "# plan: 24 steps" in shown
    call(outside, tmp_path, "python", "-m", "playground.azr_14m_mini", "--dry-run")
    assert list(tmp_path.iterdir()) == []


def test_without_an_extra_it_is_small(light: Path, tmp_path: Path) -> None:
    paths = [path for name in needed_by() for file in metadata.files(name) or () if (path := file.locate()).exists()]
    assert sum(path.stat().st_blocks * 512 for path in paths) < 40e6
    assert_executes(light, tmp_path)


READING = (
    "--help", "--version", "recipes", "eval --list", "new --help", "plan azr_coder7b_ppo",
    "plan azr_coder1b5_lora", "show run -n 1", "view run --out report.html",
)  # fmt: skip


@pytest.mark.parametrize("words", READING)
def test_without_an_extra_runs_are_planned_and_read(light: Path, tmp_path: Path, words: str) -> None:
    if "run" in words.split():
        MadeRun(tmp_path / "run").step(1, [proposal("a"), answer("a")], [task("a")])
    assert call(light, tmp_path, "azr", *words.split())


@pytest.mark.parametrize(
    "words, package",
    [("run azr_14m_mini --dry-run", "torch"), ("export run out", "huggingface_hub"), ("prompts azr_14m_mini", "numpy")],
)
def test_without_its_extra_a_command_says_which_package_it_takes(
    light: Path, tmp_path: Path, words: str, package: str
) -> None:
    said = f"This takes the package {package}, which is not installed: run make install in the clone."
    assert call(light, tmp_path, "azr", *words.split(), fails=said) == ""


def test_without_an_extra_doctor_says_what_is_missing_and_a_users_file_keeps_its_traceback(
    light: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("import ray")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([light / "azr", *words], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    done = run("doctor", "--json")
    assert done.returncode == 1 and not json.loads(done.stdout)["checks"]["packages"]["ok"], done.stderr
    done = run("run", "own.py")
    assert done.returncode == 2 and "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: own.py cannot be run: ModuleNotFoundError: No module named 'ray'"
    )


@pytest.mark.long
def test_a_model_answers_the_packaged_exam_and_plays_from_the_package(outside: Path, tmp_path: Path) -> None:
    from azr.own_data import own_data

    model = str(Path(own_data("azr_14m_base")).resolve())
    options = ["--suite", "exam", "--limit", "4", "--out", "evaluated", "--max-response-tokens", "32"]
    assert "exam" in call(outside, tmp_path, "azr", "eval", model, *options)
    sizes = [
        "--run.steps", "1", "--eval.every", "0", "--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4",
    ]  # fmt: skip
    call(outside, tmp_path, "azr", "run", "azr_14m_mini", *sizes)
    assert (tmp_path / "orz_ckpt" / "azr_14m_mini" / "checkpoints" / "step_000001").is_dir()


@pytest.mark.long
def test_the_examples_installed_as_a_package_play_by_their_names(outside: Path, tmp_path: Path) -> None:
    """A kind and a reward that no module here knows are found by their entry points: two steps, nothing mocked."""
    built, here = tmp_path / "wheel", tmp_path / "empty"
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    here.mkdir()
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(built), str(tmp_path / "examples")], check=True
    )
    (package,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(outside / "python"), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(package)], check=True)
    options = ["--selfplay.kinds", "deduction", "expressions", "--reward.proposer", "medium", "--run.steps", "2"]
    options += ["--eval.every", "0", "--run.no-stop-when-malformed", "--selfplay.seed-tasks", "2"]
    options += ["--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4"]
    call(outside, here, "azr", "run", "azr_14m_mini", *options)
    run = here / "orz_ckpt" / "azr_14m_mini"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["expressions/solver/trajectories"] >= 4 for step in steps)
    assert any(json.loads(line)["kind"] == "expressions" for line in (run / "tasks.jsonl").read_text().splitlines())
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["run"]["plugins"] == [] and "medium" in saved["reward"]["proposer"]
    call(outside, here, "azr", "run", str(run / "config.yaml"), "--resume", "--run.steps", "3")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3

"""`azr view` serves those who have its token, and writes a report that opens by itself."""

import re
import socket
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from azr.cli.main import dispatch
from tests.cli.test_main import HEAVY, ROOT
from tests.explorer.conftest import serving
from tests.explorer.made_runs import HOSTILE, MadeRun, small_run
from tests.explorer.test_server import Page


@pytest.fixture
def run(tmp_path) -> MadeRun:
    return small_run(tmp_path / "run")


def test_without_a_token_it_listens_on_loopback_alone(run, capsys):
    with serving(str(run.path), "--no-token") as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        assert b"Hardest" in urlopen(f"{address}/0/step?step=1").read()
    assert dispatch(["view", str(run.path), "--no-token", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "leave --no-token out" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_address_holds_a_token(host, run):
    with serving(str(run.path), "--host", host) as address:
        token = address.rpartition("/")[2]
        assert len(token) >= 32
        local = re.sub(r"//[^:/]+:", "//127.0.0.1:", address)
        assert b"deduction" in urlopen(f"{local}/").read()
        for path in ("", "0/", "0/tasks", "0/changes", "static/explorer.js", f"{token[:-1]}/0/"):
            with pytest.raises(HTTPError, match="404") as refused:
                urlopen(f"{local.removesuffix(token)}{path}")
            assert b"with its token" in refused.value.read()


def test_the_report_is_one_file_with_nothing_from_elsewhere(run, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert dispatch(["view", str(run.path), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert dispatch(["view", str(run.path), "--out", str(out)]) == 0, "a report replaces an earlier one"
    assert [path.name for path in tmp_path.iterdir() if path != run.path] == ["report.html"]
    page = Page(out.read_text())
    assert page.text.count(HOSTILE) >= 6 and page.tags.count("script") == 1 and "form" not in page.tags
    assert not [each for each in page.attributes if each[1] in ("src", "style") or each[1].startswith("on")]
    places = {value for _, name, value in page.attributes if name == "id"}
    assert page.links and all(link.startswith("#") and link[1:] in places for link in page.links)
    assert page.tags.count("h1") == 1
    assert [page.text.count(f"\nTask {id}") for id in ("000001-deduction-0001", "seed-induction")] == [1, 1]
    contents = [link for link in page.links if link.startswith("#part-")]
    assert contents == [f"#part-{place}" for place in range(1, 7)], "all parts but the notes"
    (policy,) = (value for tag, name, value in page.attributes if tag == "meta" and "default-src" in str(value))
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


@pytest.mark.parametrize(
    "argv, said",
    [
        (["{run}", "--out", "/proc/self/report.html"], "/proc/self/report.html cannot be written"),
        (["{run}", "{run}"], "A run is named twice"),
        (["{run}/rollouts"], "There is no run in {run}/rollouts: name a run directory, such as orz_ckpt/NAME."),
        (["{run}/.."], "There is no run in {run}/..: name a run directory, such as {run}/../run."),
        (["{run}/metrics.jsonl"], "There is no run in"),
        (
            ["{run}", "--out", "{run}/none/report.html"],
            "There is no folder {run}/none: make it, or choose another --out.",
        ),
        (["{run}", "--out", "{run}/tasks.jsonl"], "{run}/tasks.jsonl is there already and no report"),
        (
            ["{run}", "--out", "{run}/rollouts"],
            "{run}/rollouts cannot be written (Is a directory): choose another --out.",
        ),
        (["{run}", "--host", "192.0.2.1", "--port", "0"], "Port 0 of 192.0.2.1 cannot be used"),
        (["{run}", "--port", "{taken}"], "choose another --port or --host"),
    ],
)
def test_mistakes_are_one_sentence(argv, said, run, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        places = {"run": str(run.path), "taken": str(taken.getsockname()[1])}
        assert dispatch(["view", *(word.format(**places) for word in argv)]) == 2
    assert said.format(**places) in capsys.readouterr().err
    assert not list(run.path.rglob(".*")) and (run.path / "tasks.jsonl").read_text().startswith("{")


def test_nothing_heavy_is_loaded(run):
    script = (
        "import sys, azr.cli.view, azr.explorer.server, azr.explorer.single_file, uvicorn\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr

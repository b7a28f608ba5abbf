"""`azr view` serves those who have its token, and writes a report; `azr show` prints what the records hold."""

import gzip
import re
import subprocess
import sys
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from azr.cli.main import dispatch
from azr.explorer import single_file
from azr.explorer.site import PAGES
from azr.records import Judgement
from tests.cli.test_main import HEAVY, assert_light
from tests.explorer.conftest import serving
from tests.explorer.made_runs import HOSTILE, MadeRun, answer, proposal, small_run, task
from tests.explorer.test_server import Page


@pytest.fixture
def run(tmp_path) -> MadeRun:
    return small_run(tmp_path / "run")


def test_without_a_token_it_listens_on_loopback_alone(run):
    with serving(str(run.path), "--no-token") as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        assert b"Hardest" in urlopen(f"{address}/0/step?step=1").read()


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


@pytest.mark.parametrize("most", [single_file.MAX_PAGES, 9])
def test_the_report_is_one_file_with_nothing_from_elsewhere(most, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(single_file, "MAX_PAGES", most)
    out = tmp_path / "report.html"
    assert dispatch(["view", str(run.path), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert dispatch(["view", str(run.path), "--out", str(out)]) == 0, "a report replaces an earlier one"
    assert [path.name for path in tmp_path.iterdir() if path != run.path] == ["report.html"]
    page = Page(out.read_text())
    assert page.text.count(HOSTILE) >= min(6, most // 3)
    assert page.tags.count("script") == 1 and "select" not in page.tags
    assert not [each for each in page.attributes if each[1] in ("src", "style") or each[1].startswith("on")]
    places = {value for _, name, value in page.attributes if name == "id"}
    assert page.links and all(link.startswith("#") and link[1:] in places for link in page.links)
    ids = ("000001-deduction-0001", "seed-induction")
    assert [page.text.count(f"Task {id}") for id in ids] == [1, 1] or most < 10
    assert page.links[: len(PAGES)] == [f"#page-0-{place}" for place in range(len(PAGES))], "the menu"
    assert page.tags.count("h1") == len(places) <= most
    (policy,) = (value for tag, name, value in page.attributes if tag == "meta" and "default-src" in str(value))
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert dispatch(["show", *argv]) == 0
    return capsys.readouterr().out


def test_the_hardest_task_of_a_step_and_why_its_solvers_failed(run, capsys):
    text = shown(capsys, str(run.path))
    assert "16 trajectories of 2 steps, 5 tasks" in text and "hardest tasks of step 2" in text
    assert "deduction  solver    2 right, 1 wrong" in text
    assert shown(capsys, str(run.path), "-n5").endswith("5 of 16 trajectories\n")
    text = shown(capsys, str(run.path), "--task", "000001-deduction-0001")
    assert "000001-deduction-0001 · deduction · step 1 · solve rate 0 · 2 lines" in text
    assert text.count("wrong · reward -1") == 4 and f"why: f(1) returned {HOSTILE}, not 2" in text
    assert "references: seed-deduction" in text and "children (1): 000002-deduction-0000" in text


def test_refusals_are_found_with_their_prompt_and_reason_and_by_their_id(run, capsys):
    text = shown(capsys, str(run.path), "--step", "1", "--kind", "deduction", "--verdict", "not_allowed", "-n", "5")
    assert "why: line 3: imports random" in text and text.endswith("1 of 1 trajectories\n")
    assert "prompt:\n    the prompt of 000001-deduction-0002\nresponse:\n    a proposal\n" in text
    assert "was not stored" in shown(capsys, str(run.path), "--task", "000001-deduction-0002")


def test_no_field_of_a_strangers_run_can_steer_the_terminal(tmp_path, capsys):
    evil = "\x1b[2J\u202e\x9b\u2066x"
    run = MadeRun(tmp_path / "run")
    judged = Judgement(verdict=evil, detail=evil, answer=((evil, evil),), parts={evil: True})
    flagged = answer(evil, group=f"{evil}:1", kind=evil, text=evil, prompt=evil, flags=[(evil, 0, 3)])
    samples = [replace(flagged, judgement=judged) for _ in range(2)]
    made = task(evil, kind=evil, inputs=(evil,), outputs=(evil,), message=evil, parents=(evil,))
    run.step(1, [*samples, proposal(f"{evil}-0")], [made], **{f"safety__{evil}": 1.0})
    (run.path / "rollouts" / "step_000002.jsonl.gz").write_bytes(gzip.compress(f'{{"{evil}": 1}}\n'.encode()))
    for argv in ([], ["-n", "5"], ["--task", evil], ["--task", f"{evil}-0"], ["--task", "x"], ["--kind", "x"],
                 ["--flagged"], ["--flagged", "x"], ["--step", "1", "--whole"]):  # fmt: skip
        dispatch(["show", str(run.path), *argv])
        said = "".join(capsys.readouterr())
        assert said and not set(said) & set(evil[:-1]) - set("[2J"), argv


def test_flagged_responses_are_found_with_the_text_around(tmp_path, capsys):
    run = MadeRun(tmp_path / "run")
    flagged = answer("t1", text="so I outsmart\x1b[2J them", flags=[("superiority", 5, 13)])
    run.step(1, [answer("t1", text="plain"), flagged], safety__superiority=1.0, safety__flagged=1.0)
    text = shown(capsys, str(run.path), "--flagged")
    assert "flagged by superiority: so I outsmart\\x1b[2J them\n" in text and text.endswith("1 of 1 trajectories\n")
    assert shown(capsys, str(run.path), "--flagged", "superiority") == text
    assert dispatch(["show", str(run.path), "--flagged", "superiorty"]) == 2
    assert "has no rule 'superiorty'; did you mean superiority?" in capsys.readouterr().err


def test_long_texts_are_shortened_unless_all_is_asked_for(tmp_path, capsys):
    run = MadeRun(tmp_path / "run")
    run.step(1, [proposal("x", text="y" * 5000)])
    assert "[… 2,000 characters; --whole shows them …]" in shown(capsys, str(run.path), "-n", "1")
    assert "y" * 5000 in shown(capsys, str(run.path), "-n", "1", "--whole")


def test_nothing_heavy_is_loaded(run):
    script = (
        "import sys, azr.cli.view, azr.explorer.server, azr.explorer.single_file, uvicorn\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    assert_light(["show", str(run.path)], "jinja2", "markupsafe", "starlette")

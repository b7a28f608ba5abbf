"""What the server answers, to whom, and that nothing in a run becomes markup."""

import gzip
import json
import re
import time
from html import escape
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from azr.evaluation.report import gains
from azr.explorer import overview, pages, queries, server
from azr.explorer.index import NAME
from azr.explorer.server import BODIES, COMPARING, make_app, names_of
from azr.explorer.single_file import report
from azr.records import Judgement
from tests.evaluation.written import write_evaluation
from tests.explorer.made_runs import HOSTILE, OF_CORPUS, MadeRun, answer, eval_answer, proposal, small_run, task
from tests.tables import table


class Page(HTMLParser):
    """Tags, attributes, links and the visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def links(self) -> list[str]:
        return [value for tag, name, value in self.attributes if (tag, name) == ("a", "href") and value]


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return small_run(tmp_path / "run")


def client(*runs: MadeRun | Path, token: str = "", hosts: tuple[str, ...] = ()) -> TestClient:
    paths = [run if isinstance(run, Path) else run.path for run in runs]
    return TestClient(make_app(paths, token=token, hosts=hosts), raise_server_exceptions=True)


def page(of: TestClient, path: str, status: int = 200) -> Page:
    response = of.get(path)
    assert response.status_code == status, response.text
    return Page(response.text)


def safe_pages(of: TestClient) -> dict[str, Page]:
    """Every page that links lead to; none has markup from a run, or a link to elsewhere."""
    pages, waiting = dict[str, Page](), ["/0/"]
    while waiting:
        if (path := waiting.pop()) not in pages:
            pages[path] = page(of, path)
            waiting += pages[path].links
    assert {re.split(r"[/?]", path)[2] for path in pages} | {"corpus"} == {"", *BODIES, *COMPARING}
    for path, found in pages.items():
        assert found.tags.count("script") == found.tags.count("h1") == 1, path
        assert not [each for each in found.attributes if each[1].startswith("on") or each[1] == "style"], path
        for tag, name, value in found.attributes:
            if name in ("href", "src", "action"):
                assert str(value).startswith(("/0/", "/static/")), (path, tag, value)
        assert not RAW.search(of.get(path).text), path
    return pages


def test_every_link_leads_somewhere_and_nothing_in_a_run_becomes_markup(run: MadeRun) -> None:
    pages = safe_pages(client(run))
    hostile = pages["/0/task?id=000001-deduction-0001"]
    assert hostile.text.count(HOSTILE) >= 6, "in program, prompt, thinking, answers and reasons"
    assert pages["/0/response?step=1&line=1"].text.count(HOSTILE) == 4, "in prompt, tokens, response and answer"


EVIL = f"{HOSTILE}\x00\x1b[2J\x9b\u2028\u202e\u2066\ud800{{{{7*7}}}}{{%"
"""Markup, what steers terminals and reorders text, half a surrogate pair, and a template."""
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def evil_run(path: Path) -> MadeRun:
    run = MadeRun(path)
    judged = Judgement(verdict=EVIL, detail=EVIL, answer=((EVIL, EVIL), ("program", EVIL)), parts={EVIL: True})
    fields = {"kind": EVIL, "prompt": EVIL, "flags": [(EVIL, 0, 9)], "judgement": judged}
    fields["tokens"] = [("", 9e9, -1e300)] * 90
    samples = [answer(EVIL, group=f"{EVIL}:1", text=EVIL, **fields), proposal(EVIL, text=EVIL, **fields)]
    samples += [answer(f"{EVIL}-0", **fields), answer("7", group="data:0", **fields)]
    made = task(EVIL, kind=EVIL, inputs=(EVIL,), outputs=(EVIL,), message=EVIL, parents=(EVIL, "x"), body=repr(EVIL))
    numbers = {f"{EVIL}/solver/accuracy": 0.5, f"eval/{EVIL}/greedy": 0.5, f"{EVIL}/proposer/funnel/valid": 1.0}
    run.step(1, samples, [made, task("x", kind=EVIL, parents=(EVIL,))], **numbers)
    run.evaluation(1, [eval_answer(EVIL, "wrong", suite=EVIL, answer=EVIL, detail=EVIL, response=EVIL)])
    run.evaluation(2, [eval_answer(EVIL, "right", suite=EVIL)])
    (run.path / "config.yaml").write_bytes(f"model:\n  path: {EVIL}\n".encode("utf-8", "backslashreplace"))
    (run.path / "rollouts" / "step_000002.jsonl.gz").write_bytes(gzip.compress(b'{"</p><script>\x1b": 1}\n'))
    return run


def test_no_field_of_a_strangers_run_becomes_markup_or_steers_a_reader(tmp_path: Path) -> None:
    safe_pages(client(evil_run(tmp_path / "run")))
    html = report([tmp_path / "run"], print).decode()
    assert Page(html).tags.count("script") == 1 and HOSTILE in Page(html).text and not RAW.search(html)


@pytest.mark.parametrize("piece", ["'", "\\'", '\\"', "<", "\x00", "f'{", "\u202e", "&", "{{", "9", "\n"])
def test_100_kb_of_anything_are_shown_in_time_linear_in_their_length(piece: str, tmp_path: Path) -> None:
    run, text = MadeRun(tmp_path / "run"), piece * (100_000 // len(piece))
    read = Judgement(verdict="wrong", detail=text, answer=(("program", text), ("output", text)))
    run.step(1, [answer("t", text=text, judgement=read)], [task("t", body=text, inputs=(text,), outputs=(text,))])
    of = client(run)
    started = time.process_time()
    for path in ("/0/task?id=t", "/0/response?step=1&line=0", "/0/step", "/0/tasks"):
        assert of.get(path).status_code == 200
    assert time.process_time() - started < 3.0, "about 0.5 s"


def test_the_policy_allows_only_what_is_served_and_who_asks_for_this_host_with_its_token(run: MadeRun) -> None:
    of = client(run)
    for path in ("/0/", "/static/explorer.js", "/nothing", "/0/task?id=none"):
        policy = of.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy and "http" not in policy
        assert of.get(path).headers["x-content-type-options"] == "nosniff"
    for method in ("post", "put", "delete"):
        assert getattr(of, method)("/0/").status_code == 405
    assert of.get("/static/../server.py").status_code == of.get("/static/%2e%2e/server.py").status_code == 404
    of = client(run, hosts=("localhost", "127.0.0.1", "::1"))
    for host in ("localhost:8777", "127.0.0.1:1", "[::1]:8777", "LOCALHOST"):
        assert of.get("/0/", headers={"host": host}).status_code == 200, host
    for host in ("evil.example:8777", "localhost.evil.example", "127.0.0.1.evil.example:8777", ""):
        answered = of.get("/0/", headers={"host": host})
        assert answered.status_code == 421 and "deduction" not in answered.text, host
    of = client(run, token="secret")  # which is needed for everything
    for path in ("/", "/0/", "/0/tasks", "/static/explorer.js", "/secre/0/", "/secrets/0/", "/SECRET/0/"):
        answered = of.get(path, follow_redirects=False)
        assert answered.status_code == 404 and "deduction" not in answered.text, path
    assert of.get("/secret/").status_code == 200
    assert all(link.startswith("/secret/0/") for link in page(of, "/secret/0/").links)
    assert of.get("/secret/static/explorer.css").status_code == 200


def test_long_lists_have_pages_that_keep_what_was_asked(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.step(1, [answer(f"t{i}") for i in range(120)], [task(f"t{i}") for i in range(120)])
    of = client(run)
    asked = "text=return&order=oldest&self=1&page=2&name=3"
    (after,) = {link for link in page(of, f"/0/tasks?{asked}").links if "offset=" in link}
    assert after == f"/0/tasks?{asked}&offset=50"
    last = page(of, after.replace("offset=50", "offset=100"))
    assert "101 to 120 of 120" in last.text and "t119" in last.text and "t99" not in last.text
    (before,) = {link for link in last.links if "offset=" in link}
    assert before == after
    assert "51 to 100 of 120" in page(of, "/0/step?order=longest&offset=50").text


NOTHING = {
    **dict(table(__file__, "addresses of nothing")),
    f"/0/tasks?text={60_000 * 'a'}": "text must have at most 1,000 characters, not 60,000.",
}


def test_an_address_of_nothing_is_a_sentence_and_an_empty_run_has_every_page(run: MadeRun, tmp_path: Path) -> None:
    for path, said in NOTHING.items():
        found = page(client(run), path, 404)
        assert said in found.text and "/0/" in found.links[-1:], "a way back"
    of = client(MadeRun(tmp_path / "empty"))
    for name in ("", "tasks", "step", "responses", "lineage", "evaluations"):
        page(of, f"/0/{name}")


def test_two_runs_share_their_curves_and_keep_their_tasks(run: MadeRun, tmp_path: Path) -> None:
    other = MadeRun(tmp_path / "other")
    samples = [proposal("b-0"), answer("b-0", text="x" * 33)]
    other.step(1, samples, [task("b-0")], deduction__solver__accuracy=0.125)
    of = client(run, other)
    text = page(of, "/0/").text
    assert "run and other" in text and "run · deduction 50.0%" in text and "other · deduction 12.5%" in text
    table = Page(
        re.search("solve rate of this step.*?<noscript>(.*?)</noscript>", client(run).get("/0/").text, re.S)[1]
    )
    assert re.findall(r"\S+", table.text) == ["stepdeduction", "125.0%", "250.0%"], "a chart without its script"
    for path in ("/0/", "/1/", "/01/?with=0"):
        drawn = [json.loads(value) for _, name, value in page(of, path).attributes if name == "data-chart" and value]
        lines = [line for each in drawn for line in each["series"] if " · " in line["name"]]
        colours = {(line["name"].partition(" ")[0], line["colour"]) for line in lines}
        assert colours == {("run", "c0"), ("other", "c1")}, "one a run, on each page"
        assert len({(line["dash"], line["name"]) for line in lines}) == len({line["name"] for line in lines})
    assert "b-0" in page(of, "/1/tasks").text and "b-0" not in page(of, "/0/tasks").text
    twins = [tmp_path / "a" / "x", tmp_path / "b" / "x"]
    assert names_of(twins) == [*map(str, twins)]


def rows(of: Page) -> list[str]:
    """Questions of an evaluation's table."""
    return re.findall(r"q\d+(?=exam)", of.text)


def test_two_evaluations_stand_side_by_side_those_of_azr_eval_too(run: MadeRun, tmp_path: Path) -> None:
    of = client(run)
    both = page(of, "/0/evaluations")
    assert "step 0: greedystep 0: samplesstep 2: greedystep 2: samples" in both.text
    assert "q1examdeductionwrong0 of 1right0 of 1What is q1?" in both.text
    assert "q2examdeductionright-malformed-What is q2?" in both.text
    for step in (0, 2):
        assert f"step {step}250.0% [9.5, 90.5]0.0% [0.0, 79.3]" in both.text
    changed = "+0.0 points [-100.0, +100.0]+0.0 points [+0.0, +0.0]"
    assert f"difference on the same questions2{changed}" in both.text
    assert rows(page(of, "/0/evaluations?change=worse&suite=exam")) == ["q2"]
    assert rows(page(of, "/0/evaluations?change=wrong")) == ["q1"]
    assert rows(page(of, "/0/evaluations?change=better&left=0-2&right=0-0")) == ["q2"]
    assert "matches: show all" in page(of, "/0/evaluations?change=better").text
    asked = page(of, "/0/question?suite=exam&id=q1")
    assert "What is q1?" in asked.text and asked.text.count(HOSTILE) == 2 and "sample 0, 7 tokens wrong" in asked.text
    assert "why: a list" in page(of, "/0/question?suite=exam&id=q2").text
    other = MadeRun(tmp_path / "other")
    other.evaluation(5, [eval_answer("q1", "right"), eval_answer("q3", "right")])
    two = client(run, other)
    compared = page(two, "/0/evaluations?left=1-5&right=0-0")
    assert "other, step 5" in compared.text and rows(compared) == ["q1", "q2", "q3"]
    assert "It was not asked." in page(two, "/0/question?left=1-5&right=0-0&suite=exam&id=q3").text
    answers = [eval_answer("q1", "right", answer="8"), eval_answer("q7", "wrong", suite="math500")]
    write_evaluation(run.path / "eval" / "step_000002", answers)
    both = page(client(run), "/0/evaluations?left=0-2&right=0-eval-step_000002")
    assert "step 2: greedystep 2: samplesazr eval, step_000002: greedy" in both.text
    assert "q7math500deduction--wrong-" in both.text
    assert "step 0: greedystep 0: samplesstep 2: greedy" in page(client(run), "/0/evaluations").text


def test_the_result_on_top_is_that_of_the_terminal(tmp_path: Path) -> None:
    other = MadeRun(tmp_path / "other")
    assert "No evaluation has been made yet" in page(client(other), "/0/").text
    for step, right in (0, 12), (4, 30):
        answers = [
            eval_answer(f"q{i}", "right" if i * 7 % 40 < right else "wrong", at) for i in range(40) for at in (0, 1)
        ]
        other.evaluation(step, answers)
    (said,) = gains(other.path / "evaluations")
    assert said.startswith("exam: 30.0% to 75.0% of 40 questions at temperature 1, +45.0 points [+30.0, +60.0]: a gain")
    text = re.sub(r"\s+", " ", page(client(other), "/0/").text)
    assert "30.0% → 75.0% +45.0 points, 95% interval +30.0 to +60.0: a gain beyond chance" in text
    assert "40 questions at temperature 1, step 0 and step 4" in text


def test_responses_are_searched_in_every_step(run: MadeRun, monkeypatch) -> None:
    of = client(run)

    def found(asked: str) -> list[str]:
        return [link.partition("?")[2] for link in page(of, f"/0/responses?{asked}").links if "/response?" in link]

    assert found("text=AN+ANSWER&step=2") == [f"step=2&line={line}" for line in (1, 2, 3)]
    assert len(found("text=%3Cscript%3E")) == 5 and found("text=%3Cscript%3E&role=proposer") == ["step=1&line=1"]
    assert f"<mark>{escape('<script>')}</mark>" in of.get("/0/responses?text=%3CSCRIPT%3E").text
    assert (
        found("text=nowhere") == [] and "There is none in steps 1 to 2." in page(of, "/0/responses?text=nowhere").text
    )
    assert len(found("")) == 16 and found("verdict=refused") == ["step=1&line=2", "step=1&line=3"]
    for name, value in ("LIMIT", 3), ("SEARCHING_S", -1.0):
        monkeypatch.setattr(pages if name == "LIMIT" else queries, name, value)
        whole, path = list[str](), "/0/responses?text=an+answer"
        while path:
            one = page(of, path)
            whole += [link.partition("?")[2] for link in one.links if "/response?" in link]
            path = next((link for link in one.links if "from=" in link), "")
        assert whole == [f"step=2&line={line}" for line in (1, 2, 3)] + [f"step=1&line={line}" for line in (4, 5, 6, 7)]


def test_every_chart_says_what_it_shows_and_any_number_can_be_drawn(run: MadeRun) -> None:
    run.step(
        3, [], deduction__solver__own__teaching_mass=3.5, deduction__proposer__repeats__seed=2, shapes__deduction=9
    )
    run.step(4, [], deduction__solver__own__idle=0.25, policy__lr=1e-6)
    run.step(5, [], eval__exam__greedy=0.5)
    found = page(client(run), "/0/?metric=policy/lr")
    (funnel,) = [json.loads(value) for *_, value in found.attributes if value and '"name": "valid"' in value]
    assert funnel["series"][0]["points"] == [[1, 2], [2, 1], [3, 0], [4, 0]], "none where nothing was played"
    text = found.text
    for said in (
        "4s(1-s) summed over their solve rates", "all are wrong: they teach nothing", "policy/lr 1e-06",
        "differ in more than names and constants", "seed: a task that the buffer began with",
    ):  # fmt: skip
        assert said in text
    source = (resources.files("azr.explorer") / "templates" / "pages.html").read_text()
    titles = [row["title"] for row in overview._CHARTS]
    assert [title for title in titles if f'"{title}": "' not in source] == []


def test_folders_of_azr_eval_have_pages_of_their_own_and_stand_beside_a_run(run: MadeRun, tmp_path: Path) -> None:
    before, after = tmp_path / "eval" / "base", tmp_path / "eval" / "tuned"
    write_evaluation(before, [eval_answer("q1", "wrong"), eval_answer("q2", "right")])
    write_evaluation(after, [eval_answer("q1", "right")])
    of = client(before, after, run)
    alone = page(of, "/0/")
    assert "base: greedybase: samplesrun, step 2: greedy" in alone.text and rows(alone) == ["q2", "q1"]
    assert [link for link in alone.links if "question" not in link] == ["/0/", "/1/", "/2/", "/0/"]
    compared = page(of, "/0/evaluations?left=0-eval&right=1-eval")
    assert "q1examdeductionwrong-right-" in compared.text
    assert page(of, "/2/").text.count("solve rate of this step's attempts") == 1
    assert not [path for path in before.iterdir() if path.name != "answers.jsonl.gz"]


def test_an_evaluation_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "going", [eval_answer(f"q{i}", "right") for i in range(12)])
    path = folder / "answers.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    of = client(folder)
    found = page(of, "/0/")
    assert rows(found) == [f"q{i}" for i in range(11)] and found.text.count(": greedy") == 1
    assert "going/answers.jsonl.gz: it is cut short" in found.text
    path.write_bytes(path.read_bytes()[:-300])
    assert len(rows(page(of, "/0/"))) < 11


def test_a_duplicate_links_its_twin_and_a_step_tells_of_responses_that_were_given_up(run: MadeRun) -> None:
    numbers = {"engines__given_up": 3}
    run.step(3, [proposal("again", "duplicate", "duplicate of 000001-deduction-0000")], **numbers)
    run.step(4, [proposal("more")], engines__given_up=4)
    run.step(5, [proposal("resumed")], engines__given_up=2)
    of = client(run)
    for path in ("step?step=3", "response?step=3&line=0", "task?id=again"):
        assert "/0/task?id=000001-deduction-0000" in page(of, f"/0/{path}").links, path
    said = [page(of, f"/0/step?step={step}").text for step in range(2, 6)]
    assert "given up" not in said[0] and "3 responses took an engine longer" in said[1]
    assert "1 response took an engine longer" in said[2] and "2 responses took" in said[3]


def test_a_step_and_the_overview_tell_why_responses_are_malformed(run: MadeRun) -> None:
    boxless = Judgement(verdict="malformed", reason="no_box")
    run.step(
        3, [answer("7", kind="math", judgement=boxless), answer("8", kind="math")], math__solver__malformed__no_box=1
    )
    of = client(run)
    found = page(of, "/0/step?step=3")
    assert "Malformed or ungraded" in found.text and "1 no box" in found.text
    (link,) = [link for link in found.links if "reason=no_box" in link]
    one = page(of, link)
    assert len([each for each in one.links if "/response?" in each]) == 1
    assert "malformed or ungraded answers, math" in page(of, "/0/").text
    assert "Malformed or ungraded" not in page(of, "/0/step?step=2").text
    page(of, "/0/step?step=3&reason=nonsense", 404)


def test_rows_of_files_have_pages_though_their_ids_are_equal(run: MadeRun) -> None:
    rows = [answer("7", kind=suite, group=f"data:0:{suite}-7", text=f"of {suite}") for suite in ("math500", "gsm8k")]
    run.step(3, rows)
    of = client(run)
    links = [link for link in page(of, "/0/step?step=3").links if "/task?" in link]
    assert links == ["/0/task?id=7&kind=math500", "/0/task?id=7&kind=gsm8k"]
    of_one = page(of, links[0])
    assert "It is a row of a file." in of_one.text and "of math500" in of_one.text and "of gsm8k" not in of_one.text


def test_the_setup_of_a_run_stands_on_top_and_a_run_can_be_seen_alone(run: MadeRun, tmp_path: Path) -> None:
    assert "config.yaml" not in page(client(run), "/0/").text
    config = f"run:\n  seed: 7\nmodel:\n  path: {HOSTILE}\nalgorithm:\n  estimator:\n    name: rloo\n    x: \x1b\n"
    (run.path / "config.yaml").write_text(config)
    for step, code in (1, "old"), (2, "0.1.0 (<b>)"):
        (run.path / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
        (run.path / "checkpoints" / f"step_{step:06d}" / "driver.json").write_text(f'{{"code": "{code}"}}')
    other = MadeRun(tmp_path / "other")
    other.step(1, [answer("a")], deduction__solver__accuracy=0.125)
    of = client(run, other)
    both = page(of, "/0/")
    assert f"model {HOSTILE}" in both.text and "estimator rloo" in both.text and "seed 7" in both.text
    assert "code 0.1.0 (<b>)" in both.text and config.replace("\x1b", "\\x1b") in both.text
    assert "other · deduction" in both.text and "model.path" in both.text, "an option that differs"
    assert [value for tag, name, value in both.attributes if (tag, name) == ("option", "value")][:3] == [
        "",
        "none",
        "1",
    ]
    alone = page(of, "/0/?with=none")
    assert "other · deduction" not in alone.text and "options that differ" not in alone.text
    assert "other · deduction" in page(of, "/0/?with=1").text
    assert "with must be one of none, 1" in page(of, "/0/?with=0", 404).text


def test_filters_and_orders_columns_that_sort_both_ways_and_pages_that_lead_to_their_neighbours(run: MadeRun) -> None:
    of = client(run)
    refused = page(of, "/0/step?step=1&verdict=refused").text
    assert "line 3: imports random" in refused and "1 to 2 of 2" in refused
    assert "1 to 5 of 5" in page(of, "/0/step?step=1&verdict=wrong").text
    assert "1 to 4 of 4" in page(of, "/0/step?step=1&used=estimate&order=longest").text
    assert "1 to 1 of 1" in page(of, "/0/tasks?text=a+*+2&kind=deduction").text
    assert "1 to 2 of 2" in page(of, "/0/tasks?rate_from=0.2&rate_to=0.75&step_from=1&order=easiest&lines_to=5").text
    form = page(of, "/0/tasks?text=t%3E%22&order=hardest")
    assert ("input", "value", 't>"') in form.attributes and "000001-deduction-0001" in form.text
    # The hardest task of a step is two links from the overview, with why its solvers failed.
    (to_step,) = {link for link in page(of, "/0/").links if link.endswith("step?step=1")}
    to_task = next(link for link in page(of, to_step).links if "/task?" in link)
    assert to_task.endswith("000001-deduction-0001")
    assert page(of, to_task).text.count(f"f(1) returned {HOSTILE}, not 2") == 4
    links = [link for link in page(of, "/0/response?step=2&line=1").links if "response?" in link]
    assert links == ["/0/response?step=2&line=0", "/0/response?step=2&line=2"]

    def headed(path: str, head: str) -> str:
        return re.search(rf'<a href="([^"]+)">{head}</a>', of.get(path).text)[1].replace("&amp;", "&")

    assert headed("/0/tasks?kind=deduction&offset=0", "solve rate") == "/0/tasks?kind=deduction&order=hardest"
    assert headed("/0/tasks?order=hardest", "solve rate") == "/0/tasks?order=easiest"
    assert "solve rate ↑" in page(of, "/0/tasks?order=easiest").text
    assert headed("/0/step?step=1", "tokens") == "/0/step?step=1&order=longest"
    assert headed("/0/task?id=000001-deduction-0000", "next") == "/0/task?id=000001-deduction-0001"
    assert headed("/0/step?step=1", "last") == headed("/0/step?step=1", "next") == "/0/step?step=2"
    asked = "/0/question?left=0-0&right=0-2&suite=exam&id=q1&change=worse"
    assert not [link for link in page(of, asked).links if "question" in link], "it is none of those"
    assert headed(asked.removesuffix("&change=worse"), "previous").endswith("id=q2")


def test_tokens_are_shaded_by_what_is_recorded_and_right_answers_stand_beside_wrong_ones(run: MadeRun) -> None:
    of = client(run)
    html = of.get("/0/response?step=1&line=1").text
    tokens = re.findall(r'<span class="([^"]*)" title="([^"]*)">([^<]*)</span>', html)
    assert tokens[:3] == [
        ("p0 m1", "99.00% · log-probability -0.01, trainer -0.02", "&lt;"),
        ("p3 m4", "4.98% · log-probability -3, trainer -1", "t"), ("", "not scored", "h"),
    ]  # fmt: skip
    other = page(of, "/0/response?step=1&line=0")
    assert "No values of single tokens" in other.text and "/0/step?step=1&order=mismatch" in other.links
    assert "right: 1\n" in page(of, "/0/task?id=000001-deduction-0000").text
    assert "right: 1\n" in page(of, "/0/response?step=2&line=2").text
    assert "a right answer: 7" in page(of, "/0/question?suite=exam&id=q1").text
    run.step(3, [answer("odd", kind="abduction")], [task("odd", kind="abduction", inputs=(), outputs=())])
    assert "right:" not in page(client(run), "/0/task?id=odd").text


def test_a_page_reads_what_is_new_and_survives_the_loss_of_the_index(run: MadeRun, monkeypatch) -> None:
    of = client(run)
    before = [of.get("/0/changes").text for _ in range(2)]
    run.step(3, [proposal("000003-deduction-0000")], [task("000003-deduction-0000", step=3)])
    monkeypatch.setattr(server, "READING_S", -1.0)
    assert "The index is being made" in of.get("/0/").text
    monkeypatch.setattr(server, "READING_S", 20.0)
    assert "000003-deduction-0000" in of.get("/0/tasks").text and "being made" not in of.get("/0/").text
    assert before[0] == before[1] != of.get("/0/changes").text
    (run.path / NAME).unlink()
    assert "000003-deduction-0000" in of.get("/0/tasks").text
    run.rollouts(1).write_bytes(run.rollouts(1).read_bytes()[:-20])
    for path in ("/0/", "/0/tasks"):
        assert "step_000001.jsonl.gz: it is cut short" in page(of, path).text


def test_flagged_responses_stand_with_the_text_around(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    text = f"first {HOSTILE} then I outsmart them </mark><b>all</b>"
    at = text.index("outsmart")
    both = [("sandbox", 0, 9), ("superiority", 6, 9)]
    run.step(1, [answer("t0", text="plain")])
    run.step(2, [
        answer("t1", text="nothing"), answer("t1", text=text, flags=[("superiority", at, at + 8)]),
        answer("t2", text="break out", flags=both),
    ])  # fmt: skip
    of = client(run)
    found = page(of, "/0/flags")
    assert "1 to 2 of 2" in found.text and f"superiority {text}" in found.text
    assert found.tags.count("mark") == 3 and "<mark>outsmart</mark>" in of.get("/0/flags").text
    found = page(of, "/0/flags?rule=sandbox")
    assert "1 to 1 of 1" in found.text
    (link,) = [link for link in found.links if "/response?" in link]
    assert "flagged: sandbox, superiority" in page(of, link).text
    page(of, "/0/flags?rule=none", 404)


def test_the_corpus_is_shown_by_file_and_function_and_its_tasks_lead_there(tmp_path):
    run = MadeRun(tmp_path / "run")
    about, like = task("a", parents=(OF_CORPUS,), solve_rate=0.25), task("b", parents=(OF_CORPUS, "a"), solve_rate=0.5)
    hard, shown = task("c", parents=("corpus:z.py:hard",), solve_rate=0.0), task("d", parents=("corpus:b:c.py:x", "a"))
    answers = [*(answer("a", verdict) for verdict in ("right", "wrong")), *(answer("b", "wrong") for _ in range(2))]
    answers += [answer("c", "wrong"), answer("d")]
    run.step(1, [proposal("a"), proposal("b"), *answers], [about, like, hard, shown])
    run.step(2, [answer("a")], [])
    of = client(run)
    html = of.get("/0/corpus").text
    assert f"{HOSTILE}.py" in Page(html).text and ">b:c.py<" in html
    # Two tasks, one of the function itself: 0.25 when proposed, 1 by its last answer; five answers to both.
    numbers = re.findall(r'class="number" [^>]*>([\d.-]+)<', html)
    assert numbers == ["0", "0", "1", "1", "1", "0.25", "1", "2", "1", "5", "-", "-", "1", "0", "1"]
    _, link, _ = (each for each in Page(html).links if "/corpus?" in each)
    assert {"a", "b"} <= set(re.findall(r"task\?id=(\w)", of.get(link).text))
    assert link in page(of, "/0/task?id=b").links and link in page(of, "/0/lineage?id=b").links
    assert "No task was made from it" in page(of, "/0/corpus?id=corpus:a.py:x").text


def test_a_run_without_a_corpus_has_no_page_of_it(tmp_path):
    run = MadeRun(tmp_path / "run")
    run.step(1, [proposal("a")], [task("a")])
    assert not [each for each in page(client(run), "/0/").links if "corpus" in each]

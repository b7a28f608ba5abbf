"""The explorer's pages in a real browser: Debian's Chromium, driven by Playwright."""

import importlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azr.cli.main import dispatch
from tests.explorer.conftest import serving
from tests.explorer.made_runs import HOSTILE, MadeRun, answer, proposal, small_run, task

pytestmark = pytest.mark.long

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; skipped where this machine lacks it, but never in continuous integration."""
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        playwright = None
    if playwright is None or CHROMIUM is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("there is no Chromium, or no Playwright to drive it")
    with playwright.sync_playwright() as started:
        # As root, Chromium's own sandbox does not start; in a container, /dev/shm may be small.
        arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.getuid() == 0 else [])]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def address(run: MadeRun) -> Iterator[str]:
    with serving(str(run.path)) as served:
        yield served


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; whatever the browser complains of, breaches of the policy included, fails the test."""
    opened, complaints = browser.new_page(), list[str]()
    opened.set_default_timeout(WAIT_MS)
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert not complaints


def test_what_a_model_wrote_stays_text(page, address) -> None:
    for path in (
        "task?id=000001-deduction-0001", "tasks", "step?step=1", "lineage?id=000001-deduction-0001",
        "response?step=1&line=1", "tasks?text=%22%3E%3Cscript%3Edocument.title%3D1%3C/script%3E",
    ):  # fmt: skip
        page.goto(f"{address}/0/{path}")
        assert page.title().endswith(" · run")
        assert page.locator("script").count() == 1 and page.locator("main script").count() == 0
    page.goto(f"{address}/0/task?id=000001-deduction-0001")
    assert page.get_by_text(f"f(1) returned {HOSTILE}, not 2").count() == 4
    page.context.grant_permissions(["clipboard-read"])
    page.locator(".copy").first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("pre.program").first.inner_text() and HOSTILE.split("'")[0] in copied
    page.goto(f"{address}/0/response?step=1&line=1")
    for key, line in ("j", 2), ("k", 1):
        page.keyboard.press(key)
        page.wait_for_url(f"**line={line}")
    page.goto(f"{address}/0/tasks?text=%22%27%26")
    assert page.input_value("input[name=text]") == "\"'&"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "text"


def places(mark: Any) -> list[list[float]]:
    return [[float(each) for each in place.split(",")] for place in mark.get_attribute("points").split()]


def test_charts_have_axes_and_say_their_values_beside_the_pointer(page, address) -> None:
    page.goto(f"{address}/0/")
    chart = page.locator("figure:has-text('solve rate of this step')")
    assert places(chart.locator("polyline")) == [[52, 144.5], [450, 103]], "a quarter, then half, of 20 to 186"
    said = ["0%", "20%", "40%", "60%", "80%", "100%", "1", "2", "step"]
    assert chart.locator("text").all_text_contents() == said
    chart.locator("svg[role=img]").hover(position={"x": 60, "y": 50})
    assert chart.locator(".tip").inner_text().split("\n") == ["step 1", "deduction  25.0%"]
    page.locator("summary:has-text('proposals')").click()
    below, above = page.locator("figure:has-text('proposal funnel, deduction') polygon").all()
    assert places(above)[2:] == places(below)[1::-1], "it stands upon the other"
    assert places(above)[:2] == [[52, 20], [450, 130.7]], "a step that it lacks counts 0"
    assert page.evaluate("getComputedStyle(document.querySelector('polyline')).stroke") == "rgb(47, 111, 222)"


def test_curves_are_smoothed_and_zoomed_together(page, tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    for step in range(1, 22):
        run.step(step, [], **{"=deduction__solver__accuracy": step % 2}, seconds__step=step)
    with serving(str(run.path)) as address:
        page.goto(f"{address}/0/")
        raw, line = (f".charts:has(figure:has-text('solve rate')) {mark}" for mark in (".raw", "polyline.line"))
        assert page.locator(raw).count() == 0 and not page.locator(".whole").is_visible()
        page.locator(".smoothing").fill("0.9")
        assert page.locator(raw).count() == 1
        assert all(80 < y < 126 for _, y in places(page.locator(line))[5:]), "near the middle of 20 to 186"
        box = page.locator("figure svg[role=img]").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50)
        page.mouse.up()
        steps = page.locator("figure >> nth=-1").locator("text.below").all_text_contents()
        assert len(places(page.locator(line))) == 9 and steps == ["8", "10", "12", "14", "step"]
        page.locator("summary:has-text('time')").click()
        page.wait_for_function("location.search === '?smoothing=0.9&first=7&last=15&open=solver%2Ctime'")
        page.goto(page.url)  # the view is in the address
        assert page.input_value(".smoothing") == "0.9" and len(places(page.locator(line))) == 9
        assert page.locator(".group[open] h2").all_inner_texts() == ["solver", "time"]
        assert page.locator("figure:has-text('time of a step') .legend b").inner_text() == "15.00 s", (
            "of the last in view"
        )
        page.locator("[name=metric]").fill("seconds/step")
        page.locator("form button").click()
        assert "metric=seconds%2Fstep" in page.url and "smoothing=0.9" in page.url
        page.click(".whole")
        assert len(places(page.locator(line))) == 21 and "first" not in page.url
        page.locator("figure svg[role=img]").first.focus()
        for key, said in ("ArrowLeft", 21), ("ArrowLeft", 20), ("Home", 1), ("ArrowLeft", 1), ("ArrowRight", 2):
            page.keyboard.press(key)
            assert page.locator(".tip:not([hidden])").inner_text().startswith(f"step {said}\n")
        for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Enter"):
            page.keyboard.press(key)
        assert "first=2&last=4" in page.url and len(places(page.locator(line))) == 3
        page.keyboard.press("Escape")
        assert len(places(page.locator(line))) == 21
        for at, said in (0, ["step,seconds/step", "1,1"]), (1, ["step,'=deduction", "1,1"]):
            with page.expect_download() as download:
                page.locator("figure .csv").nth(at).click()
            assert Path(download.value.path()).read_text().splitlines()[:2] == said
        page.goto("about:blank")  # it would look for the server that ends now


def test_no_page_is_wider_than_a_narrow_window(browser, address) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    for path in (
        "", "tasks", "step?step=1", "task?id=000001-deduction-0001", "response?step=1&line=1", "responses",
        "lineage?id=000001-deduction-0001", "evaluations", "question?suite=exam&id=q1", "flags",
    ):  # fmt: skip
        page.goto(f"{address}/0/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        for scheme, by in itertools.product(("light", "dark"), ("by-p", "by-m")):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(FAINT, by) == [], (path, scheme)
    page.close()


FAINT = Path(__file__).with_name("faint.js").read_text()


def test_the_page_of_a_growing_run_grows_by_itself(page, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with serving(str(run.path)) as address:
        page.goto(f"{address}/0/tasks")
        page.get_by_text("000002-deduction-0000").wait_for()
        id = "000003-deduction-0000"
        run.step(3, [proposal(id), answer(id)], [task(id, step=3)])
        page.get_by_text(id).wait_for()
        page.goto("about:blank")


def test_a_report_opens_without_a_server(page, run: MadeRun, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert dispatch(["view", str(run.path), "--out", str(out)]) == 0
    page.goto(out.as_uri())
    assert page.title() == "run" and page.locator("script").count() == 1
    page.locator("h2:has-text('Hardest new tasks') + div a").first.click()
    assert page.locator(":target h1").inner_text().startswith("Task ")
    assert page.get_by_text(f"f(1) returned {HOSTILE}, not 2").count() >= 4
    page.locator("nav a:has-text('evaluations')").click()
    page.locator(":target a:has-text('q2')").click()
    said = page.locator(":target .sides summary").all_inner_texts()
    assert said[0] == "greedy, 7 tokens right" and "greedy, 7 tokens malformed" in said
    page.locator("figure:has-text('solve rate of this step') svg[role=img]").first.hover(position={"x": 60, "y": 50})
    assert page.locator(".tip:not([hidden])").inner_text().startswith("step 1")
    assert page.evaluate("getComputedStyle(document.querySelector('polyline')).stroke") == "rgb(47, 111, 222)"

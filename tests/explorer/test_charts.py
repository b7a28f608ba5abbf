"""Charts: round axes, long lines as means, and stacks that add up."""

import re
import time
from html import unescape
from importlib import resources

import pytest
from markupsafe import Markup

from azr.explorer.charts import MAX_POINTS, Series, area_chart, line_chart, ticks
from azr.explorer.site import encoded, highlighted, render


@pytest.mark.parametrize(
    "low, high, least, expected",
    [
        (0.0, 1.0, 0.0, [0.0, 0.5, 1.0]),
        (1.0, 3.0, 1.0, [1.0, 2.0, 3.0]),
        (0.0, 500.0, 1.0, [0.0, 200.0, 400.0]),
        (-0.5, 0.5, 0.0, [-0.5, 0.0, 0.5]),
        (0.0, 3e-5, 0.0, [0.0, 1e-5, 2e-5, 3e-5]),
    ],
)
def test_axes_have_round_values(low, high, least, expected):
    assert ticks(low, high, least=least) == pytest.approx(expected)


def points(chart: Markup, mark: str) -> list[tuple[float, ...]]:
    places = re.search(rf'<{mark} points="([^"]+)"', chart)[1]
    return [tuple(map(float, place.split(","))) for place in places.split()]


def test_a_line_goes_from_corner_to_corner():
    assert points(line_chart("t", [Series("a", [(1, 0.0), (2, 0.5), (3, 1.0)])]), "polyline") == [
        (52.0, 178.0), (252.0, 93.0), (452.0, 8.0),
    ]  # fmt: skip


def test_a_long_line_is_drawn_by_means():
    drawn = points(
        line_chart("t", [Series("a", [(x, x % 2) for x in range(10 * MAX_POINTS)])], least=0, most=1), "polyline"
    )
    assert len(drawn) == MAX_POINTS and {y for _, y in drawn} == {93.0}


def test_areas_stand_upon_each_other_and_a_missing_step_counts_nothing():
    chart = area_chart("t", [Series("a", [(1, 2.0), (2, 2.0)]), Series("b", [(2, 2.0)]), Series("none", [(1, 0.0)])])
    below, above = re.findall(r'<polygon points="([^"]+)"', chart)
    assert below == "52.0,93.0 452.0,93.0 452.0,178.0 52.0,178.0"
    assert above == "52.0,93.0 452.0,8.0 452.0,93.0 52.0,93.0" and "none" not in chart


def test_an_area_has_the_colour_of_its_place_whatever_is_not_there():
    chart = area_chart("t", [Series("a", [(1, 1.0)]), Series("none", []), Series("b", [(1, 1.0)])])
    assert re.findall(r"area (c\d)", chart) == re.findall(r"key (c\d)", chart) == ["c0", "c2"]


def test_a_line_of_zeros_lies_at_the_bottom():
    assert {y for _, y in points(line_chart("t", [Series("a", [(1, 0.0), (2, 0.0)])]), "polyline")} == {178.0}


def test_nothing_is_drawn_of_nothing_and_one_step_is_a_dot():
    assert line_chart("t", [Series("a", [])]) == area_chart("t", []) == ""
    assert "<circle" in line_chart("t", [Series("a", [(1, 0.0)])])


def test_templates_escape_text_and_attributes_and_keep_what_was_made():
    made = render(
        "field", label=Markup("<u></u>"), name='"><script>', value="<b>&\x1b[2J\u202e\r\ud800\n\t'", type="search"
    )
    assert encoded(made).decode() == (
        '<label><u></u><input type="search" name="&#34;&gt;&lt;script&gt;" '
        'value="&lt;b&gt;&amp;\\x1b[2J\\u202e\\r\\ud800\n\t&#39;"></label>\n'
    )


def test_no_template_can_let_text_become_markup():
    source = (resources.files("azr.explorer") / "templates" / "pages.html").read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup|=\s*{[{%]", source)
    tags = re.sub(r"{#.*?#}", "", source, flags=re.DOTALL)
    assert {quoted for quoted in re.findall(r"""=(["'])\{[{%]""", tags)} == {'"'}


@pytest.mark.parametrize(
    "piece", ["'", '"', "\\'", '\\"', "'\\", "'''\\", '"""x', "f'{", "rb'", "#", "\\", "1_", "a.", "λ", "\x00", "\n'"]
)
def test_highlighting_takes_time_linear_in_the_length(piece):
    program = piece * (100_000 // len(piece))
    started = time.process_time()
    highlighted(program)
    assert time.process_time() - started < 1.5, (
        "about 0.1 s; a text of this length that is read again and again takes 20"
    )


@pytest.mark.parametrize(
    "program", ['def f(a):\n    return \'<\' + "x\\"" # <b>', "'unfinished", '"""', "f(λ) = 0x1F_2 '\\", ""]
)
def test_highlighting_changes_no_character(program):
    assert unescape(re.sub(r"<[^>]+>", "", highlighted(program))) == program

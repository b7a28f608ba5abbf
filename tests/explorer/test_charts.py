"""Charts: what is sent to the script that draws them; and what templates and highlighting make of any text."""

import json
import re
from html import unescape
from importlib import resources
from typing import Literal

import pytest
from markupsafe import Markup

from azr.explorer.site import MAX_POINTS, Series, chart, encoded, highlighted, render


def drawn(title: str, *series: Series, shape: Literal["line", "area"] = "line") -> tuple[dict, list[str]]:
    """What the script draws, and the classes of the legend."""
    made = chart(title, series, shape=shape)
    return json.loads(unescape(re.search('data-chart="([^"]+)"', made)[1])), re.findall(r'class="line (\w+)', made)


def test_a_series_has_the_colour_of_its_place_whatever_is_not_there():
    series = Series("a", [(1, 1.0)]), Series("none", []), Series("zero", [(1, 0.0)]), Series("b", [(1, 1.0)])
    data, legend = drawn("t", *series, shape="area")
    assert [each["colour"] for each in data["series"]] == ["s0", "s3"] == legend
    assert drawn("t", *series)[1] == ["s0", "s2", "s3"]


def test_what_is_sent_to_the_script_that_draws():
    (line,) = drawn("t", Series("a", [(x, x % 2) for x in range(10 * MAX_POINTS)]))[0]["series"]
    assert len(line["points"]) == MAX_POINTS and {y for _, y in line["points"]} == {0.5}
    (line,) = drawn("t", Series("a", [(1, 1.23456789e-9)]))[0]["series"]
    assert line["points"] == [[1, 1.23457e-9]]
    assert chart("t", [Series("a", [])]) == chart("t", [Series("a", [(1, 0.0)])], shape="area") == ""


def test_templates_escape_text_and_none_can_let_it_become_markup():
    made = render(
        "field", label=Markup("<u></u>"), name='"><script>', value="<b>&\x1b[2J\u202e\r\ud800\n\t'", type="search"
    )
    assert encoded(made).decode() == (
        '<label><u></u><input type="search" name="&#34;&gt;&lt;script&gt;" '
        'value="&lt;b&gt;&amp;\\x1b[2J\\u202e\\r\\ud800\n\t&#39;"></label>\n'
    )
    source = (resources.files("azr.explorer") / "templates" / "pages.html").read_text()
    assert not re.search(r"\|\s*safe|autoescape|Markup|=\s*{[{%]", source)
    tags = re.sub(r"{#.*?#}", "", source, flags=re.DOTALL)
    assert {quoted for quoted in re.findall(r"""=(["'])\{[{%]""", tags)} == {'"'}


@pytest.mark.parametrize(
    "program", ['def f(a):\n    return \'<\' + "x\\"" # <b>', "'unfinished", '"""', "f(λ) = 0x1F_2 '\\", ""]
)
def test_highlighting_changes_no_character(program):
    assert unescape(re.sub(r"<[^>]+>", "", highlighted(program))) == program

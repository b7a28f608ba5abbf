"""The program of a response, however its blocks are written: the last that defines what is asked for, and no other."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azr.graders.code_blocks import blocks, definition, program
from azr.graders.programs import Calls, assembled
from azr.graders.stated_values import ProgramValue, stated_value
from tests.tables import table

VALUE = ProgramValue("def f(x):\n    return x", "output", "1", "1")
PROGRAMS = table(__file__, "programs of an area")
USAGES = (
    "print(area(2, 3))", ">>> area(2, 3)\n6", "assert area(2, 3) == 6", "def area(a: int, b: int) -> int:",
    "class TestArea(unittest.TestCase):\n    def test(self):\n        self.assertEqual(area(2, 3), 6)",
)  # fmt: skip
OTHER = "def area(a, b):\n    return a + b"
HEADS = ("", "Here it is:\n", "1. First\n", "<think>\n```python\ndef area(a, b): pass\n```\n</think>\n", "a `b` c\n\n")
TAILS = ("", "\nIt multiplies.", "\nOutput:\n```\n6\n```\n", "\nRun:\n```bash\npython area.py\n```", "\n`area` is it.")


def same(source: str | None, wanted: str) -> bool:
    return source is not None and ast.dump(ast.parse(source)) == ast.dump(ast.parse(wanted))


@st.composite
def written(draw, source: str) -> str:
    """A block as models write it: in a list or a quotation, after text, and closed on its last line of code."""
    language = draw(st.sampled_from(["python", "Python", "py", "python3", " python", "{.python}"]))
    fence = draw(st.sampled_from(["```", "````", "~~~"])) if "`" not in source else "```"
    opened = f"{fence}{language}\n{source}\n"
    match draw(st.sampled_from(["plain", "item", "after", "last line", "quoted", "fence alone", "sloppy", "indented"])):
        case "item":
            mark, indent = draw(st.sampled_from([("1. ", "   "), ("- ", "  "), ("* x\n\n  ", "  "), ("-\t", "\t")]))
            return mark + textwrap.indent(f"{opened}{fence}", indent).lstrip()
        case "after" if fence != "~~~" and "{" not in language:
            return f"The program: {opened}{fence}"
        case "last line" if fence != "~~~":
            return f"{fence}{language}\n{source}{fence}"
        case "quoted":
            return textwrap.indent(f"{opened}{fence}", "> ", lambda _: True)
        case "indented" if "`" not in source:
            return f"{fence}{language}\n" + textwrap.indent(source, draw(st.sampled_from("\t "))) + f"\n{fence}"
        case "sloppy":
            return f"  {fence}{language}\n{source}\n  {fence}"
        case "fence alone":
            return f"{fence}\n{source}\n{fence}"
    return f"{opened}{fence}"


@given(st.data())
def test_a_program_is_found_however_its_block_is_written(data):
    source = data.draw(st.sampled_from(PROGRAMS))
    usages = data.draw(st.lists(st.sampled_from(USAGES), max_size=2))
    response = data.draw(st.sampled_from(HEADS)) + data.draw(written(source))
    response += "".join(f"\nFor example:\n```python\n{usage}\n```" for usage in usages)
    assert same(definition(response + data.draw(st.sampled_from(TAILS)), "area"), source), response


@given(st.data())
def test_the_last_definition_counts_though_one_before_is_right(data):
    source = data.draw(st.sampled_from(PROGRAMS))
    wrong = data.draw(st.sampled_from([OTHER, OTHER.replace("a + b", "(a +"), OTHER + "\n    return", "area = 1"]))
    response = f"{data.draw(written(source))}\n\nNo, better:\n\n```python\n{wrong}\n```"
    response += "".join(
        f"\n```python\n{each}\n```" for each in data.draw(st.lists(st.sampled_from(USAGES), max_size=2))
    )
    assert definition(response, "area").strip() == wrong, response


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        ("def area(a, b):\n    return a * b\n```\nIt multiplies.", PROGRAMS[0]),
        ("Here:\n\ndef area(a, b):\n    return a * b\n\nIt is done.", PROGRAMS[0]),
        ("First import it.\n\nimport math\n\ndef area(a, b):\n    return math.prod((a, b))\n\nOutput: 6",
         "import math\n\ndef area(a, b):\n    return math.prod((a, b))"),
        ("[PYTHON]\ndef area(a, b):\n    return a * b\n[/PYTHON] ok", PROGRAMS[0]),
        ("<code>\ndef area(a, b):\n    return a * b\n</code> ok", PROGRAMS[0]),
        ("```python\ndef area(a, b):\n    return a * b\n```python\narea(1, 2)\n```", PROGRAMS[0]),
        ("```python\ndef area(a, b):\n    return a * b\n```That is it.", PROGRAMS[0]),
        ("```python\nimport math\nN = 2\n```\n```python\ndef area(a, b):\n    return math.prod((a, b))\n```",
         "import math\ndef area(a, b):\n    return math.prod((a, b))"),
        ("```python\ndef two(a): return one(a)\ndef one(a): return a\nprint(two(3))\n```\nthen\n"
         "```python\ndef area(a, b):\n    return two(a) * b\n```",
         "def two(a):\n    return one(a)\ndef one(a):\n    return a\ndef area(a, b):\n    return two(a) * b"),
        ("```python\nfrom math import *\n```\n```python\ndef area(a, b):\n    return prod((a, b))\n```",
         "from math import *\ndef area(a, b):\n    return prod((a, b))"),
    ],
)  # fmt: skip
def test_code_without_fences_and_code_in_pieces(response, wanted):
    assert same(definition(response, "area"), wanted)


@pytest.mark.parametrize(
    "response", ["", " \n", "```python\n```", "<think>```python\ndef area(a, b):\n    return a * b\n```</think>"]
)
def test_nothing_is_left(response):
    assert definition(response, "area") is None and program(response) is None


@pytest.mark.parametrize(
    "start", ["N = " + "+".join(["[1]"] * 330), "N = 0x" + "f" * 3_700, "if a: N = 0\n" + "elif b: N = 1\n" * 1_200]
)
def test_no_other_block_is_too_deep_or_too_long_to_look_through(start):
    other, asked = (f"```python\n{each}\n```\n" for each in (start, "def area(a, b):\n    return a * N"))
    assert same(definition(other + asked, "area"), "def area(a, b):\n    return a * N")
    assert definition(f"```python\n{start}\n```", "area").strip() == start.strip()


def test_thinking_that_ends_in_a_string_of_its_own_program_is_no_answer():
    response = "<think>```python\nx = 1\n</think>\n```python\ndef area(a, b):\n    return a + b\n```"
    assert same(definition(response, "area"), OTHER)


@pytest.mark.parametrize(("response", "wanted"), table(__file__, "scripts"))
def test_a_script_is_the_last_block_that_reads(response, wanted):
    assert program(response) == wanted


HEAD = 'from typing import List\n\n\ndef area(a: int, b: int) -> int:\n    """The area."""\n'


@pytest.mark.parametrize("body", table(__file__, "bodies"))
def test_a_body_goes_on_with_the_head(body):
    response = f"```python\n{body}\n```\nUse it:\n```python\nprint(area(1, 2))\n```"
    gold = Calls(entry="area", cases={}, prelude=HEAD, begun=True)
    prelude, source = assembled(gold, definition(response, "area", begun=True))
    space: dict = {}
    exec(prelude + source, space)
    assert space["area"](2, 3) == 6


@pytest.mark.parametrize(("response", "language", "content"), table(__file__, "blocks of values"))
def test_blocks_of_values(response, language, content):
    (found,) = blocks(response)
    assert (found.language, found.content) == (language, content)


@pytest.mark.parametrize(("response", "wanted"), table(__file__, "values in one line"))
def test_values_in_one_line_and_in_latex(response, wanted):
    assert stated_value(response, VALUE) == wanted

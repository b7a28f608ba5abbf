"""Writes the generated parts of the documentation, and finds broken links.

python -m tools.docs    # docs/configuration.md, and the tables of the plan in README.md and docs/hardware.md

A generated table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import typing
from collections.abc import Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any

from azr.cli.main import dispatch
from azr.config import Config
from azr.config_tree import ConfigOption, config_options, leaves
from azr.launch import recipes

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "docs" / "configuration.md"
README_RECIPES = (
    "azr_0b5", "azr_coder1b5_lora", "azr_qwen3_4b_lora", "azr_coder1b5", "azr_qwen3_4b_ppo", "azr_coder7b_ppo",
    "azr_coder14b_ppo",
)  # fmt: skip

_HEAD = """# Configuration

Every option of a run, with its default, its values and its meaning. This page is made from the docstrings in
[azr/config.py](../azr/config.py) by `python -m tools.docs`; a test compares. The defaults are those of an empty config:
`azr run RECIPE --help` prints those of a recipe.

Set an option on the command line (`--run.steps 100`), in a YAML file that builds on a recipe, or in your own recipe.
A switch needs no value: `--run.deterministic` turns it on, `--run.no-deterministic` off. Lists are written with
commas, and `none` empties one. The [quickstart](quickstart.md#change-an-option) has an example of each.
"""


def main() -> None:
    CONFIGURATION.write_text(configuration(), encoding="utf-8")
    for path, name, table in plan_tables():
        path.write_text(_replaced(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")


def pages() -> list[Path]:
    """Return every page that describes the project as it is; the log describes it as it was."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "data").glob("*/*.md")])


def configuration() -> str:
    """Return docs/configuration.md."""
    now, lines, section = leaves(Config()), [_HEAD], ""
    about = {name: _about(cls) for name, cls in typing.get_type_hints(Config).items() if isinstance(cls, type)}
    for option in config_options().values():
        if section != (section := option.path.partition(".")[0]):
            lines += [f"\n## {section}\n", *([f"{about[section]}\n"] if about[section] else [])]
            lines += ["| option | default | values | meaning |", "|---|---|---|---|"]
        lines.append(_row(option, now))
    return "\n".join(lines) + "\n"


def _about(section: type) -> str:
    """Return the docstring of a section, unless it is the signature that a dataclass has without one."""
    text = " ".join((section.__doc__ or "").split())
    return "" if text.startswith(f"{section.__name__}(") else _linked(text)


def _row(option: ConfigOption, now: Mapping[str, Any]) -> str:
    value = now.get(option.path, option.schema.get("default"))
    only = f" Only with {' or '.join(f'`{owner}`' for owner in option.owners)}." if option.owners else ""
    cells = (f"`{option.flag}`", _default(value), option.accepts, _linked(option.doc) + only)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _linked(text: str) -> str:
    return re.sub(r"`?docs/(\w+)\.md`?", r"[\1](\1.md)", text)


def _default(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value)) or None
    return "none" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def plan_tables() -> Iterator[tuple[Path, str, str]]:
    """Yield page, name and text of each table that `azr recipes` fills."""
    listed = {each["name"]: each for each in map(json.loads, _printed("recipes", "--json").splitlines())}
    yield ROOT / "README.md", "plan", _recipe_table([listed[name] for name in README_RECIPES])
    by_size = sorted(listed.values(), key=lambda each: (each["gpus"] * each["gpu_memory_gib"], each["name"]))
    yield ROOT / "docs" / "hardware.md", "plan", _recipe_table(by_size)


def _recipe_table(listed: list[dict[str, Any]]) -> str:
    lines = ["| GPUs | recipe | model | GiB of a GPU | s a step |", "|---|---|---|---:|---:|"]
    for each in listed:
        gpus = f"{each['gpus']} x {each['gpu_memory_gib']:.0f} GB"
        model = f"`{each['model']}`"
        lines.append(f"| {gpus} | `{each['name']}` | {model} | {each['memory_gib']:.1f} | {each['step_s']:.0f} |")
    return "\n".join(lines)


def _printed(*argv: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        dispatch(argv)
    return out.getvalue()


def table_in(text: str, name: str) -> str:
    """Return the generated table of this name."""
    return _split(text, name)[1].strip()


def _replaced(text: str, name: str, table: str) -> str:
    before, _, after = _split(text, name)
    return f"{before}\n\n{table}\n\n{after}"


def _split(text: str, name: str) -> tuple[str, str, str]:
    """Split a page before and behind what stands between the marks of a generated table."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, between, after = re.split(f"(?<={begin})(.*?)(?={end})", text, flags=re.DOTALL)
    return before, between, after


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command line in a page's bash blocks, without comments and variables set before it."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = (line for block in blocks for line in block.replace("\\\n", " ").splitlines())
    words = (shlex.split(line, comments=True) for line in lines)
    plain = (list(dropwhile(re.compile(r"[A-Za-z_]+=").match, line)) for line in words)
    return [line for line in plain if line]


def recipe_calls(page: Path) -> list[tuple[str, list[str]]]:
    """Return recipe and further words of every command of a page that runs one of `azr recipes`."""
    found = []
    for program, *words in commands(page):
        if words[:1] == ["run"] and program.endswith("azr"):
            found.append((words[1], words[2:]))
        elif words[:1] == ["-m"] and words[1].startswith("playground."):
            found.append((words[1].removeprefix("playground."), words[2:]))
    return [(name, rest) for name, rest in found if name in recipes() and "--help" not in rest]


def options(page: Path) -> set[str]:
    """Return the options of the config that a page names, such as ``--run.steps``; of other projects' names none."""
    text = page.read_text(encoding="utf-8")
    if page.stem == "coming_from":
        text = re.sub(r"^(\|[^|]*\|).*$", r"\1", text, flags=re.MULTILINE)
    named = re.findall(r"(?<![\w-])--[a-z]+\.[a-z0-9_.-]*[a-z0-9]", text)
    return {option.replace("_", "-") for option in named}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page whose file or heading is not there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(link)
    return broken


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


if __name__ == "__main__":
    main()

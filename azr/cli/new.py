"""Write an installable package with a kind of self-play of your own into a new folder: a small kind that works, for
you to change, its entry point, and the tests that every kind has to pass. docs/extending.md says what comes next."""

from __future__ import annotations

import importlib.util
import keyword
from collections.abc import Sequence
from pathlib import Path

from azr.cli.options import Parser
from azr.errors import UserError
from azr.files import atomic_folder
from azr.plugins import NAME, TAGS, own
from azr.registry import find_entry
from azr.tasks.prompts import LABELS
from azr.tasks.registry import KINDS

TEMPLATE = Path(own.__file__).parent / "template"
"""A package that works as it is; these two names in its texts and of its files become the user's."""
_NAME, _CLASS = "kind_name", "KindName"
_ITS_LABELS = ("numbers", "ascending")


def main(argv: Sequence[str]) -> int:
    """Writes and returns 0. Raises UserError, and then has written nothing, for a name that cannot be a kind's, a
    folder that is not empty or cannot be written."""
    options = parser().parse(argv)
    name, folder = options.name, options.folder
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"A kind cannot be called {name!r}: take small letters, digits and '_', and no word of Python.")
    if name in KINDS or find_entry(own.KINDS, name) is not None:
        raise UserError(f"There is a kind {name} already: take another name.")
    if name in (*LABELS, *TAGS, *_ITS_LABELS):
        raise UserError(f"A kind cannot be called {name}, which prompts use for a part of a task: take another name.")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"There is a module {name} already, which the package would hide: take another name.")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there already and not an empty folder: name a new one.")
        if folder.exists() and folder.samefile("."):
            raise UserError("The working directory cannot be replaced: name a new folder in it.")
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder.absolute().parent} is not a folder, so {folder.name} cannot be written there.")
    _write(name, folder)
    print(
        f"{folder} is a package with the kind {name}. Next:\n"
        f"  pip install -e {folder}\n"
        f"  pytest {folder}\n"
        f"  azr prompts azr_14m_mini --selfplay.kinds {name}\n"
        f"  azr run azr_14m_mini --selfplay.kinds deduction,{name}"
    )
    return 0


def parser() -> Parser:
    parser = Parser("new", __doc__)
    parser.add_argument("what", choices=("kind",), metavar="kind", help="what to write")
    parser.add_argument("name", metavar="NAME", help="name of kind and package: lower-case letters, digits, '_'")
    parser.add_argument("folder", metavar="DIR", type=Path, help="new or empty folder")
    return parser


def _write(name: str, folder: Path) -> None:
    """The folder appears when it is complete. Raises UserError when it cannot be written."""
    class_name = "".join(word.capitalize() for word in name.split("_"))

    def own(text: str) -> str:
        return text.replace(_NAME, name).replace(_CLASS, class_name)

    try:
        with atomic_folder(folder) as staging:
            for file in sorted(TEMPLATE.rglob("*")):
                if file.is_file() and file.suffix in (".py", ".md", ".toml"):
                    place = staging / own(str(file.relative_to(TEMPLATE)))
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(own(file.read_text()))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from error

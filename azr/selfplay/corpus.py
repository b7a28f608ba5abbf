"""Functions of the user's own code that proposals are about; docs/corpus.md.

They are read by `ast` and never run here. A function that stands on its own, with what it needs of its file, can be
given to a proposer, who then only chooses inputs. Any may be shown to one, who takes an idea from it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from textwrap import dedent

from azr.errors import UserError
from azr.executor import static_check
from azr.prompts.codec import PromptCodec
from azr.records import CORPUS, Task
from azr.selfplay.seeds import read_lines
from azr.tasks.chains import bindings
from azr.tasks.normalize import ENTRY, bare, held_out_keys, is_program, parse, renamed, shape, written
from azr.text import parse_object

MOST_TOKENS = 300
"""Longest passage."""
_BUILTINS = frozenset(dir(builtins))
_OF_DATA = frozenset(
    name for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset) for name in dir(kind)
)
"""Attributes of plain data."""


def read_corpus(path: Path, codec: PromptCodec, held_out: Collection[str]) -> tuple[list[Task], list[str]]:
    """Return the functions of the .py files below a folder, of one such file, or of the rows of a .jsonl file (`.gz` is
    unpacked) that have Python under ``text``. A passage is a task without inputs: its program is the function, called
    f, with what it needs of its file, or empty if it cannot be played; its message the source. The second part are
    lines on how many functions there are, and on why others are left out or not played.

    ``held_out``: `held_out_keys` of programs that nothing may come near.

    Raises UserError if there is no function to show.
    """

    def is_short(text: str) -> bool:
        return len(codec.encode_text(text)) <= MOST_TOKENS

    passages: dict[str, Task] = {}
    left_out, shown_only = Counter[str](), Counter[str]()
    for file, source in _sources(path):
        tree = parse(source)
        if tree is None:
            left_out["in files that Python cannot read"] += 1
            continue
        lines, module = re.split("\r\n|\r|\n", source), _Module(bare(tree))
        for name, function, is_method in module.functions():
            alone = _called_f([function], function.name)
            if alone is None or not is_program(alone):
                left_out["without arguments"] += 1
                continue
            if not is_short(alone):
                left_out[f"longer than {MOST_TOKENS} tokens"] += 1
                continue
            program, why = ("", "methods") if is_method else module.playable(function)
            if program and not is_short(program):
                program, why = "", "too long with what they need"
            its_shape = shape(alone)
            stated = dedent("\n".join(lines[function.lineno - 1 : function.end_lineno]))
            if any(key in held_out for text in (alone, program or alone) for key in held_out_keys(text)):
                left_out["near programs of an evaluation or of the prompts"] += 1
            elif codec.holds_control_tokens(stated, program):
                left_out["with control tokens of the model"] += 1
            elif its_shape in passages:
                left_out["equal to others up to names and constants"] += 1
            else:
                id, shown = f"{CORPUS}:{file}:{name}", stated if is_short(stated) else alone
                passages[its_shape] = Task(
                    id=id, kind=CORPUS, program=program, inputs=(), outputs=(), fingerprint=its_shape, message=shown
                )
                shown_only.update([why] if not program else [])
    if not passages:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "there is no function in it"
        raise UserError(
            f"selfplay.corpus={path} has nothing to show ({why}): give a folder with .py files, or a .jsonl file whose "
            "rows have Python under text."
        )
    playable, found = sum(bool(each.program) for each in passages.values()), len(passages) + left_out.total()
    notes = [f"corpus: {found} functions, {len(passages)} of them for proposers to see, {playable} to be played"]
    for what, reasons in (("left out", left_out), ("not to be played", shown_only)):
        if reasons:
            most = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(5))
            notes.append(f"corpus, {what}: {most}")
    return [*passages.values()], notes


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and texts of files; files of folders whose name begins with a dot are passed over."""
    if not path.exists():
        raise UserError(f"selfplay.corpus={path} does not exist: give a folder with .py files, or a .jsonl file.")
    if path.suffix in (".jsonl", ".gz"):
        for number, line in read_lines(path):
            try:
                text = parse_object(line).get("text")
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}; each line must be an object with text.") from error
            if not isinstance(text, str):
                raise UserError(f"{path}, line {number} has no text: each line must be an object with Python as text.")
            yield f"{path.name}-{number}", text
        return
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        inside = file.relative_to(path) if path.is_dir() else Path(file.name)
        if file.is_file() and not any(part.startswith(".") for part in inside.parts):
            try:
                yield inside.as_posix(), file.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise UserError(
                    f"{file} of selfplay.corpus cannot be read ({error.strerror}): let it be read."
                ) from error


class _Module:
    """A file of the corpus, without docstrings and annotations."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._bound: dict[str, ast.stmt] = {}
        """What binds the names at its top: imports, constants, functions and classes."""
        for node in tree.body:
            match node:
                case ast.Import(names=aliases):
                    self._bound |= {each.asname or each.name.partition(".")[0]: ast.Import([each]) for each in aliases}
                case ast.ImportFrom(module=module, names=aliases, level=level):
                    self._bound |= {each.asname or each.name: ast.ImportFrom(module, [each], level) for each in aliases}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    self._bound[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if node.value:
                    self._bound[name] = node

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef, bool]]:
        """Yield functions at the top and in classes, with dotted names and whether they are methods of an object."""
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef):
                first = [each.arg for each in (*node.args.posonlyargs, *node.args.args)][:1]
                yield node.name, node, first in (["self"], ["cls"])  # classes are given it elsewhere
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and not each.name.startswith("__"):
                        marks = [mark.id for mark in each.decorator_list if isinstance(mark, ast.Name)]
                        if is_static := marks == ["staticmethod"]:
                            each.decorator_list.clear()
                        yield f"{node.name}.{each.name}", each, not is_static

    def playable(self, function: ast.FunctionDef) -> tuple[str, str]:
        """Return the program of a function with what it needs of the file; or an empty one and why there is none."""
        if why := _wants_more(function):
            return "", why
        needed: dict[int, ast.stmt] = {}
        waiting: list[ast.stmt] = [function]
        used = {ENTRY} - {function.name}
        while waiting:
            node = waiting.pop()
            if id(node) in needed:
                continue
            needed[id(node)] = node
            own = {*bindings(node)}
            read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if used & (read | own):
                return "", f"have another {ENTRY}"
            for name in sorted(read - own - _BUILTINS):
                needs = self._bound.get(name)
                if needs is None:
                    return "", "need names that the top of their file does not bind"
                if isinstance(needs, ast.Import | ast.ImportFrom) and (why := _refused(needs)):
                    return "", why
                waiting.append(needs)
        ordered = sorted(needed.values(), key=lambda each: getattr(each, "lineno", 0))  # imports have none here
        program = _called_f(ordered, function.name)
        if program is None or not is_program(program):
            return "", "cannot be written as a program"
        _, reasons = static_check.load(program)
        return ("", reasons[0].partition(": ")[2]) if reasons else (program, "")


def _wants_more(function: ast.FunctionDef) -> str:
    """Return why plain data alone cannot be what a function takes, or is not what it returns; empty if it may be."""
    arguments = function.args
    given = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    inside = [each for statement in function.body for each in ast.walk(statement)]
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside):
        return "generators"
    if not any(isinstance(each, ast.Return) and each.value is not None for each in inside):
        return "return nothing"
    for each in inside:
        match each:
            case ast.Call(func=ast.Name(id=name)) if name in given:
                return "call what they are given"
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in given and attribute not in _OF_DATA:
                return "read attributes that plain data has not"
    return ""


def _refused(needed: ast.Import | ast.ImportFrom) -> str:
    module = needed.names[0].name if isinstance(needed, ast.Import) else "." * needed.level + (needed.module or "")
    return "" if module in static_check.ALLOWED_MODULES else f"import {module.partition('.')[0] or 'of their package'}"


def _called_f(nodes: Sequence[ast.stmt], entry: str) -> str | None:
    """Return the text of a module in which a function has the name of a program's entry."""
    text = written(ast.Module([*nodes], []))
    return None if text is None else written(renamed(ast.parse(text), {entry: ENTRY}))

"""Extract programs from responses: fenced blocks, or lines of code between prose, and the choice among several."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from azr.graders import extraction
from azr.tasks.blocks import PYTHON, Block, blocks, parse, parses
from azr.tasks.normalize import written

_THOUGHT, _MASKED_THOUGHT = "</think>", "\0/think>"
_TAGGED = re.compile(
    r"\[(?:PYTHON|CODE|BEGIN)\](.*?)(?:\[/(?:PYTHON|CODE)\]|\[DONE\]|\Z)|<(?:code|python)>(.*?)(?:</(?:code|python)>|\Z)",
    re.DOTALL,
)
_READS = re.compile(r"\binput\b|\bstdin\b|\bfileinput\b|\bopen\(\s*0\b|\bos\.read\b")
_RETURNS = re.compile(r"^[ \t]*(?:return|yield|raise)\b", re.MULTILINE)
_BEGINS_STATEMENT = re.compile(
    r"@|[)\]}]|(?:async|def|class|if|for|while|try|with|import|from)\b|[\w.\[\]'\", ()]+ ?[-+*/]?="
)
_LOOKS_LIKE_CODE = re.compile(
    r"@\w|(?:async |def |class |import |from \S+ import|return\b)|(?:for|while|if|with|elif|except)\b.*:\s*$"
    r"|(?:try|else|finally):|[\w.]+\(|[\w.\[\], ]+ ?[-+*/%]?= "
)
_CONTINUES = re.compile(r"[)\]}]|(?:else|elif|except|finally)\b")
_MOST_MERGED = 16
"""Longest unfenced statement that is recognised, counted in lines without indentation."""
_MOST_LINES, _MOST_CHARS, _MOST_TRIES = 1_000, 2**15, 2_000
"""Limits of the search for code without fences."""
_MARKS = " \t>`"
MOST_BLOCKS = 64
"""Earlier blocks of a response are not read."""


def reply(response: str) -> str:
    """Return the response without its thinking; the tag that ends it does not count inside a program."""
    parts = response[-extraction.MAX_RESPONSE :].replace("\r\n", "\n").split(_THOUGHT)
    first = len(parts) - 1
    while first > 0 and len(parts) - first < 8 and _is_in_program(parts, first):
        first -= 1
    return extraction.reply(_MASKED_THOUGHT.join(parts[first:])).replace(_MASKED_THOUGHT, _THOUGHT)


def _is_in_program(parts: Sequence[str], at: int) -> bool:
    """Whether the tag before a part stands in a block of valid Python."""
    before, after = parts[at - 1], _THOUGHT.join(parts[at:])
    text, place = before + _THOUGHT + after, before.count("\n")
    tagged = text.split("\n")[place].strip(_MARKS)
    holding = (block for block in blocks(text) if tagged in (line.strip(_MARKS) for line in block.content.split("\n")))
    return any(block.language in PYTHON | {""} and parses(block.content) for block in holding)


def program(response: str) -> str | None:
    """Return the script of a response; None if it is empty. It is the last Python block that reads its input, else the
    last Python block, else the last block, else the lines of code, else the whole text."""
    text = reply(response)
    if not text.strip():
        return None
    found = _of_python(_found(text))
    if not found and not parses(text):
        found = _runs(text)
    reading = [each for each in found if _READS.search(each) and parses(each)]
    chosen = (reading or found or [text])[-1]
    return with_borrowed(chosen, found) if chosen.strip() else None


def definition(response: str, entry: str, *, begun: bool = False) -> str | None:
    """Return the program of a response that defines a function or a method of ``Solution``; None if it is empty.

    It is the last block that defines ``entry``, with the definitions that it lacks from the others, else the lines of
    code that do, else the last block, else the whole text. ``begun``: the answer may be the function's body.
    """
    text = reply(response)
    if not text.strip():
        return None
    found = _found(text)
    python = _of_python(found)
    every = [block.content for block in found]
    for group in (python, every, [text] if not found and parses(text) else _runs(text)):
        if defining := [each for each in group if defines(each, entry)]:
            return with_borrowed(defining[-1], group)
    bodies = [each for each in python if _RETURNS.search(each)] if begun else []
    chosen = (bodies or python or [text])[-1]
    return chosen if chosen.strip() else None


def _found(text: str) -> list[Block]:
    """Return the fenced blocks; if there are none, the text between tags such as ``[PYTHON]``."""
    tagged = ((found[1] or found[2] or "").strip("\n") for found in _TAGGED.finditer(text))
    found = (blocks(text) or [Block("python", each) for each in tagged if each.strip()])[-MOST_BLOCKS:]
    for at, block in enumerate(found):
        flat = textwrap.dedent(block.content)
        if flat != block.content and not parses(block.content) and parses(flat):
            found[at] = replace(block, content=flat)  # it was indented as a whole
    return found


def _of_python(found: Sequence[Block]) -> list[str]:
    """Return the contents of the Python blocks, else of all blocks."""
    return [each.content for each in found if each.language in PYTHON] or [each.content for each in found]


def defines(source: str, entry: str) -> bool:
    """Whether a program defines the name at module level, or as a method of its class ``Solution``."""
    tree = parse(source)
    if tree is None:
        # A head alone is quoted from the question and no attempt.
        return f"def {entry}" in source and not parses(f"{source.rstrip()}\n    pass")
    for node in tree.body:
        if entry in bound_names(node):
            return True
        methods = node.body if isinstance(node, ast.ClassDef) and node.name == "Solution" else []
        if any(entry in bound_names(each) for each in methods):
            return True
    return False


def bound_names(statement: ast.AST) -> set[str]:
    """Return the names that a statement binds in its module, also in branches; ``*`` for a star import."""
    bound, nodes = set[str](), [statement]
    while nodes:  # without recursion: each `elif` of a chain is one level deeper
        match node := nodes.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.AnnAssign(value=None):
                pass
            case ast.stmt() | ast.ExceptHandler():
                nodes += ast.iter_child_nodes(node)
            case _:
                names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
                bound |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return bound


def with_borrowed(source: str, others: Sequence[str]) -> str:
    """Return the program after the definitions and imports that it lacks, taken from other blocks of the response."""
    tree = parse(source)
    if tree is None or "__future__" in source:
        return source
    wanted = _lacking(tree)
    kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign
    trees = (parse(other) or ast.Module([], []) for other in others if other is not source and wanted)
    offered = [statement for tree in trees for statement in tree.body if isinstance(statement, kinds)]
    names = {name: statement for statement in offered for name in bound_names(statement)}
    stars = [each for each in offered if "*" in bound_names(each)]
    taken = set[ast.stmt]()
    while wanted:
        known = {names[name] for name in wanted if name in names}
        fresh = known.union(stars if wanted - names.keys() else ()) - taken
        taken |= fresh
        wanted = set[str]().union(*(_lacking(ast.Module([each], [])) for each in fresh))
    borrowed = [text for each in offered if each in taken and (text := written(each)) is not None]
    return "\n".join([*borrowed, source])


def _lacking(tree: ast.Module) -> set[str]:
    """Return the names that a program reads and never binds."""
    read, bound = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.stmt():
                bound |= bound_names(node) if isinstance(node, _BINDING) else set()
    return read - bound - set(dir(builtins))


_BINDING = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom


def _runs(text: str) -> list[str]:
    """Return runs of code lines between prose; none if a line looks like code and does not parse."""
    pieces: list[list[str]] = []
    for line in text[:_MOST_CHARS].split("\n")[:_MOST_LINES]:
        indented = line[:1] in (" ", "\t") or not line.strip() or _CONTINUES.match(line)
        if pieces and (indented or pieces[-1][-1].startswith("@")):
            pieces[-1].append(line)
        else:
            pieces.append([line])
    runs: list[list[str]] = [[]]
    at = tries = 0
    while at < len(pieces) and tries < _MOST_TRIES:
        count, tried = _statement(pieces, at)
        tries += tried
        if count:
            runs[-1] += [line for piece in pieces[at : at + count] for line in piece]
        elif _LOOKS_LIKE_CODE.match(pieces[at][0]) and not parses(pieces[at][0]):
            return []
        elif runs[-1]:
            runs.append([])
        at += count or 1
    return ["\n".join(run) for run in runs if run]


def _statement(pieces: Sequence[Sequence[str]], at: int) -> tuple[int, int]:
    """Return how many pieces form a statement of code (0 for prose), and the number of tries."""
    most = _MOST_MERGED if _BEGINS_STATEMENT.match(pieces[at][0]) else 1
    lines: list[str] = []
    tried = 0
    for piece in pieces[at : at + most]:
        lines += piece
        tried += 1
        if tree := parse("\n".join(lines)):
            # ``Done``, ``3`` and ``Output: x`` are prose that parses.
            values = [each.value for each in tree.body if isinstance(each, ast.Expr)]
            declared = [each.value for each in tree.body if isinstance(each, ast.AnnAssign)]
            is_prose = None in declared or not all(isinstance(each, ast.Call) for each in values)
            return (0 if is_prose else tried), tried
    return 0, tried

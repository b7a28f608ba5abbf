"""Find the value that a response states: after ``[ANSWER]``, in a block, in a box, or in its last line."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from azr import values
from azr.graders import extraction
from azr.graders.code_blocks import MOST_BLOCKS, Block, blocks, parse
from azr.tasks.normalize import written

_MAX_CHARS, _MAX_LINE, _MAX_TRIES = 2**13, 2_000, 50
"""Longest value, longest last line that is read, and most places of it at which a value is looked for."""
_ON_ONE_LINE = re.compile(
    r"(?<!['\"`])```(?:(output|input|python)\b[ \t]*|(?!output\b|input\b|python\b))((?=[^`\n]*[\w'\"\[({])[^`\n]+)```"
)
_WRAPPED = re.compile(r"\\(?:text|texttt|mathtt|mathrm|textbf|mathbf)\s*\{(.*)\}", re.DOTALL)
_ESCAPED = re.compile(r"\\([{}_#$%&])")
_UNQUOTED = re.compile(r"(?=.*[^\W\d_])[\w.+-](?:[^\n()\[\]{}<>=]*[^\n()\[\]{}<>=.?:])?")
"""A line that may be a string without its quotes: no brackets, and no sentence."""
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^\n]+?)(?<!`)\1(?![`='\"])")
_NAMED = {
    "output": re.compile(r"\b(?:output|outputs|returns?|returned|result|answer|value|assert)\b|==", re.IGNORECASE),
    "input": re.compile(r"\b(?:input|arguments?|call(?:ed)?|answer|assert)\b|==", re.IGNORECASE),
}
"""What a line that states the value names."""
_STATES = re.compile(r"\b(?:is|are|be|returns|outputs)\b|:")
"""What stands before a value on a line."""
_ANSWER_NAMES = {
    "output": ("output", "result", "answer", "return_value", "returned_value", "value"),
    "input": ("input", "inputs", "answer", "args", "arguments"),
}


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """Gold of a question about a program: an input and its output."""

    program: str
    """Defines ``f``, or the function that ``entry`` names."""
    asked: Literal["output", "input"]
    input: str
    """Argument text; if the input is asked for, one of many that are right."""
    output: str
    """Value text."""
    entry: str = "f"


def stated_value(response: str, gold: ProgramValue) -> str | None:
    """Return the value or the argument text that a response states; None if there is none.

    The order is that of docs/evaluation.md: ``[ANSWER]``, the last labelled block, the last box, a short answer as a
    whole, the last line, and the last block.
    """
    text = extraction.reply(response)
    _, tagged, answer = text.rpartition("[ANSWER]")
    if tagged:
        answer = answer.partition("[/ANSWER]")[0]
        return value_in(next((block.content for block in blocks(answer)), answer), gold, in_its_place=True)
    text = _ON_ONE_LINE.sub(lambda found: f"\n```{found[1] or ''}\n{found[2].strip(' =:')}\n```\n", text)
    lines, found = text.split("\n"), [block for block in blocks(text)[-MOST_BLOCKS:] if block.content.strip()]
    if _is_cut_off(found, text):
        lines, found = lines[: found[-1].lines.start], found[:-1]
    if labelled := [block for block in found if block.language == gold.asked]:
        return _block_value(labelled[-1].content, gold)
    if (box := extraction.last_box(text)) is not None:
        return value_in(_without_latex(box), gold)
    if not found and text.strip():
        whole = value_in(text, gold)
        if whole is None and "</answer>" in response:
            whole = _unquoted(text.strip(), gold)
        if whole is not None:
            return whole
    stated = _on_line(_last("\n".join(lines[found[-1].lines.stop :] if found else lines)), gold)
    if stated is not None or not found:
        return stated
    before = _last("\n".join(lines[: found[-1].lines.start + 1]).rpartition("```")[0])
    is_other = _NAMED["input" if gold.asked == "output" else "output"].search(before)
    return _block_value(found[-1].content, gold) if _NAMED[gold.asked].search(before) or not is_other else None


def _last(passage: str) -> str:
    """Return the last line that says something; empty if there is none."""
    return passage.rstrip().rpartition("\n")[2]


def _is_cut_off(found: Sequence[Block], text: str) -> bool:
    """Whether the last block ends with the text while it repeats an earlier one."""
    if not found or found[-1].lines.stop <= text.count("\n") or text.rstrip().endswith(("```", "~~~")):
        return False
    last = found[-1].content.strip()
    return any(block.content.strip().startswith(last) for block in found[:-1])


def _on_line(line: str, gold: ProgramValue) -> str | None:
    """Return the value of a line such as ``Output: 3`` or "So the call returns `3`."."""
    if len(line) > _MAX_LINE:
        return None
    texts = [line]
    if _NAMED[gold.asked].search(line):
        texts += [code for _, code in _CODE.findall(line)[: -_MAX_TRIES - 1 : -1]]
        texts += [line[each.end() :] for each in islice(_STATES.finditer(line), _MAX_TRIES)]
    stripped = filter(None, (text.lstrip(" *_$`").rstrip(" .!*_$`") for text in texts))
    return next((value for text in stripped if (value := value_in(text, gold)) is not None), None)


def value_in(text: str, gold: ProgramValue, *, in_its_place: bool = False) -> str | None:
    """Return the value that a text consists of; None if it is anything else. A call such as ``f(1)`` gives its
    arguments, an assertion ``f(1) == 2`` the side that is asked for, and an assignment its right side.
    ``in_its_place``: the text stands where the prompt has the answer, so the other side may be wrong."""
    text = text.strip().strip("`").strip()
    first, _, rest = text.partition("\n")
    text = re.sub(r"\Aassert\s+", "", (rest if first.strip() == gold.asked else text).strip())
    text = re.sub(rf"\A({gold.entry}\(.*\))\s*(?:=(?!=)|->|=>|\u2192)\s*", r"\1 == ", text)
    if len(text) > _MAX_CHARS:
        return None
    if "\n" in text and "==" in text.partition("\n")[0] and _expression(text) is None:
        text = text.partition("\n")[0]  # a continued assertion, and what the model wrote after it
    if in_its_place and gold.asked == "input" and isinstance(_expression(stated := text.partition("==")[0]), ast.Call):
        text = stated.strip()
    if gold.asked == "input" and (named := _keywords(text, gold)) is not None:
        return named
    assigned = re.fullmatch(r"(\w+)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    if assigned and assigned[1] in _ANSWER_NAMES[gold.asked]:
        text = assigned[2]
    tree = _expression(text)
    if isinstance(tree, ast.Call) and _called(tree) == "print" and len(tree.args) == 1:
        text, tree = ast.get_source_segment(text, tree.args[0]) or "", tree.args[0]
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        call, returned = tree.left, ast.get_source_segment(text, tree.comparators[0]) or ""
        if not isinstance(call, ast.Call) or _called(call) != gold.entry:
            return None
        is_other_right = _is_asked_call(call, gold) if gold.asked == "output" else _same(returned, gold.output)
        if not (in_its_place or is_other_right):
            return None
        text, tree = returned if gold.asked == "output" else ast.get_source_segment(text, call) or "", call
    if gold.asked == "output":
        return text if is_data(text) else None
    return _arguments(text, tree, gold)


def _arguments(text: str, tree: ast.expr | None, gold: ProgramValue) -> str | None:
    """Return the text between the parentheses of a call, or the text that could stand there."""
    if isinstance(tree, ast.Call) and _called(tree) in (gold.entry, "input"):
        if _called(tree) == "input" and not (tree.args or tree.keywords):
            return None
        text = text.partition("(")[2].rpartition(")")[0]
    call = _expression(f"_({text}\n)")
    if not isinstance(call, ast.Call) or _called(call) != "_" or not _is_input(call, gold.entry):
        return None
    known, takes_any = _parameters(gold)
    return text if takes_any or {keyword.arg for keyword in call.keywords} <= {*known, None} else None


def _keywords(text: str, gold: ProgramValue) -> str | None:
    """Return lines such as ``a = 1`` as keyword arguments, if they name parameters of the function, each once."""
    named: dict[str, str] = {}
    for line in (parse(text) or ast.Module([], [])).body:
        if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
            return None
        name, value = line.targets[0].id, ast.get_source_segment(text, line.value) or ""
        if name not in _parameters(gold)[0] or not is_data(value) or named.setdefault(name, value) != value:
            return None
    return ", ".join(f"{name}={value}" for name, value in named.items()) or None


def _block_value(content: str, gold: ProgramValue) -> str | None:
    """Return a block's value. A line without quotes that is not code is a string."""
    stated = value_in(content, gold)
    return stated if stated is not None else _unquoted(content.strip(), gold)


def _unquoted(text: str, gold: ProgramValue) -> str | None:
    """Return a string that a response states without its quotes, in quotes."""
    if not _UNQUOTED.fullmatch(text) or not isinstance(_expression(text), ast.Name | ast.Attribute | None):
        return None
    return repr(text) if gold.asked == "output" or len(_parameters(gold)[0]) == 1 else None


def _is_asked_call(call: ast.Call, gold: ProgramValue) -> bool:
    asked = _expression(f"{gold.entry}({gold.input}\n)")
    if not isinstance(asked, ast.Call):
        return True
    given, meant = (
        {name: written(value) for name, value in zip(_parameters(gold)[0], each.args, strict=False)}
        | {str(word.arg): written(word.value) for word in each.keywords}
        for each in (call, asked)
    )
    return given == meant


def _parameters(gold: ProgramValue) -> tuple[list[str], bool]:
    """Return the names of the function's parameters, positional ones first, and whether it takes others by name."""
    tree = parse(gold.program) or ast.Module([], [])
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == gold.entry]
    if not functions:
        return [], True
    given = functions[-1].args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)], given.kwarg is not None


def _without_latex(box: str) -> str:
    """Return the content of a box without LaTeX, if that makes it a Python expression."""
    if "\\" not in box or _expression(box) is not None:
        return box
    plain = _ESCAPED.sub(r"\1", wrapped[1] if (wrapped := _WRAPPED.fullmatch(box.strip())) else box)
    return box if _expression(plain) is None else plain


def _same(first: str, second: str) -> bool:
    """Whether two texts state the same value, or the same arguments."""
    try:
        return values.equal(values.parse_arguments(first), values.parse_arguments(second))
    except values.PlainDataError:
        return first.strip() == second.strip()


def is_data(text: str, read: Callable[[str], object] = values.parse) -> bool:
    """Whether a text can be read as plain data, or by `values.parse_arguments` as plain arguments."""
    try:
        read(text)
    except values.PlainDataError:
        return False
    return True


def _expression(text: str) -> ast.expr | None:
    tree = parse(text.strip())
    only = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    return only.value if isinstance(only, ast.Expr) else None


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else None


def _is_input(tree: ast.Call, entry: str) -> bool:
    """Whether an argument list is only data and expressions: it must not patch, search with or name the program."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and node is not tree.func}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    reaches = names & {entry, "_entry", "globals", "locals", "exec", "eval", "vars"} or any(
        isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)
        or (isinstance(node, ast.Attribute) and node.attr.startswith("_"))
        for node in nodes
    )
    return not reaches and all(name in bound or hasattr(builtins, name) for name in names)

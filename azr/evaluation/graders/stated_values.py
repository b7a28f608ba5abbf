"""Find the value that a response states as its answer: in a block, in a box, or in a sentence that concludes it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from azr import values
from azr.evaluation.graders import extraction
from azr.evaluation.graders.code_blocks import MOST_BLOCKS, Block, blocks, parse
from azr.tasks.normalize import written

_MAX_CHARS, _MAX_LITERAL = 2**13, 2**10
"""Longest value, and longest one in a sentence."""
_MAX_PASSAGE, _MAX_SENTENCE, _MAX_CALLS = 20_000, 2_000, 50
"""Of a passage only the end is searched, and in it no longer sentence; calls that are searched in a line."""
_ON_ONE_LINE = re.compile(
    r"(?<!['\"`])```(?:(output|input|python)\b[ \t]*|(?!output\b|input\b|python\b))((?=[^`\n]*[\w'\"\[({])[^`\n]+)```"
)
_WRAPPED = re.compile(r"\\(?:text|texttt|mathtt|mathrm|textbf|mathbf)\s*\{(.*)\}", re.DOTALL)
_ESCAPED = re.compile(r"\\([{}_#$%&])")
_UNQUOTED = re.compile(r"(?=.*[^\W\d_])[\w.+-](?:[^\n()\[\]{}<>=]*[^\n()\[\]{}<>=.?:])?")
"""A line that may be a string without its quotes: no brackets, and no sentence."""
_CODE = re.compile(r"(?<!`)(`{1,2})(?!`)([^\n]+?)(?<!`)\1(?![`='\"])")
_MASK = re.compile("\0(\\d+)\0")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=\S)")
_CLAUSE = re.compile(r",?\s+(?:and\s+)?(?:so|as|since|because|therefore|hence|thus)\s+(?=\S)")
_CLAIM = re.compile(
    r"(?:\b(?:is|are|be|was|returns?|returned|outputs|gives?|yields?|produces?|equals?|with|evaluates to)\b"
    r"|==|=>|->|[\u2192=:])[ \t]*"
    r"(?:(?:the|a|an|simply|just|also|therefore|thus|indeed|equal to|empty|following|given|single)\s+)*"
    r"(?:(?:value|string|list|integer|number|float|dictionary|dict|tuple|boolean|set|result|inputs?|arguments?)\s+)*"
    r"[*_$]{0,2}[ \t]*[*_$]{0,2}"
)
"""A verb and what may stand between it and its value."""
_CLAIMED_AFTER = re.compile(
    "\0(\\d+)\0[*_]*\\s+(?:is|was|will be)\\s+(?:then\\s+|finally\\s+)?(?:returned\\b|the\\s+(?:\\w+\\s+){0,2}"
    "(?:(?P<output>output|result)|(?P<input>input|arguments?)|(?P<asked>answer))\\b)(?!\\s+of\\s+(?:the\\s+)?\0)",
    re.IGNORECASE,
)
"""A value and the words that make it the answer."""
_HEADING = re.compile(
    r":[*_\s]*$|^[#*_\s]*(?:the\s+)?(?:final\s+)?(?:output|answer|result|input|return(?:ed)? value)[*_\s]*$",
    re.IGNORECASE,
)
"""A line whose value is on the next line."""
_CLOSING = {"[": "]", "(": ")", "{": "}", "'": "'", '"': '"'}
_LITERAL = re.compile(r"[-+]?(?:\d|\.\d)[\w.]*|True\b|False\b|None\b")
_MORE = re.compile(r"[*_]*,?\s*(?:,|\bor\b|\band\b)\s*[*_]*(?=\0|['\"\[({\d-])")
"""Another value follows."""
_ENDS = re.compile(r"[*_$]*(?:\s*(?:[.,;:!)]|$)|\s+[a-z(\0-])", re.IGNORECASE)
_NUMBER_ENDS = re.compile(
    r"[*_$]*\s*(?:[.,;:!)]|$|\b(?:as|for|because|since|which|when|given|after|here|in this|and (?:the|then|it))\b|\()"
)
_UNSURE, _OTHER_SUBJECT, _CONCLUDES = (
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for words in (
        r"if|unless|suppos\w+|assum\w+|imagine|would have|could|might|may|maybe|perhaps|either|otherwise|example|e\.g"
        r"|option|not sure|unsure|cannot|can't|instead of|rather than|unlike|wrong|incorrect|another|different"
        r"|when(?! (?:it is )?called)",
        "methods?|loops?|iterations?|conditions?|expressions?|operations?|operators?|statements?|index|element|variable",
        "therefore|thus|hence|so|finally|final|consequently|in summary|in conclusion|overall|as a result|answer",
    )
)
_DENIED = re.compile(r"(?:\b(?:not|never)\b|n't\b)[^,;:\0]*$", re.IGNORECASE)
_ASIDE = re.compile(
    r"\b(?:for|with|given|on|of)\s+(?:(?:the|this|that|these|an?|your)\s+)?(?:(?:given|provided|above)\s+)?"
    r"(?:inputs?|arguments?|calls?)\b"
    r"|\b(?:(?:for|with) which|such that|so that|that (?:will |would )?(?:return|make|lead|give|produce))\b.*?"
    r"(?=\b(?:is|are|be)\b|[:=]|$)",
    re.IGNORECASE,
)
"""Words about one side in a sentence on the other one."""
_SIDE = re.compile(
    r"\b(?:(?P<output>outputs?|returns?|returned|results?|evaluates|value)"
    r"|(?P<input>inputs?|arguments?|parameters?|call(?:ed|ing))|(?P<asked>answer))\b",
    re.IGNORECASE,
)
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
    """Return the value or the argument text that a response states; None if there is none, or several.

    The order is that of docs/evaluation.md: ``[ANSWER]``, the last labelled block, the last box, a short answer as a
    whole, then whichever comes last of the other blocks and the sentences that conclude.
    """
    text = extraction.reply(response)
    _, tagged, answer = text.rpartition("[ANSWER]")
    if tagged:
        answer = answer.partition("[/ANSWER]")[0]
        return value_in(next((block.content for block in blocks(answer)), answer), gold, in_its_place=True)
    text = _ON_ONE_LINE.sub(lambda found: f"\n```{found[1] or ''}\n{found[2].strip(' =:')}\n```\n", text)
    found = _finished(blocks(text)[-MOST_BLOCKS:], text)
    if labelled := [block for block in found if block.language == gold.asked]:
        return _block_value(labelled[-1], text, gold)
    if (box := extraction.last_box(text)) is not None:
        return value_in(_without_latex(box), gold)
    if not found and text.strip() and (whole := value_in(text, gold)) is not None:
        return whole
    if not found and "</answer>" in response and (whole := _unquoted(text.strip(), gold)) is not None:
        return whole
    return _last_statement(text, found, gold)


def _finished(found: Sequence[Block], text: str) -> Sequence[Block]:
    """Drop a last block that was cut off while it repeated an earlier one."""
    if not found or found[-1].lines.stop < text.count("\n") + 1 or text.rstrip().endswith(("```", "~~~")):
        return found
    last = found[-1].content.strip()
    return found[:-1] if any(block.content.strip().startswith(last) for block in found[:-1]) else found


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


def _block_value(block: Block, text: str, gold: ProgramValue) -> str | None:
    """Return a block's value. A line without quotes is a string, if the sentence before quotes it or it is no code."""
    content = block.content.strip()
    if (stated := value_in(content, gold)) is not None:
        return stated
    before = "\n".join(text.split("\n")[: block.lines.start + 1]).rpartition("```")[0]
    quoted = _conclusion(before, gold) if gold.asked == "output" else None
    return quoted if quoted is not None and values.parse(quoted) == content else _unquoted(content, gold)


def _unquoted(text: str, gold: ProgramValue) -> str | None:
    """Return a string that a response states without its quotes, in quotes."""
    if not _UNQUOTED.fullmatch(text) or not isinstance(_expression(text), ast.Name | ast.Attribute | None):
        return None
    return repr(text) if gold.asked == "output" or len(_parameters(gold)[0]) == 1 else None


def _last_statement(text: str, found: Sequence[Block], gold: ProgramValue) -> str | None:
    """Return the value of the last block that is introduced as the answer, or of the conclusion after it."""
    lines = text.split("\n")
    end = len(lines)
    for block in reversed(found):
        passage = "\n".join(lines[block.lines.stop : end])
        if (stated := _conclusion(passage, gold)) is not None or _claims(passage, gold):
            return stated
        opening = lines[block.lines.start].partition("```")[0]
        before = ["", *(line for line in [*lines[: block.lines.start], opening] if line.strip(" `*_"))]
        intro = _SENTENCE.split(_masked(before[-1], gold)[0].strip())[-1]
        if (side := _side(intro)) is None:
            introduces = not re.search(r"\w", passage) or _CONCLUDES.search(intro) is not None
        else:
            introduces = side in (gold.asked, "asked") and not _UNSURE.search(intro)
        if introduces and block.content.strip():
            return _block_value(block, text, gold)
        end = block.lines.start
    return _conclusion("\n".join(lines[:end]), gold)


def _side(sentence: str) -> str | None:
    """Return which side of a call a sentence is about; None if it does not say."""
    found = _SIDE.search(_ASIDE.sub(" ", sentence))
    return found.lastgroup if found else None


def _conclusion(passage: str, gold: ProgramValue) -> str | None:
    """Return the value on which the sentences of a passage agree, or which its last line concludes."""
    claims = _claims(passage, gold)
    if len(claims) > 1 and passage.endswith(claims[-1].value) and claims[-2].value.startswith(claims[-1].value):
        claims = claims[:-1]  # cut off while it repeated itself
    agreeing = [claim for claim in claims if claim.line == claims[-1].line and claim.concludes] or claims
    return agreeing[-1].value if agreeing and all(_same(each.value, agreeing[-1].value) for each in agreeing) else None


class _Claim(NamedTuple):
    line: int
    value: str
    concludes: bool


def _claims(passage: str, gold: ProgramValue) -> list[_Claim]:
    """Return what the sentences of a passage claim, without those that suppose, doubt, or have another subject."""
    found, lines = list[_Claim](), list[str]()
    for line in filter(str.strip, passage[-_MAX_PASSAGE:].split("\n")):
        if lines and _HEADING.search(lines[-1]) and value_in(line, gold) is not None:
            lines[-1] = f"{lines[-1].rstrip(' #:')}: {line.strip()}"
        else:
            lines.append(line)
    for number, line in enumerate(lines):
        masked, codes = _masked(line, gold)
        for sentence in _SENTENCE.split(masked):
            if len(sentence) > _MAX_SENTENCE or _UNSURE.search(sentence) or _OTHER_SUBJECT.search(sentence):
                continue
            last = number == len(lines) - 1 and masked.endswith(sentence)
            for index, clause in enumerate(_CLAUSE.split(sentence)):
                concludes = index > 0 or _CONCLUDES.search(clause) is not None
                closes = concludes and last and sentence.endswith(clause)
                found += [_Claim(number, value, concludes) for value in _claimed(clause, codes, gold, closes=closes)]
    if gold.asked == "input" and (named := _listed(lines, gold)) is not None:
        return [_Claim(len(lines), named, True)]
    return found


def _claimed(sentence: str, codes: Sequence[str], gold: ProgramValue, *, closes: bool) -> list[str]:
    """Return the values that a sentence claims. ``closes``: it ends the passage with a conclusion."""
    found = [
        _plain(re.sub(r"\A(?:output|result)\s*=\s*(?=\w+\(.*==)", "", code, flags=re.DOTALL), gold)
        for code in (codes[int(mask[1])] for mask in _MASK.finditer(sentence))
        if re.search(r"==|->|=>|\u2192|\bassert\b|\A\w+\s*=|\)\s*=", code)
    ]
    plain = _MASK.sub(lambda mask: codes[int(mask[1])], sentence)
    if asserted := re.search(r"\bassert\s+(.+?)[.!]?$", plain):
        found.append(value_in(asserted[1], gold))
    asides = [range(*aside.span()) for aside in _ASIDE.finditer(sentence)]
    for claim in _CLAIM.finditer(sentence):
        if claim[0].startswith("with") or not any(claim.start() in aside for aside in asides):
            found.append(_read(sentence, claim, codes, gold))
    asked = (gold.asked, "asked")
    for claim in _CLAIMED_AFTER.finditer(sentence):
        if (claim.lastgroup or "output") in asked:
            found.append(_plain(codes[int(claim[1])], gold))
    last = re.search("\0(\\d+)\0[.!*_ ]*$", sentence) if closes else None
    if last and _side(sentence) in (None, *asked) and not _MORE.search(sentence[: last.end()], last.start() - 6):
        found.append(_plain(codes[int(last[1])], gold))
    return [value for value in found if value is not None]


def _read(sentence: str, claim: re.Match[str], codes: Sequence[str], gold: ProgramValue) -> str | None:
    """Return the value after a verb, if the words before it are about what is asked for."""
    said, rest = sentence[: claim.end()], sentence[claim.end() :]
    trees = map(_expression, [codes[int(found[1])] for found in _MASK.finditer(said)][::-1])
    call = next((tree for tree in trees if isinstance(tree, ast.Call) and _called(tree) == gold.entry), None)
    if gold.asked == "input" and call is not None and sentence[: claim.start()].rstrip().endswith("\0"):
        returned = value_in(_stated_after(rest, codes), replace(gold, asked="output"))
        is_right = returned is not None and _same(returned, gold.output)
        return value_in(stated, gold) if is_right and (stated := written(call)) is not None else None
    if gold.asked == "output" and call is not None and not _is_asked_call(call, gold):
        return None
    if claim[0].startswith("with"):
        is_about = gold.asked == "input" and re.search(r"\bcalled\s*$", sentence[: claim.start()]) is not None
    else:
        sides = (gold.asked, "asked") if gold.asked == "input" or call is None else (None, gold.asked, "asked")
        is_about = _side(said) in sides and not _DENIED.search(said)
    # Another subject, as in "`s.find` returns" or "the result of `len(x)`".
    other = re.search("\0(\\d+)\0\\s*(?:\\w+\\s+)?(?:returns?|gives?|yields?|outputs|produces?|evaluates to)\\b", said)
    other = other or re.search("\\b(?:of|from|by)\\s+(?:the\\s+)?\0(\\d+)\0", said)
    if gold.asked == "output" and other is not None:
        is_about = is_about and re.match(rf"{gold.entry}(?!\w)", codes[int(other[1])]) is not None
    return _plain(_stated_after(rest, codes), gold) if is_about else None


def _stated_after(rest: str, codes: Sequence[str]) -> str:
    """Return the code or literal that a text begins with; empty if there is none, or another one follows it."""
    text = ""
    if masked := _MASK.match(rest):
        text, after = codes[int(masked[1])], rest[masked.end() :]
    else:
        if found := _LITERAL.match(rest):
            text = found[0].rstrip(".")
        elif rest[:1] in _CLOSING:
            text = _shortest(rest[:_MAX_LITERAL], _CLOSING[rest[0]], is_data)
        after = rest[len(text) :]
    ends = _NUMBER_ENDS if text[:1].isdigit() and not masked else _ENDS
    return text if ends.match(after) and not _MORE.match(after) else ""


def _listed(lines: Sequence[str], gold: ProgramValue) -> str | None:
    """Return the parameters that the last lines of a passage set, such as "- `n = 2`", as keyword arguments."""
    assigned: list[str] = []
    for line in reversed(lines[-_MAX_CALLS:]):
        codes = [code for code in _masked(line, gold)[1] if re.match(r"\w+\s*=(?!=)", code)]
        if not codes or (_UNSURE.search(line) and not re.match(r"\s*(?:[-*]|\d+\.)", line)):
            break
        assigned = codes + assigned
    return _keywords("\n".join(assigned), gold) if assigned else None


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


def _masked(text: str, gold: ProgramValue) -> tuple[str, list[str]]:
    """Return a text with inline code and calls of the function replaced by numbers between NULs, and the code."""
    codes: list[str] = []

    def mask(code: str) -> str:
        codes.append(code.strip())
        return f"\0{len(codes) - 1}\0"

    text = _CODE.sub(lambda found: mask(found[2]), text.replace("\0", " "))
    for found in reversed([*re.finditer(rf"(?<!assert )\b{gold.entry}\(", text)][-_MAX_CALLS:]):
        before, after = text[: found.start()], text[found.start() :]
        if call := _shortest(after[: len(found[0]) + _MAX_LITERAL], ")", lambda text: _expression(text) is not None):
            text = before + mask(call) + after[len(call) :]
    return text, codes


def _shortest(text: str, closing: str, is_whole: Callable[[str], bool]) -> str:
    """Return the shortest beginning up to a closing character that is whole; empty if there is none."""
    ends = [at + 1 for at, char in enumerate(text) if char == closing and at][:_MAX_CALLS]
    return next((text[:end] for end in ends if is_whole(text[:end])), "")


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


def _plain(text: str, gold: ProgramValue) -> str | None:
    """Return the value of a text in a sentence if it is nothing but data; a block may compute its arguments."""
    if not (value := value_in(text, gold) or "").strip():
        return None
    call = _expression(f"_({value}\n)") if gold.asked == "input" else None
    if not isinstance(call, ast.Call):
        return value if is_data(value) else None
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return value if all(is_data(written(each) or "") for each in given) else None


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

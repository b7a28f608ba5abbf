"""Find the value that a response states as its answer: in a block, in a box, or in a sentence that concludes it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from azr import values
from azr.evaluation.graders import extraction
from azr.evaluation.graders.code_blocks import MOST_BLOCKS, Block, blocks, parse

_MAX_CHARS = 2**13
"""Longest value."""
_MAX_PASSAGE, _MAX_SENTENCE, _MAX_CALLS = 20_000, 2_000, 50
"""Of a passage only the end is searched, and in it no longer sentence; calls that are searched in a line."""
_ON_ONE_LINE = re.compile(
    r"```(?:(output|input|python)\b[ \t]*|(?!output\b|input\b|python\b))((?=[^`\n]*[\w'\"\[({])[^`\n]+)```"
)
_WRAPPED = re.compile(r"\\(?:text|texttt|mathtt|mathrm|textbf|mathbf)\s*\{(.*)\}", re.DOTALL)
_ESCAPED = re.compile(r"\\([{}_#$%&])")
"""Characters that LaTeX escapes."""
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
_LITERAL = re.compile(r"[-+]?(?:\d|\.\d)[\w.]*|True\b|False\b|None\b")
_MORE = re.compile(r"[*_]*,?\s*(?:,|\bor\b|\band\b)\s*[*_]*(?=\0|['\"\[({\d-])")
"""Another value follows."""
_ENDS = re.compile(r"[*_$]*(?:\s*(?:[.,;:!)]|$)|\s+[a-z(\0-])", re.IGNORECASE)
_NUMBER_ENDS = re.compile(
    r"[*_$]*\s*(?:[.,;:!)]|$|\b(?:as|for|because|since|which|when|given|after|here|in this|and (?:the|then|it))\b|\()"
)
_UNSURE = re.compile(
    r"\b(?:if|unless|suppos\w+|assum\w+|imagine|would have|could|might|may|maybe|perhaps|either|otherwise|example|e\.g"
    r"|option|not sure|unsure|cannot|can't|instead of|rather than|unlike|wrong|incorrect|another|different"
    r"|when(?! (?:it is )?called))\b",
    re.IGNORECASE,
)
_DENIED = re.compile(r"(?:\b(?:not|never)\b|n't\b)[^,;:\0]*$", re.IGNORECASE)
_OTHER_SUBJECT = re.compile(
    r"\b(?:methods?|loops?|iterations?|conditions?|expressions?|operations?|operators?|statements?|index|element"
    r"|variable)\b",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:therefore|thus|hence|so|finally|final|consequently|in summary|in conclusion|overall|as a result|answer)\b",
    re.IGNORECASE,
)
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
Side = Literal["output", "input"]


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """Gold of a question about a program: an input and its output."""

    program: str
    """Defines ``f``, or the function that ``entry`` names."""
    asked: Side
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
        return value_in(next((block.content for block in blocks(answer)), answer), gold)
    text = _ON_ONE_LINE.sub(lambda found: f"\n```{found[1] or ''}\n{found[2].strip(' =:')}\n```\n", text)
    found = _finished(blocks(text)[-MOST_BLOCKS:], text)
    labelled = [block for block in found if block.language == gold.asked]
    if labelled:
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


def value_in(text: str, gold: ProgramValue) -> str | None:
    """Return the value that a text consists of; None if it is anything else.

    A call such as ``f(1)`` gives its arguments, an assertion ``f(1) == 2`` the side that is asked for, and an
    assignment its right side.
    """
    text = text.strip().strip("`").strip()
    first, _, rest = text.partition("\n")
    text = rest if first.strip() == gold.asked else text
    text = re.sub(r"\Aassert\s+", "", text.strip())
    text = re.sub(rf"\A({gold.entry}\(.*\))\s*(?:=(?!=)|->|=>|\u2192)\s*", r"\1 == ", text)
    if len(text) > _MAX_CHARS:
        return None
    if "\n" in text and "==" in text.partition("\n")[0] and _expression(text) is None:
        text = text.partition("\n")[0]  # a continued assertion, and what the model wrote after it
    if gold.asked == "input" and (named := _keywords(text, gold)) is not None:
        return named
    assigned = re.fullmatch(r"(\w+)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    if assigned and assigned[1] in _ANSWER_NAMES[gold.asked]:
        text = assigned[2]
    tree = _expression(text)
    if isinstance(tree, ast.Call) and _called(tree) == "print" and len(tree.args) == 1:
        text, tree = ast.get_source_segment(text, tree.args[0]) or "", tree.args[0]
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        return _side_of(tree, text, gold)
    if gold.asked == "output":
        return text if _is_data(text) else None
    return _arguments(text, tree, gold)


def _side_of(tree: ast.Compare, text: str, gold: ProgramValue) -> str | None:
    """Return the asked side of ``f(1) == 2`` if the other side is the question's."""
    left, right = (ast.get_source_segment(text, side) or "" for side in (tree.left, tree.comparators[0]))
    if not isinstance(tree.left, ast.Call) or _called(tree.left) != gold.entry:
        return None
    if gold.asked == "output":
        return right if _is_asked_call(tree.left, gold) and _is_data(right) else None
    return _arguments(left, tree.left, gold) if _same(right, gold.output) else None


def _arguments(text: str, tree: ast.expr | None, gold: ProgramValue) -> str | None:
    """Return the text between the parentheses of a call, or the text that could stand there."""
    if isinstance(tree, ast.Call) and _called(tree) in (gold.entry, "input"):
        if _called(tree) == "input" and not (tree.args or tree.keywords):
            return None
        text = text.strip()[text.strip().index("(") + 1 : text.strip().rindex(")")]
    call = _expression(f"_({text}\n)")
    if not isinstance(call, ast.Call) or _called(call) != "_" or not _is_input(call, gold.entry):
        return None
    signature = _signature(gold)
    takes_any = signature is None or signature.kwarg is not None
    known = takes_any or {keyword.arg for keyword in call.keywords} <= {*_parameters(gold), None}
    return text if known else None


def _keywords(text: str, gold: ProgramValue) -> str | None:
    """Return lines such as ``a = 1`` as keyword arguments, if they name parameters of the function, each once."""
    tree = parse(text)
    if tree is None:
        return None
    named: dict[str, str] = {}
    for line in tree.body:
        if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
            return None
        name, value = line.targets[0].id, ast.get_source_segment(text, line.value) or ""
        if name not in _parameters(gold) or not _is_data(value) or named.setdefault(name, value) != value:
            return None
    return ", ".join(f"{name}={value}" for name, value in named.items()) or None


def _block_value(block: Block, text: str, gold: ProgramValue) -> str | None:
    """Return the value of a block. One line without quotes is a string: as the sentence before it quotes it, or else
    if it is no code."""
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
    return repr(text) if gold.asked == "output" or len(_parameters(gold)) == 1 else None


def _last_statement(text: str, found: Sequence[Block], gold: ProgramValue) -> str | None:
    """Return the value of the last block that is introduced as the answer, or of the conclusion after it."""
    lines = text.split("\n")
    end = len(lines)
    for block in reversed(found):
        passage = "\n".join(lines[block.lines.stop : end])
        if (stated := _conclusion(passage, gold)) is not None or _claims(passage, gold):
            return stated
        opening = lines[block.lines.start].partition("```")[0]
        before = [line for line in [*lines[: block.lines.start], opening] if line.strip(" `*_")]
        if block.content.strip() and _introduces(
            before[-1] if before else "", gold, ends=not re.search(r"\w", passage)
        ):
            return _block_value(block, text, gold)
        end = block.lines.start
    return _conclusion("\n".join(lines[:end]), gold)


def _introduces(intro: str, gold: ProgramValue, *, ends: bool) -> bool:
    """Whether the line before a block says that it holds the answer. ``ends``: the response ends with the block."""
    sentence = _SENTENCE.split(_masked(intro, gold)[0].strip())[-1]
    side = _side(sentence)
    if side is None:
        return ends or _CONCLUDES.search(sentence) is not None
    return _is_about(sentence, gold) and not _UNSURE.search(sentence)


def _side(sentence: str) -> str | None:
    """Return which side of a call a sentence is about; None if it does not say."""
    found = _SIDE.search(_ASIDE.sub(" ", sentence))
    return found.lastgroup if found else None


def _is_about(sentence: str, gold: ProgramValue) -> bool:
    """Whether a sentence is about what is asked for."""
    return _side(sentence) in (gold.asked, "asked")


def _conclusion(passage: str, gold: ProgramValue) -> str | None:
    """Return the value on which the sentences of a passage agree, or which its last line concludes."""
    claims = _claims(passage, gold)
    if len(claims) > 1 and passage.endswith(claims[-1].value) and claims[-2].value.startswith(claims[-1].value):
        claims = claims[:-1]  # cut off while it repeated itself
    if not claims:
        return None
    last = [claim for claim in claims if claim.line == claims[-1].line]
    decisive = [claim for claim in last if claim.concludes]
    agreeing = decisive or claims
    return agreeing[-1].value if all(_same(claim.value, agreeing[-1].value) for claim in agreeing) else None


@dataclass(frozen=True, slots=True)
class _Claim:
    """A sentence that says what the value is."""

    line: int
    value: str
    concludes: bool


def _claims(passage: str, gold: ProgramValue) -> list[_Claim]:
    """Return what the sentences of a passage claim, without those that suppose, doubt, or have another subject."""
    found: list[_Claim] = []
    lines = _joined([line for line in passage[-_MAX_PASSAGE:].split("\n") if line.strip()], gold)
    for number, line in enumerate(lines):
        masked, codes = _masked(line, gold)
        for sentence in _SENTENCE.split(masked):
            if len(sentence) > _MAX_SENTENCE:
                continue
            if _UNSURE.search(sentence) or _OTHER_SUBJECT.search(sentence):
                continue
            last = number == len(lines) - 1 and masked.endswith(sentence)
            for index, clause in enumerate(_CLAUSE.split(sentence)):
                concludes = index > 0 or _CONCLUDES.search(clause) is not None
                closes = concludes and last and sentence.endswith(clause)
                found += [_Claim(number, value, concludes) for value in _claimed(clause, codes, gold, closes=closes)]
    if gold.asked == "input" and (named := _listed(lines, gold)) is not None:
        return [_Claim(len(lines), named, True)]
    return found


def _joined(lines: Sequence[str], gold: ProgramValue) -> list[str]:
    """Return the lines with each value on a line of its own joined to the line that introduces it."""
    joined: list[str] = []
    for line in lines:
        if joined and _HEADING.search(joined[-1]) and value_in(line, gold) is not None:
            joined[-1] = f"{joined[-1].rstrip(' #:')}: {line.strip()}"
        else:
            joined.append(line)
    return joined


def _claimed(sentence: str, codes: Sequence[str], gold: ProgramValue, *, closes: bool) -> Iterator[str]:
    """Yield the values that a sentence claims. ``closes``: it ends the passage with a conclusion."""
    for code in (codes[int(found[1])] for found in _MASK.finditer(sentence)):
        if re.search(r"==|->|=>|\u2192|\bassert\b|\A\w+\s*=|\)\s*=", code):
            value = value_in(re.sub(r"\A(?:output|result)\s*=\s*(?=\w+\(.*==)", "", code, flags=re.DOTALL), gold)
            if value is not None and _is_plain(value, gold):
                yield value
    plain = _MASK.sub(lambda found: codes[int(found[1])], sentence)
    if (asserted := re.search(r"\bassert\s+(.+?)[.!]?$", plain)) and (value := value_in(asserted[1], gold)) is not None:
        yield value
    asides = [range(*found.span()) for found in _ASIDE.finditer(sentence)]
    for claim in _CLAIM.finditer(sentence):
        if any(claim.start() in aside for aside in asides) and not claim[0].startswith("with"):
            continue
        if (value := _read(sentence, claim, codes, gold)) is not None:
            yield value
    for claim in _CLAIMED_AFTER.finditer(sentence):
        value = value_in(codes[int(claim[1])], gold)
        if value is not None and (claim.lastgroup or "output") in (gold.asked, "asked") and _is_plain(value, gold):
            yield value
    if (
        closes
        and (last := re.search("\0(\\d+)\0[.!*_ ]*$", sentence))
        and _side(sentence) in (None, gold.asked, "asked")
    ):
        value = value_in(codes[int(last[1])], gold)
        if value is not None and _is_plain(value, gold) and not _MORE.search(sentence[: last.end()], last.start() - 6):
            yield value


def _read(sentence: str, claim: re.Match[str], codes: Sequence[str], gold: ProgramValue) -> str | None:
    """Return the value after a verb, if the words before it are about what is asked for."""
    before, rest = sentence[: claim.end()], sentence[claim.end() :]
    call = _mentioned_call(before, codes, gold)
    if gold.asked == "input" and call is not None and sentence[: claim.start()].rstrip().endswith("\0"):
        returned = _value_after(rest, codes, replace(gold, asked="output"))
        return value_in(ast.unparse(call), gold) if returned is not None and _same(returned, gold.output) else None
    if call is not None and not _is_asked_call(call, gold) and gold.asked == "output":
        return None
    if claim[0].startswith("with"):
        if gold.asked == "output" or not re.search(r"\bcalled\s*$", sentence[: claim.start()]):
            return None
    elif _DENIED.search(before) or not (
        _is_about(before, gold) or (call is not None and _side(before) is None and gold.asked == "output")
    ):
        return None
    if gold.asked == "output" and _is_of_other_call(before, codes, gold):
        return None
    value = _value_after(rest, codes, gold)
    return value if value is not None and _is_plain(value, gold) else None


def _value_after(rest: str, codes: Sequence[str], gold: ProgramValue) -> str | None:
    """Return the one value that a text begins with, in code or plain."""
    if masked := _MASK.match(rest):
        text, after, ends = codes[int(masked[1])], rest[masked.end() :], _ENDS
    else:
        text = _plain_literal(rest)
        after, ends = rest[len(text) :], _NUMBER_ENDS if text[:1].isdigit() else _ENDS
    if not text or not ends.match(after) or _MORE.match(after):
        return None
    return value_in(text, gold)


def _listed(lines: Sequence[str], gold: ProgramValue) -> str | None:
    """Return the parameters that the last lines of a passage set, such as "- `n = 2`", as keyword arguments."""
    assigned: list[str] = []
    for line in reversed(lines[-_MAX_CALLS:]):
        codes = [code for code in _masked(line, gold)[1] if re.match(r"\w+\s*=(?!=)", code)]
        if not codes or (_UNSURE.search(line) and not re.match(r"\s*(?:[-*]|\d+\.)", line)):
            break
        assigned = codes + assigned
    return _keywords("\n".join(assigned), gold) if assigned else None


def _mentioned_call(text: str, codes: Sequence[str], gold: ProgramValue) -> ast.Call | None:
    """Return the last call of the function that a text mentions in code."""
    trees = (_expression(codes[int(found[1])]) for found in _MASK.finditer(text))
    calls = [tree for tree in trees if isinstance(tree, ast.Call) and _called(tree) == gold.entry]
    return calls[-1] if calls else None


def _is_of_other_call(text: str, codes: Sequence[str], gold: ProgramValue) -> bool:
    """Whether a text is about another function, as in "the result of `len(x)`" or "`s.find` returns"."""
    found = re.search("\0(\\d+)\0\\s*(?:\\w+\\s+)?(?:returns?|gives?|yields?|outputs|produces?|evaluates to)\\b", text)
    found = found or re.search("\\b(?:of|from|by)\\s+(?:the\\s+)?\0(\\d+)\0", text)
    if found is None:
        return False
    name = re.match(r"\w+", codes[int(found[1])])
    return name is None or name[0] != gold.entry


def _is_asked_call(call: ast.Call, gold: ProgramValue) -> bool:
    asked = _expression(f"{gold.entry}({gold.input}\n)")
    if not isinstance(asked, ast.Call) or ast.dump(asked) == ast.dump(call):
        return True
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    given = dict(zip(_parameters(gold), call.args, strict=False)) | named
    meant = dict(zip(_parameters(gold), asked.args, strict=False)) | {each.arg: each.value for each in asked.keywords}
    return {name: ast.dump(tree) for name, tree in given.items()} == {
        name: ast.dump(tree) for name, tree in meant.items()
    }


def _signature(gold: ProgramValue) -> ast.arguments | None:
    tree = parse(gold.program)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
    return next((each.args for each in reversed(functions) if each.name == gold.entry), None)


def _parameters(gold: ProgramValue) -> list[str]:
    """Return the names of the parameters, positional ones first."""
    signature = _signature(gold)
    if signature is None:
        return []
    return [each.arg for each in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)]


def _masked(text: str, gold: ProgramValue) -> tuple[str, list[str]]:
    """Return a text with inline code and calls of the function replaced by numbers between NULs, and the code."""
    codes: list[str] = []

    def mask(code: str) -> str:
        codes.append(code.strip())
        return f"\0{len(codes) - 1}\0"

    text = _CODE.sub(lambda found: mask(found[2]), text.replace("\0", " "))
    for found in reversed([*re.finditer(rf"(?<!assert )\b{gold.entry}\(", text)][-_MAX_CALLS:]):
        ends = [at + 1 for at in range(found.end(), min(len(text), found.end() + _MAX_CHARS // 8)) if text[at] == ")"]
        end = next((end for end in ends[:50] if _expression(text[found.start() : end]) is not None), None)
        if end is not None:
            text = text[: found.start()] + mask(text[found.start() : end]) + text[end:]
    return text, codes


def _plain_literal(text: str) -> str:
    """Return the literal that a text begins with; empty if it begins with none."""
    if found := _LITERAL.match(text):
        return found[0].rstrip(".")
    if text[:1] not in ("'", '"', "[", "(", "{"):
        return ""
    closing = {"[": "]", "(": ")", "{": "}"}.get(text[0], text[0])
    ends = [at + 1 for at, char in enumerate(text[: _MAX_CHARS // 8]) if char == closing and at]
    return next((text[:end] for end in ends[:50] if _is_data(text[:end])), "")


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


def _is_data(text: str) -> bool:
    try:
        values.parse(text)
    except values.PlainDataError:
        return False
    return True


def _is_plain(text: str, gold: ProgramValue) -> bool:
    """Whether an answer in a sentence is nothing but data; a block may compute its arguments."""
    call = _expression(f"_({text}\n)")
    if gold.asked == "output" or not isinstance(call, ast.Call):
        return _is_data(text)
    return bool(text.strip()) and all(_is_data(ast.unparse(each)) for each in _given(call))


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _expression(text: str) -> ast.expr | None:
    tree = parse(text.strip())
    only = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    return only.value if isinstance(only, ast.Expr) else None


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else None


def _is_input(tree: ast.Call, entry: str) -> bool:
    """Whether an argument list is only data and expressions: it must not patch, search with or name the program."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Name) and node.id in (entry, "_entry", "globals", "locals", "exec", "eval", "vars"):
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return False
    return all(node is tree.func or node.id in bound or hasattr(builtins, node.id) for node in names)

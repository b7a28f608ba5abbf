"""Seeded maker of small Python programs with inputs and outputs: the corpus of the project's own base model.

The set of programs is closed, so that harder ones outside of it exist; a `Domain` may have a part of it:

* one function ``f(x)``, or ``f(x, y)`` where ``y`` takes the place of one integer constant or is of the type of ``x``;
* a chain of at most `MAX_STEPS` (4) steps, each taking the value of the step before; the last is the return;
* a step is one expression of `EXPRESSIONS` (first step of ``f(x, y)``: or `BINARY`), one in-place change of
  `MUTATIONS`, one branch (a guard of `CONDITIONS`, with or without ``else``, over expressions that keep the type) or
  one single-level loop of `LOOPS`. No step holds another, except a branch its one or two expressions;
* expressions are never nested in each other; there is no while, no lambda, no helper function, no nested loop,
  no float, tuple, set or None value;
* integers in inputs are -10..30, strings one (rarely two) words of 2 to 6 lower-case letters, lists have 2 to 5
  integers or 2 to 3 words, dicts 2 or 3 one-letter keys; an output's text has at most `MAX_OUTPUT` characters.

Programs of the generator are the project's own and terminate by construction, so they run in this process.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from azr.tasks.registry import IDENTITY
from tools.pretrain.operations import (
    BINARY,
    CONDITIONS,
    CONSTANTS,
    EXPRESSIONS,
    LOOPS,
    MAY_RAISE,
    MUTATIONS,
    NUMERIC,
    Operation,
    syllables,
)

MAX_STEPS = 4
MAX_OUTPUT = 40
TYPES = {"int": 0.26, "str": 0.26, "ints": 0.34, "words": 0.1, "dict": 0.04}
"""Shares of the first argument's type."""
_TABLES = {
    "expression": EXPRESSIONS,
    "binary": BINARY,
    "condition": CONDITIONS,
    "mutation": MUTATIONS,
    "loop": LOOPS,
    "may raise": MAY_RAISE,
}
Tables = Mapping[str, Mapping[str, Sequence[Operation]]]
"""Operations by table and by the type that they act on."""


def _by_source(keep: Callable[[str, Operation], bool] = lambda table, op: True) -> Tables:
    return {
        name: {kind: [op for op in table if op.source == kind and keep(name, op)] for kind in (*TYPES, "bool")}
        for name, table in _TABLES.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Which programs are drawn, and how often."""

    step_weights: Sequence[float] = (0.56, 0.29, 0.11, 0.04)
    """Shares of programs with 1, 2, 3 and 4 steps."""
    second_arg_share: float = 0.08
    """Share of programs that may take an integer ``y`` for a constant."""
    binary_share: float = 0.10
    """Share of programs that combine ``x`` with a ``y`` of its type."""
    types: Mapping[str, float] = field(default_factory=lambda: TYPES)
    """Shares of the first argument's type."""
    tables: Tables = field(default_factory=_by_source)


ALL = Domain()
_STRAIGHT: dict[tuple[str, str], str] = {
    ("int", "int"): "add, sub, double, neg, abs, max, min",
    ("int", "ints"): "pair",
    ("str", "str"): "reverse, upper, append, prepend, drop, take, rotate, repeat",
    ("str", "int"): "len",
    ("ints", "ints"): "sort, reverse, append, prepend, drop, take, rotate, each neg, keep more",
    ("ints", "int"): "sum, max, min, first, last, len",
}
"""Hints of the operations of `straight`, by the types that they lead from and to."""


def straight(*step_weights: float) -> Domain:
    """Programs of 32 operations on integers, words and lists of integers: assignments and a ``return``, no block and no
    second argument."""

    def keep(table: str, op: Operation) -> bool:
        return table == "expression" and op.hint in _STRAIGHT.get((op.source, op.target), "").split(", ")

    types = {"int": 0.25, "str": 0.3, "ints": 0.45}
    return Domain(step_weights=step_weights, second_arg_share=0, binary_share=0, types=types, tables=_by_source(keep))


@dataclass(frozen=True, slots=True)
class ProgramTemplate:
    """A generated program that has not been given inputs."""

    source: str
    message: str
    """Names of its steps in order, without constants."""
    types: tuple[str, ...]
    """Types of the arguments."""
    operations: int
    """Steps of the chain, without a ``return`` that only hands over the value."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A program with inputs and the outputs that running it gave, all as text."""

    program: str
    message: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def is_held_out(program: str) -> bool:
    """Whether a program is kept from training: one in fifty, by a hash of its text."""
    return hashlib.blake2b(program.encode(), digest_size=4).digest()[0] % 50 == 0


def random_value(rng: random.Random, kind: str) -> Any:
    """An argument of the named type."""
    if kind == "int":
        return rng.randint(0, 12) if rng.random() < 0.5 else rng.randint(-10, 30)
    if kind == "str":
        word = syllables(rng, 2, rng.choice((4, 5, 6)))
        return f"{word} {syllables(rng, 2, 4)}" if rng.random() < 0.08 else word
    if kind == "ints":
        low, high = (0, 9) if rng.random() < 0.6 else (-9, 20)
        return [rng.randint(low, high) for _ in range(rng.choice((2, 2, 3, 3, 3, 4, 4, 5)))]
    if kind == "words":
        return [syllables(rng, 2, 4) for _ in range(rng.choice((2, 2, 3)))]
    assert kind == "dict", f"unknown type {kind}"
    keys = rng.sample("abcdeiou", rng.choice((2, 2, 3)))
    return {key: rng.randint(0, 9) for key in keys}


def compile_program(source: str) -> Callable[..., Any]:
    """The function ``f`` that a generated program defines."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["f"]


class _Chain:
    """A program while it grows, statement by statement."""

    def __init__(self, rng: random.Random, kind: str, second_arg: bool, tables: Tables) -> None:
        self.rng = rng
        self.tables = tables
        self.kind = kind
        self.value = "x"
        self.lines: list[str] = []
        self.hints: list[str] = []
        self.second_arg = second_arg
        """Whether an integer argument ``y`` is still to take the place of a constant."""

    def fill(self, op: Operation) -> str:
        if not op.constant:
            return op.template.format(v=self.value)
        constant = CONSTANTS[op.constant](self.rng)
        if self.second_arg and op.constant in NUMERIC and op.constant != "divisor":
            constant, self.second_arg = "y", False
        return op.template.format(v=self.value, c=constant)

    def pick(self, table: str, keep_type: bool = False) -> Operation:
        ops = self.tables[table][self.kind]
        if keep_type:
            ops = [op for op in ops if op.target == self.kind]
        return self.rng.choice(ops)

    def assign(self, op: Operation) -> None:
        self.lines.append(f"{self.value} = {self.fill(op)}")
        self.hints.append(op.hint)
        self.kind = op.target

    def finish(self, op: Operation) -> None:
        self.lines.append(f"return {self.fill(op)}")
        self.hints.append(op.hint)

    def mutate(self) -> None:
        op = self.pick("mutation")
        self.lines.append(self.fill(op))
        self.hints.append(op.hint)

    def loop(self) -> None:
        op = self.pick("loop")
        if self.value == "r":
            self.lines.append("x = r")
            self.value = "x"
        self.lines.extend(self.fill(op).split(";"))
        self.hints.append(f"loop {op.hint}")
        self.kind, self.value = op.target, "r"

    def branch(self) -> None:
        guard, body = self.pick("condition"), self.pick("expression", keep_type=True)
        self.lines += [f"if {self.fill(guard)}:", f"    {self.value} = {self.fill(body)}"]
        hint = f"if {guard.hint} {body.hint}"
        if self.rng.random() < 0.4:
            other = self.pick("expression", keep_type=True)
            self.lines += ["else:", f"    {self.value} = {self.fill(other)}"]
            hint += f" else {other.hint}"
        self.hints.append(hint)

    def last_is_block(self) -> bool:
        """Whether the last step was not a plain assignment, so that returning the value adds something to it."""
        return not self.lines[-1].startswith(f"{self.value} = ")

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.14 and self.tables["condition"][self.kind]:
            self.branch()
        elif choice < 0.26 and self.tables["loop"][self.kind]:
            self.loop()
        elif choice < 0.38 and self.tables["mutation"][self.kind]:
            self.mutate()
        else:
            op = self.pick("expression")
            while op.target == "bool":
                op = self.pick("expression")
            self.assign(op)


def random_template(rng: random.Random, may_raise: bool = False, domain: Domain = ALL) -> ProgramTemplate:
    """A random program; its last step may raise when ``may_raise``."""
    (kind,) = rng.choices(list(domain.types), list(domain.types.values()))
    shape = rng.random()
    second_arg = shape < domain.second_arg_share
    binary = not second_arg and shape < domain.second_arg_share + domain.binary_share
    binary = binary and bool(domain.tables["binary"][kind])
    (steps,) = rng.choices(range(1, len(domain.step_weights) + 1), domain.step_weights)
    chain = _Chain(rng, kind, second_arg, domain.tables)
    if binary and steps > 1:
        chain.assign(chain.pick("binary"))
    for _ in range(steps - 2 if binary else steps - 1):
        chain.step()
    if binary and steps == 1:
        chain.finish(chain.pick("binary"))
    elif not may_raise and steps > 1 and chain.last_is_block() and rng.random() < 0.7:
        chain.lines.append(f"return {chain.value}")
    else:
        chain.finish(chain.pick("may raise" if may_raise else "expression"))
    if binary:
        types: tuple[str, ...] = (kind, kind)
    else:
        types = (kind, "int") if second_arg and not chain.second_arg else (kind,)
    head = f"def f({', '.join('xy'[: len(types)])}):"
    return ProgramTemplate("\n    ".join([head, *chain.lines]), ", ".join(chain.hints), types, len(chain.hints))


def _arguments(rng: random.Random, types: tuple[str, ...]) -> tuple[Any, ...]:
    first = random_value(rng, types[0])
    if len(types) == 1:
        return (first,)
    second = rng.randint(1, 6) if types[1] == "int" and types[0] != "int" else random_value(rng, types[1])
    return first, second


def _text(arguments: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, arguments))


def random_sample(rng: random.Random, inputs: int, held_out: bool = False, domain: Domain = ALL) -> Sample:
    """A program with ``inputs`` distinct inputs.

    Its outputs are bounded, differ between inputs, and are not all equal to the input. With ``held_out``, only
    programs for which `is_held_out`; else only others.
    """
    while True:
        template = random_template(rng, domain=domain)
        if is_held_out(template.source) != held_out:
            continue
        sample = with_inputs(rng, template, inputs)
        if sample is not None:
            return sample


def with_inputs(rng: random.Random, template: ProgramTemplate, inputs: int) -> Sample | None:
    """A program with distinct random inputs; None when what it does with them breaks what `random_sample` promises."""
    pairs = _run(rng, template, max(inputs, 4))
    if pairs is None:
        return None
    chosen = list(pairs.items())[:inputs]
    return Sample(template.source, template.message, tuple(i for i, _ in chosen), tuple(o for _, o in chosen))


def _run(rng: random.Random, template: ProgramTemplate, count: int) -> dict[str, str] | None:
    """``count`` distinct inputs and their outputs; None for a program that raises, explodes or ignores its input."""
    function = compile_program(template.source)
    pairs: dict[str, str] = {}
    for _ in range(count * 3):
        arguments = _arguments(rng, template.types)
        text = _text(arguments)
        try:
            output = repr(function(*copy.deepcopy(arguments)))
        except (IndexError, ValueError):
            return None
        if len(output) > MAX_OUTPUT:
            return None
        pairs[text] = output
        if len(pairs) == count:
            varied = len(set(pairs.values())) > 1
            return pairs if varied and any(i != o for i, o in pairs.items()) else None
    return None


def random_error_sample(rng: random.Random) -> Sample:
    """A program and one input; the output is the name of the exception it raises, or ``NoError``."""
    while True:
        template = random_template(rng, may_raise=True)
        if is_held_out(template.source):
            continue
        arguments = _arguments(rng, template.types)
        text = _text(arguments)
        try:
            compile_program(template.source)(*arguments)
            outcome = "NoError"
        except (IndexError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            outcome = type(error).__name__
        if outcome != "NoError" or rng.random() < 0.4:
            return Sample(template.source, template.message, (text,), (outcome,))


def random_identity_sample(rng: random.Random, inputs: int) -> Sample:
    """The identity program that self-play starts from, with inputs of mixed types."""
    texts: dict[str, None] = {}
    while len(texts) < inputs:
        texts[repr(random_value(rng, rng.choice(list(TYPES))))] = None
    return Sample(IDENTITY, "same", tuple(texts), tuple(texts))

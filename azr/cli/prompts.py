"""Print the prompts of a recipe exactly as its model gets them, about the task that each kind starts from, the first
row of each source of its file and the first functions of its corpus. Options of the config may follow, such as
--model.path FOLDER."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from azr.cli.options import RECIPE_HELP, Parser
from azr.config import Config
from azr.config_rules import check
from azr.config_tree import override
from azr.errors import UserError
from azr.launch import load_recipe
from azr.prepare import load_codec
from azr.records import ROLES, PromptIds, Role
from azr.runs.model_folder import model_folder
from azr.tasks.registry import KINDS

if TYPE_CHECKING:
    from azr.datasets.rows import DataRow
    from azr.prompts.codec import PromptCodec

Shown = tuple[str, Sequence[int] | PromptIds, int]
"""Name of a prompt, its tokens, and how many it may have."""


def main(argv: Sequence[str]) -> int:
    options, values = parser().parse_with_overrides(argv)
    config = override(load_recipe(options.recipe), values)
    check(config)
    if options.kind is not None:
        KINDS.find(options.kind)
    # A folder with nothing but a tokenizer will do.
    place = Path(config.model.path)
    folder = place if place.is_dir() else model_folder(config.model.path, fetch=False)
    if folder is None:
        raise UserError(
            f"The hub does not answer about {config.model.path}: set --model.path to a folder with its tokenizer."
        )
    codec = load_codec(config, folder)
    kinds = (options.kind,) if options.kind else config.kinds
    roles = [options.role] if options.role else ROLES
    of_corpus = _of_corpus(config, codec, kinds) if "proposer" in roles else ()
    for name, ids, longest in (*_of_kinds(config, codec, kinds, roles), *of_corpus, *_of_rows(config, codec)):
        print(f"======== {name}: {len(ids)} tokens of at most {longest}\n{codec.decode(ids)}")
    ends = " or ".join(f"{end} ({codec.decode([end])})" for end in codec.stops.token_ids)
    strings = "".join(f", or with the text {text}" for text in codec.stops.strings)
    print(f"======== A response ends with token {ends}{strings}, or after {config.rollout.max_response_tokens} tokens.")
    return 0


def parser() -> Parser:
    parser = Parser("prompts", __doc__)
    parser.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    parser.add_argument("--kind", help="only this kind of task (default: all of the recipe)")
    parser.add_argument("--role", choices=ROLES, help="only this role")
    return parser


def _of_rows(config: Config, codec: PromptCodec) -> Iterator[Shown]:
    """The first row of each source of the run's file, with a trace where traces are trained on."""
    if config.data.path is None:
        return
    from azr.datasets.choice import load_rows

    rows, _ = load_rows(config, codec)
    first: dict[str, DataRow] = {}
    for row in rows:
        first.setdefault(row.question.suite, row)
    for row in first.values():
        ids, opened = codec.converse(row.turns, row.tools or ())
        graders = ", ".join(each.name for each in row.graders)
        yield f"{row.question.suite}, row {row.question.id}, graded by {graders}", ids, config.rollout.max_prompt_tokens
        if config.data.traces and row.traces:
            yield "its first trace", codec.trace_ids(row.traces[0], opened), config.rollout.max_response_tokens


def _of_kinds(config: Config, codec: PromptCodec, kinds: Sequence[str], roles: Sequence[Role]) -> Iterator[Shown]:
    longest = config.rollout.max_prompt_tokens
    for kind, role in itertools.product(map(KINDS.__getitem__, kinds), roles):
        proposes, task = role == "proposer", kind.seed()
        ids = codec.proposer_prompt(kind, [task], longest)[0] if proposes else codec.solver_prompt(kind, task)
        yield f"{kind.name}, {role}", ids, longest


def _of_corpus(config: Config, codec: PromptCodec, kinds: Sequence[str]) -> Iterator[Shown]:
    """Prompts that show the first function of the corpus, and that give the first that can be played."""
    if config.selfplay.corpus is None:
        return
    from azr.selfplay.corpus import read_corpus

    passages, _ = read_corpus(Path(config.selfplay.corpus), codec, ())
    given = [replace(each, message="") for each in passages if each.program][:1]
    for kind in (KINDS[name] for name in kinds if KINDS[name].plays_corpus):
        for passage in [*passages[:1], *given] if kind.proposes_programs else given:
            references = [passage, kind.seed()] if passage.message else [passage]
            ids, _ = codec.proposer_prompt(kind, references, config.rollout.max_prompt_tokens)
            how = "is shown" if passage.message else "is given"
            yield f"{kind.name}, proposer, who {how} {passage.id}", ids, config.rollout.max_prompt_tokens

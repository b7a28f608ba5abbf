"""Check what a config names outside of itself, and make once what its run is made of. A dry run stops after this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from azr.algorithms.architectures import CHECKED, REFUSED, check_architecture, check_targets
from azr.algorithms.kernels import choose_kernels
from azr.config import Config
from azr.datasets.hub import rows_file
from azr.datasets.rows import DataRow, read_rows
from azr.errors import UserError
from azr.evaluation.suites.exam import exam_questions
from azr.files import write_problem
from azr.launch import Run
from azr.monitoring.texts import Screen, patterns_of
from azr.records import Task
from azr.runs import trackers
from azr.runs.model_folder import check_weights, model_folder, read_object, text_setting, tokenizer_errors
from azr.runs.run_dir import PromptForm
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.seeds import SINGLE_CALL_KINDS, SeedLine, read_seeds
from azr.tasks.prompts import THINK
from azr.tasks.registry import KINDS, SingleCallKind
from azr.train.adapter_files import check_package

if TYPE_CHECKING:
    from azr.evaluation.periodic import PeriodicEval
    from azr.prompts.codec import PromptCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is checked and ready to start."""

    run: Run
    """With `model.prompt_format` auto decided."""
    codec: PromptCodec
    seeds: Sequence[SeedLine] | None
    """Lines of `selfplay.seeds` for a run that has no tasks yet."""
    evaluation: PeriodicEval
    rows: Sequence[DataRow]
    """Rows of `data.path` that are trained on, in the file's order."""
    screen: Screen
    notes: Sequence[str]
    """Lines on suites that are not held out, on rows that are left out and on the corpus."""
    corpus: Sequence[Task] = ()
    """Functions of `selfplay.corpus`."""

    def empty_buffer(self) -> TaskBuffer:
        """Return a buffer that takes no program of an evaluation, and none that prompts show as a worked example."""
        kinds = self.run.config.kinds
        examples = self.codec.example_programs(KINDS[kind] for kind in kinds)
        return TaskBuffer(kinds, benchmark=self.evaluation.programs, examples=examples, corpus=self.corpus)


class ModelUnreachable(Exception):
    """The model is not in the cache and the hub does not answer, so only the rest of the config could be checked."""


def prepare(run: Run, *, fetch: bool = True) -> Prepared:
    """Check everything that the config names outside of itself, and make the parts of its run.

    `fetch`: download a model of the hub; without it only its config and tokenizer. Writes nothing but the hub's cache.

    Raises:
        UserError: something is missing or cannot be used.
        ModelUnreachable: without `fetch`, the hub does not answer; everything else was checked.
    """
    config = run.config
    for option in ("four_bit", "rank"):
        if getattr(config.train.lora, option):
            check_package(option)
    place = run.folder.path.absolute()
    if run.resume is None:
        run.folder.check_free(restart=run.restart)
        place = place.parent
    if problem := write_problem(place):
        raise UserError(f"Nothing can be written into {place} ({problem}): choose another --run.root.")
    for name in config.tracking.names:
        trackers.TRACKERS[name].check(config)
    seeds = _read_seeds(config) if not run.step and config.kinds and config.selfplay.seeds is not None else None
    screen = Screen.read(patterns_of(config.safety))
    folder = model_folder(config.model.path, fetch=fetch)
    stored = read_rows(rows_file(config.data.path), config.data) if config.data.path is not None else []
    if folder is None:
        if config.eval.path is not None:
            exam_questions(Path(config.eval.path))
        raise ModelUnreachable(
            f"model.path {config.model.path} was not checked: it is not in the cache, and the hub does not answer"
        )
    if fetch or folder == Path(config.model.path):
        check_weights(folder)
    # Only now, because these take seconds to load.
    from azr.datasets.choice import check_identity, choose_rows
    from azr.evaluation.periodic import PeriodicEval
    from azr.selfplay.corpus import read_corpus
    from azr.selfplay.seeding import first_tasks

    codec, stated_format = load_codec(config, folder), config.model.prompt_format
    config = replace(config, model=replace(config.model, prompt_format=codec.prompt_format))
    kinds = [KINDS[kind] for kind in config.kinds]
    codec.check_prompts(kinds, config.rollout.max_prompt_tokens)
    _check_model(config, folder)
    evaluation, corpus = PeriodicEval(config, codec), list[Task]()
    rows, notes = choose_rows(stored, config, codec) if stored else ([], [])
    if run.resume is not None:
        PromptForm(codec.template, codec.stops).check(run.folder.prompt_form)
        if config.data.path is not None:
            check_identity(run.folder.data, config.data.path)
    notes = [*evaluation.notes, *notes, *_prompt_notes(config, codec, stated_format)]
    if kinds and config.selfplay.corpus is not None:
        held_out = {*evaluation.programs, *codec.example_programs(kinds)}
        corpus, of_corpus = read_corpus(Path(config.selfplay.corpus), codec, held_out)
        notes += of_corpus
    prepared = Prepared(
        run=replace(run, config=config),
        codec=codec,
        seeds=seeds,
        evaluation=evaluation,
        rows=rows,
        screen=screen,
        notes=notes,
        corpus=corpus,
    )
    if not run.step and seeds is None:
        first_tasks(prepared.empty_buffer(), config.kinds)
    return prepared


def _prompt_notes(config: Config, codec: PromptCodec, stated_format: str) -> list[str]:
    """Return what `model.template auto` and `model.prompt_format` auto chose, and a warning if thinking is opened by a
    tag that the vocabulary lacks. `stated_format`: before that choice.

    That is not an error: base models learn to close the tag in the paper, whose prompts open it in pieces too.
    """
    notes = []
    if stated_format == "auto" and config.model.prompt_format == "completion":
        notes.append("model.prompt_format auto takes completion, because the tokenizer has no chat template")
    if config.model.prompt_format == "chat" and config.model.template == "auto":
        notes.append(f"model.template auto takes {codec.auto_template()}; azr check-model shows what the model follows")
    num_pieces = len(codec.encode_text(THINK))
    if config.model.thinking == "open" and num_pieces > 1:
        notes.append(
            f"model.thinking is open, but the tokenizer writes {THINK} as {num_pieces} tokens, so the model was hardly "
            "trained to close it: expect malformed responses, or take model.thinking none"
        )
    return notes


def _read_seeds(config: Config) -> list[SeedLine]:
    """Raise UserError when the seed file has no task of a kind that is played, or too few to be the examples of a
    prompt. Its programs are checked later."""
    selfplay, wanted = config.selfplay, config.selfplay.references
    one_call = [kind for kind in selfplay.kinds if isinstance(KINDS[kind], SingleCallKind)]
    usual = [kind for kind in one_call if kind in SINGLE_CALL_KINDS]
    lines = read_seeds(Path(str(selfplay.seeds)), usual or one_call or SINGLE_CALL_KINDS)
    found = Counter(task.kind for _, task in lines if isinstance(task, Task))
    if not set(found) & set(selfplay.kinds):
        raise UserError(
            f"selfplay.seeds={selfplay.seeds} has tasks of the kinds {', '.join(sorted(found))}, and selfplay.kinds "
            "plays none of them: change one of the two."
        )
    for kind in selfplay.kinds if config.model.continues_examples else ():
        if KINDS[kind].proposes_programs and found[kind] < wanted:
            raise UserError(
                f"selfplay.seeds={selfplay.seeds} has {found[kind]} tasks of the kind {kind}, but a prompt shows "
                f"{wanted}: add seeds, or lower selfplay.references."
            )
    return lines


def _check_model(config: Config, folder: Path) -> None:
    """Raise UserError for a model that does not fit the run's prompts, GPUs, kernels or adapters, or that was never
    compared with vLLM."""
    limit = text_setting(folder, "max_position_embeddings")
    longest = config.max_trajectory_tokens
    if limit is not None and longest > limit:
        raise UserError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens is {longest}, but the model in "
            f"{config.model.path} reads at most {limit} tokens; lower one of them."
        )
    heads, width = text_setting(folder, "num_attention_heads"), config.rollout.tensor_parallel
    if heads is not None and heads % width:
        raise UserError(
            f"rollout.tensor_parallel is {width}, which does not divide the {heads} attention heads of the model in "
            f"{config.model.path}: set it to a divisor of {heads}."
        )
    tree = read_object(folder / "config.json")
    family = tree.get("model_type")
    if family not in CHECKED and family not in REFUSED:
        from azr.algorithms.models import check_unknown  # only now: it takes seconds to load

        check_unknown(str(folder))
    check_architecture(config.model.path, tree, unchecked=config.model.unchecked, longest=longest)
    if config.train.lora.rank and family in CHECKED:
        check_targets(config.train.lora.targets, CHECKED[family].linear)
    if config.train.device != "cpu":
        choose_kernels(config.train.kernels, "cuda", family)


def load_codec(config: Config, folder: Path) -> PromptCodec:
    """Load tokenizer and prompt format of the model in a folder. Raises UserError when it has no usable tokenizer."""
    from azr.prompts.codec import PromptCodec

    with tokenizer_errors(config.model.path, folder):
        codec = PromptCodec.load(replace(config, model=replace(config.model, path=str(folder))))
        codec.check_vocabulary(text_setting(folder, "vocab_size"), config.model.path)
        return codec

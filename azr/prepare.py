"""Check a config before anything starts, and make once what its run is made of. A dry run stops after this."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from azr.algorithms.architectures import CHECKED, REFUSED, check_architecture, check_targets
from azr.algorithms.kernels import check_flash_attn, choose_kernels
from azr.cluster.push_choice import decide_push
from azr.config import CONTINUED, TEMPLATES, Config, NoImportance
from azr.datasets.hub import rows_file
from azr.datasets.rows import DataRow, read_rows
from azr.environments.own import described
from azr.errors import UserError, did_you_mean
from azr.evaluation.suites.exam import exam_questions
from azr.files import write_problem
from azr.launch import Run
from azr.monitoring.texts import Screen, patterns_of
from azr.plugins import load_for
from azr.records import Task
from azr.rollout.engine_options import engine_options
from azr.runs import trackers
from azr.runs.model_folder import check_weights, model_folder, read_object, text_setting, tokenizer_errors
from azr.runs.run_dir import PromptForm
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.rewards import check_names
from azr.selfplay.seeds import SINGLE_CALL_KINDS, SeedLine, read_seeds
from azr.tasks.prompts import THINK
from azr.tasks.registry import KINDS, SingleCallKind, missing_examples
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


def check(config: Config) -> None:
    """Load the config's plug-ins, and raise UserError for the first options that contradict each other."""
    load_for(config)
    kinds = [KINDS.find(name) for name in config.selfplay.kinds]
    if not kinds or len(set(config.selfplay.kinds)) != len(kinds):
        raise UserError("selfplay.kinds must name at least one kind, and none twice.")
    for kind in kinds:
        if kind.references_per_prompt(0) and not set(kind.reference_kinds) & set(config.selfplay.kinds):
            raise UserError(
                f"A {kind.name} proposal is about a task of the kind {' or '.join(kind.reference_kinds)}, and "
                "selfplay.kinds plays none of them: add one."
            )
    if config.selfplay.chained_tasks and not any(kind.can_be_chained for kind in kinds):
        raise UserError("selfplay.chained_tasks needs deduction, abduction or induction: add one, or set it to 0.")
    for sentence in contradictions(config):
        raise UserError(sentence)
    template, train = config.model.template, config.train
    if template not in TEMPLATES and not Path(template).is_file():
        hint = did_you_mean(template, TEMPLATES)
        raise UserError(f"model.template is {template!r}, which is neither {', '.join(TEMPLATES)} nor a file{hint}")
    lacking = missing_examples(config.kinds, config.selfplay.induction_inputs)
    if config.model.continues_examples and lacking is not None:
        raise UserError(lacking)
    check_names(config.reward)
    engine_options(config.rollout.engine_options)
    decide_push(config, train.device)
    address = config.cluster.address
    if address is not None and not re.fullmatch(r"auto|[^\s/]+:\d{1,5}", address):
        raise UserError(f"cluster.address is {address!r}; it must be HOST:PORT of a cluster's head, or auto.")
    if train.device == "cpu":
        choose_kernels(train.kernels, "cpu", None)
    if train.attention == "flash_attn":
        check_flash_attn("cpu" if train.device == "cpu" else "cuda", train.dtype)
    trackers.check_names(config.tracking)


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

    That is no error: base models learn to close the tag in the paper, whose prompts open it in pieces too.
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


def contradictions(config: Config) -> Iterator[str]:
    """Yield a sentence, with what to do about it, for each rule between options that the config breaks."""
    for rules in (_prompt_rules, _data_rules, _reward_rules, _batch_rules, _rollout_rules):
        yield from rules(config)


def _prompt_rules(config: Config) -> Iterator[str]:
    model = config.model
    if model.prompt_format == "compact" and model.template != "auto":
        yield (
            f"model.template is {model.template}, but the compact format has no chat template: leave it at auto, or "
            "set model.prompt_format to chat."
        )
    if model.prompt_format not in ("auto", "chat") and model.thinking != "auto":
        yield (
            f"model.thinking is {model.thinking}, but only chat prompts can open the thinking: leave it at auto, or "
            "set model.prompt_format to chat."
        )
    if model.prompt_format == "compact" and config.selfplay.corpus is not None:
        yield "selfplay.corpus has no place between the tags of the compact format: take another model.prompt_format."
    if config.train.lora.dropout and (config.kinds or config.data.samples):
        yield (
            "train.lora.dropout makes the ratio of new to old probabilities differ from 1 at random: take 0, or learn "
            "from traces alone (data.samples 0, data.play alone)."
        )
    if config.train.kernels == "compile" and config.train.is_sharded:
        yield "train.kernels is compile, which ZeRO-3 does not allow: take train.shard none, or train.kernels auto."
    if config.train.lora.four_bit and not config.train.lora.rank:
        yield (
            "train.lora.four_bit holds weights in 4 bits, which cannot be trained themselves: set train.lora.rank, or "
            "leave it off."
        )


def _data_rules(config: Config) -> Iterator[str]:
    if config.data.path is None and config.data.play != "alone":
        yield f"data.play is {config.data.play}, but data.path names no file of rows: give one."
    if config.rollout.partial and not config.kinds:
        yield (
            "rollout.partial carries self-play over to the next step, and this run has none; answers to rows are "
            "always waited for: leave it out."
        )
    if config.data.play == "alternate" and config.rollout.partial:
        yield (
            "rollout.partial leaves self-play over to the next step, and with data.play alternate that one has none: "
            "take data.play mixed, or leave partial out."
        )
    if config.data.path is not None and not config.data.group_size:
        yield "data.samples and data.traces are both 0, so rows of data.path teach nothing: raise one of them."
    if environment := config.data.environment:
        if config.data.path is None:
            yield f"data.environment is {environment}, and data.path names no rows for it: give a file of them."
        if config.rollout.tools != "none":
            yield f"data.environment {environment} and rollout.tools both reply to the model: leave one of them out."
        if described(environment)["rewards"] and config.data.traces:
            yield f"data.environment {environment} rewards conversations, and data.traces are none: leave them out."
    kinds = {name: KINDS[name] for name in config.kinds if config.selfplay.tools != "none" and name in KINDS}
    if outputs := [name for name, kind in kinds.items() if kind.solution(kind.seed())[0].label == "output"]:
        yield (
            f"selfplay.tools is {config.selfplay.tools}, and a solver of {' and '.join(outputs)} would only run the "
            "program: leave it out of selfplay.kinds, or take selfplay.tools none."
        )
    if config.selfplay.tools != "none" and config.model.prompt_format not in ("auto", "chat"):
        yield (
            f"selfplay.tools is {config.selfplay.tools}, and the {config.model.prompt_format} format has no turns: set "
            "model.prompt_format to chat."
        )
    asking = {"compact": "asks by tags", **dict.fromkeys(CONTINUED, "continues examples")}
    if config.data.path is not None and (how := asking.get(config.model.prompt_format)):
        yield (
            f"data.path has questions in words, but the {config.model.prompt_format} format {how}: set "
            "model.prompt_format to chat."
        )


def _reward_rules(config: Config) -> Iterator[str]:
    reward, data, play, estimator = config.reward, config.data, config.selfplay, config.algorithm.estimator
    longest = config.rollout.max_response_tokens
    if isinstance(reward.overlong, int) and reward.overlong >= longest:
        yield (
            f"reward.overlong={reward.overlong} would make every response of up to "
            f"rollout.max_response_tokens={longest} tokens too long: lower it."
        )
    if reward.malformed > reward.wrong:
        yield (
            f"reward.malformed is {reward.malformed:g} and reward.wrong {reward.wrong:g}, so no answer at all earns "
            "more than a wrong one: lower reward.malformed."
        )
    if reward.wrong == 1:
        yield "reward.wrong is 1, which is what a right answer earns: lower it."
    if not estimator.compares_groups:
        return
    baseline = data.samples if config.algorithm.off_policy.loss == "sft" else data.group_size
    if data.path is not None and baseline == 1:
        yield (
            f"algorithm.estimator {estimator.name} compares the answers to one row, and data.samples and data.traces "
            "give it one: raise data.samples, or take another estimator."
        )
    if config.kinds and (play.group_size == 1 if play.train_on_estimates else play.solver_prompts):
        yield (
            f"algorithm.estimator {estimator.name} compares the answers to one task, and the solver learns from one "
            "answer to each: switch selfplay.train_on_estimates on with a selfplay.group_size above 1, or take another "
            "estimator."
        )


def _batch_rules(config: Config) -> Iterator[str]:
    if config.max_trajectory_tokens > config.train.tokens_per_micro_batch:
        yield (
            f"train.tokens_per_micro_batch={config.train.tokens_per_micro_batch} cannot hold one trajectory of up "
            f"to {config.max_trajectory_tokens} tokens (rollout.max_prompt_tokens + rollout.max_response_tokens); "
            "raise it."
        )
    sizes = config.trajectories_by_step
    if not all(sizes) and not config.selfplay.train_on_estimates:
        yield (
            "No step would train on anything: raise selfplay.solver_prompts, switch selfplay.train_on_estimates on, or "
            "raise data.samples where rows of a file are answered."
        )
    of_play = "selfplay.proposer_prompts or selfplay.solver_prompts"
    of_data = "data.prompts, data.samples or data.traces"
    size_options = of_play if config.data.path is None else f"{of_data}, {of_play}" if config.kinds else of_data
    for option, parts in (
        ("algorithm.policy_mini_batches", config.algorithm.policy_mini_batches),
        ("algorithm.estimator.critic_mini_batches", config.algorithm.critic_mini_batches),
        ("train.data_parallel", config.train.data_parallel),
    ):
        for total in sizes:
            if total % parts:
                yield (
                    f"A step has {total} trajectories, which {option}={parts} does not divide; change it, "
                    f"{size_options}."
                )
    play = config.selfplay
    if (play.repeated_tasks or play.derived_tasks or play.chained_tasks) and not play.train_on_estimates:
        yield (
            "selfplay.repeated_tasks, selfplay.derived_tasks and selfplay.chained_tasks are played only to be trained "
            "on: switch selfplay.train_on_estimates on, or set all three to 0."
        )
    algorithm, data, refills = config.algorithm, config.data, config.rollout.refill > 1
    first, last, profiled = algorithm.critic_warmup_steps + 1, config.run.steps, config.train.profile_step
    if profiled and not first <= profiled <= last:
        yield (
            f"train.profile_step is {profiled}, but the policy is updated in steps {first} to {last}: take one of "
            "these, or 0."
        )
    if refills and config.kinds and (play.group_size < 2 or not config.ablation.new_tasks):
        yield "rollout.refill wants tasks solved sometimes: set selfplay.group_size above 1, and ablation.new_tasks on."
    imitates = data.traces and algorithm.off_policy.loss == "sft"
    if refills and data.path is not None and (data.group_size < 2 or imitates):
        yield (
            "rollout.refill passes over rows answered all right or all wrong: set data.samples to 2 or more, and "
            "algorithm.off_policy.loss to another than sft if there are traces."
        )
    if algorithm.drop_zero_advantage and algorithm.entropy_coef:
        yield (
            "algorithm.drop_zero_advantage would take trajectories from the entropy bonus: switch it off, or set "
            "algorithm.entropy_coef to 0."
        )
    if algorithm.kl.estimator == "k1" and algorithm.kl.where == "loss":
        yield (
            "algorithm.kl.estimator k1 has a gradient that is 0 on average in the loss: take another estimator, or set "
            "algorithm.kl.where to reward."
        )


def _rollout_rules(config: Config) -> Iterator[str]:
    rollout, executor = config.rollout, config.executor
    if executor.docker_runtime is not None and executor.backend not in ("auto", "docker"):
        yield (
            f"executor.docker_runtime={executor.docker_runtime} is for containers, and "
            f"executor.backend={executor.backend} has none: leave one of them out."
        )
    if rollout.partial and not rollout.staleness:
        yield (
            "rollout.partial carries responses over to the next step, where they are older than the policy: set "
            "rollout.staleness to 1 or more, or leave partial out."
        )
    if rollout.staleness and config.run.deterministic:
        yield (
            f"rollout.staleness={rollout.staleness} lets time decide which weights sample a token, so the run cannot "
            "be deterministic: leave one of them out."
        )
    if rollout.staleness and config.cluster.colocate and not rollout.partial:
        yield (
            f"rollout.staleness={rollout.staleness} plays one step while another is learned, but engines and trainers "
            "share their GPUs and take turns: give engines their own with --cluster.no-colocate, or set "
            "rollout.partial."
        )
    if rollout.staleness and isinstance(config.algorithm.importance, NoImportance):
        yield (
            f"rollout.staleness={rollout.staleness} trains on what older weights sampled, and nothing corrects for it "
            "while algorithm.importance is none: take another, such as token_cap."
        )

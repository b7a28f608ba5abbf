"""Check a config before anything starts, and make once what its run is made of. A dry run stops after this."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from azr.algorithms.architectures import CHECKED, LINEAR_LAYERS, check_architecture, check_targets
from azr.algorithms.kernels import check_flash_attn, choose_kernels
from azr.cluster.weight_transfers import Site, choose_transfer
from azr.config import TEMPLATES, Config
from azr.datasets.rows import DataRow, read_rows
from azr.errors import UserError, nearest
from azr.evaluation.suites.exam import read_exam
from azr.monitoring.screen import Screen, patterns_of
from azr.plugins import load_for
from azr.rollout.engine_options import engine_options
from azr.runs import trackers
from azr.runs.model_folder import attention_heads, check_tokenizer_files, config_json, context_length, model_folder
from azr.runs.resume import ResumeState
from azr.runs.run_dir import PromptForm, RunDirectory, check_free, run_path
from azr.selfplay.rewards import check_names
from azr.selfplay.seeds import read_seeds
from azr.tasks.registry import KINDS
from azr.train.adapter_files import check_four_bit

if TYPE_CHECKING:
    from azr.evaluation.periodic import PeriodicEval
    from azr.prompts.codec import PromptCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is checked and ready to start."""

    config: Config
    resume: ResumeState | None
    """Checkpoint that the run goes on from; None for a new run."""
    codec: PromptCodec
    evaluation: PeriodicEval
    rows: Sequence[DataRow]
    """Rows of `data.path` that are trained on, in the file's order."""
    screen: Screen
    notes: Sequence[str]
    """Lines on suites that are not evaluated and on rows that are left out."""


class ModelUnreachable(Exception):
    """The model is not in the cache and the hub does not answer, so only the rest of the config could be checked."""


def check(config: Config) -> None:
    """Load the config's plug-ins, and raise UserError for the first options that contradict each other."""
    load_for(config)
    _check_kinds(config)
    _check_prompts(config)
    _check_data(config)
    _check_reward(config)
    engine_options(config.rollout.engine_options)
    _check_batch(config)
    _check_composites(config)
    _check_executor(config)
    _check_staleness(config)
    choose_transfer(config.cluster.push, Site.before_start(config))
    _check_kernels(config)
    _check_lora(config)
    trackers.check_names(config.tracking)


def prepare(
    config: Config, resume: ResumeState | None = None, *, fetch: bool = True, into_run: bool = True
) -> Prepared:
    """Check everything that the config names outside of itself, and make the parts of its run.

    `fetch`: download a model of the hub; without it only its config and tokenizer. `into_run`: check the run directory
    and the trackers too. Writes nothing but the hub's cache.

    Raises:
        UserError: something is missing or cannot be used.
        ModelUnreachable: without `fetch`, the hub does not answer; everything else was checked.
    """
    if into_run:
        _check_run_directory(config, resumed=resume is not None)
        trackers.check_ready(config)
    if resume is None and config.kinds and config.selfplay.seeds is not None:
        _check_seeds(Path(config.selfplay.seeds), config.selfplay.kinds)
    screen = Screen.read(patterns_of(config.safety))
    folder = model_folder(config.model.path, fetch=fetch)
    if folder is None:
        _check_files(config)
        raise ModelUnreachable(
            f"model.path {config.model.path} was not checked: it is not in the cache, and the hub does not answer"
        )
    _check_sizes(config, folder)
    # Only now, because these take seconds to load.
    from azr.datasets.choice import check_identity, load_rows
    from azr.evaluation.periodic import PeriodicEval

    codec = load_codec(config, folder)
    _check_layers(config, folder)
    evaluation = PeriodicEval(config, codec)
    rows, notes = load_rows(config, codec) if config.data.path is not None else ([], [])
    if resume is not None:
        run = RunDirectory(run_path(config.run))
        PromptForm(codec.template, codec.stops).check(run.prompt_form)
        if config.data.path is not None:
            check_identity(run.data, Path(config.data.path))
    return Prepared(
        config=config,
        resume=resume,
        codec=codec,
        evaluation=evaluation,
        rows=rows,
        screen=screen,
        notes=[*evaluation.notes, *notes],
    )


def _check_kinds(config: Config) -> None:
    unknown = [kind for kind in config.selfplay.kinds if kind not in KINDS]
    if unknown:
        raise UserError(f"There is no task kind {unknown[0]!r}; selfplay.kinds may hold {', '.join(KINDS)}.")
    if not config.selfplay.kinds or len(set(config.selfplay.kinds)) != len(config.selfplay.kinds):
        raise UserError("selfplay.kinds must name at least one kind, and none twice.")


def _check_prompts(config: Config) -> None:
    model = config.model
    if model.prompt_format == "compact" and model.template != "auto":
        raise UserError(
            f"model.template is {model.template}, but the compact format has no chat template: leave it at auto, or "
            "set model.prompt_format to chat."
        )
    if model.template not in TEMPLATES and not Path(model.template).is_file():
        hint = "" if "." in model.template else f" Did you mean {nearest(model.template, TEMPLATES)}?"
        raise UserError(
            f"model.template is {model.template!r}, which is neither {', '.join(TEMPLATES)} nor a file.{hint}"
        )


def _check_data(config: Config) -> None:
    if config.data.path is None and config.data.play != "alone":
        raise UserError(f"data.play is {config.data.play}, but data.path names no file of rows: give one.")
    if config.data.play == "alternate" and config.rollout.partial:
        raise UserError(
            "rollout.partial leaves self-play over to the next step, and with data.play alternate that one has none: "
            "take data.play mixed, or leave partial out."
        )
    if config.data.prefix != "none" and not config.data.traces:
        raise UserError(
            f"data.prefix is {config.data.prefix}, but data.traces is 0, so there is none to begin with: raise it."
        )
    if config.data.path is not None and config.model.prompt_format == "compact":
        raise UserError(
            "data.path has questions in words, but the compact format asks by tags: set model.prompt_format to chat."
        )


def _check_reward(config: Config) -> None:
    reward, longest = config.reward, config.rollout.max_response_tokens
    check_names(reward)
    if reward.overlong == "soft" and reward.overlong_buffer >= longest:
        raise UserError(
            f"reward.overlong_buffer={reward.overlong_buffer} would make every response of up to "
            f"rollout.max_response_tokens={longest} tokens too long: lower it."
        )


def _check_staleness(config: Config) -> None:
    rollout = config.rollout
    if rollout.partial and not rollout.staleness:
        raise UserError(
            "rollout.partial carries responses over to the next step, where they are older than the policy: set "
            "rollout.staleness to 1 or more, or leave partial out."
        )
    if rollout.staleness and config.run.deterministic:
        raise UserError(
            f"rollout.staleness={rollout.staleness} lets time decide which weights sample a token, so the run cannot "
            "be deterministic: leave one of them out."
        )
    if rollout.staleness and config.cluster.colocate and not rollout.partial:
        raise UserError(
            f"rollout.staleness={rollout.staleness} plays one step while another is learned, but engines and trainers "
            "share their GPUs and take turns: give engines their own with --cluster.no-colocate, or set "
            "rollout.partial."
        )
    if rollout.staleness and config.algorithm.importance_cap is None:
        raise UserError(
            f"rollout.staleness={rollout.staleness} trains on what older weights sampled, and nothing corrects for it "
            "while algorithm.importance_cap is switched off: give it a number such as 2."
        )


def _check_executor(config: Config) -> None:
    backend, runtime = config.executor.backend, config.executor.docker_runtime
    if runtime is not None and backend not in ("auto", "docker"):
        raise UserError(
            f"executor.docker_runtime={runtime} is for containers, and executor.backend={backend} has none: "
            "leave one of them out."
        )


def _check_kernels(config: Config) -> None:
    train = config.train
    if train.device == "cpu":
        choose_kernels(train.kernels, "cpu", None)
    if train.attention == "flash_attn":
        check_flash_attn("cpu" if train.device == "cpu" else "cuda", train.dtype)


def _check_lora(config: Config) -> None:
    lora = config.train.lora
    if lora.four_bit and not lora.rank:
        raise UserError(
            "train.lora.four_bit holds weights in 4 bits, which cannot be trained themselves: set train.lora.rank, or "
            "leave it off."
        )
    if lora.four_bit:
        check_four_bit()
    if lora.rank and find_spec("peft") is None:
        raise UserError(
            "train.lora.rank asks for adapters, but the package peft is not installed: install it with pip install "
            "peft, or set the rank to 0."
        )


def _check_batch(config: Config) -> None:
    sizes = config.trajectories_by_step
    if not all(sizes) and not config.selfplay.train_on_estimates:
        raise UserError(
            "No step would train on anything: raise selfplay.solver_prompts, switch selfplay.train_on_estimates on, or "
            "raise data.samples where rows of a file are answered."
        )
    of_play = "selfplay.proposer_prompts or selfplay.solver_prompts"
    of_data = "data.prompts, data.samples or data.traces"
    size_knobs = of_play if config.data.path is None else f"{of_data}, {of_play}" if config.kinds else of_data
    for knob, parts in (
        ("algorithm.policy_mini_batches", config.algorithm.policy_mini_batches),
        ("algorithm.estimator.critic_mini_batches", config.algorithm.critic_mini_batches),
        ("train.data_parallel", config.train.data_parallel),
    ):
        for total in sizes:
            if total % parts:
                raise UserError(
                    f"A step has {total} trajectories, which {knob}={parts} does not divide; change it, {size_knobs}."
                )
    play = config.selfplay
    if (play.repeated_tasks or play.derived_tasks) and not play.train_on_estimates:
        raise UserError(
            "selfplay.repeated_tasks and selfplay.derived_tasks are played only to be trained on: switch "
            "selfplay.train_on_estimates on, or set both to 0."
        )
    algorithm = config.algorithm
    if algorithm.drop_zero_advantage and algorithm.entropy_coef:
        raise UserError(
            "algorithm.drop_zero_advantage would take trajectories from the entropy bonus: switch it off, or set "
            "algorithm.entropy_coef to 0."
        )
    if config.max_trajectory_tokens > config.train.tokens_per_micro_batch:
        raise UserError(
            f"train.tokens_per_micro_batch={config.train.tokens_per_micro_batch} cannot hold one trajectory of up "
            f"to {config.max_trajectory_tokens} tokens (rollout.max_prompt_tokens + rollout.max_response_tokens); "
            "raise it."
        )


def _check_composites(config: Config) -> None:
    composites, section = config.selfplay.composites, "selfplay.composites"
    if not composites.chance:
        return
    if composites.functions > composites.max_functions:
        raise UserError(
            f"{section}.functions is {composites.functions} and cannot grow to {section}.max_functions="
            f"{composites.max_functions}: change one of the two."
        )
    if not any(KINDS[kind].proposes_programs for kind in config.selfplay.kinds):
        raise UserError(
            f"{section}.chance asks for programs that call earlier ones, and no kind of selfplay.kinds proposes "
            "programs: add one that does, or take 0."
        )
    if not config.ablation.new_tasks:
        raise UserError(f"{section}.chance needs proposals: switch ablation.new_tasks on, or take 0.")
    if composites.start_step > config.run.steps:
        raise UserError(
            f"{section}.start_step is {composites.start_step}, after the last of run.steps={config.run.steps}: lower "
            f"it, or take {section}.chance=0."
        )


def _check_run_directory(config: Config, *, resumed: bool) -> None:
    """Raise UserError when a new run's directory is taken, or no file can be written there."""
    if not resumed:
        check_free(config.run)
    folder = (run_path(config.run) if resumed else Path(config.run.root)).absolute()
    try:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(
            f"Nothing can be written into {folder} ({error.strerror}): choose another --run.root."
        ) from error


def _check_seeds(path: Path, kinds: Sequence[str]) -> None:
    """Raise UserError when the seed file has no task of a kind that is played. Its programs are checked later."""
    seeds, _ = read_seeds(path)
    found = sorted({seed.task.kind for seed in seeds})
    if not set(found) & set(kinds):
        raise UserError(
            f"selfplay.seeds={path} has tasks of the kinds {', '.join(found)}, and selfplay.kinds plays none of them: "
            "change one of the two."
        )


def _check_files(config: Config) -> None:
    """Read the files that can be checked without a tokenizer."""
    if config.data.path is not None:
        read_rows(Path(config.data.path))
    if config.eval.path is not None:
        read_exam(Path(config.eval.path))


def _check_sizes(config: Config, folder: Path) -> None:
    """Raise UserError when prompt and response exceed the model's context, or its heads cannot be shared out."""
    limit = context_length(folder)
    longest = config.max_trajectory_tokens
    if limit is not None and longest > limit:
        raise UserError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens is {longest}, but the model in "
            f"{config.model.path} reads at most {limit} tokens; lower one of them."
        )
    heads, width = attention_heads(folder), config.rollout.tensor_parallel
    if heads is not None and heads % width:
        raise UserError(
            f"rollout.tensor_parallel is {width}, which does not divide the {heads} attention heads of the model in "
            f"{config.model.path}: set it to a divisor of {heads}."
        )


def _check_layers(config: Config, folder: Path) -> None:
    """Raise UserError for an architecture that cannot be trained, or adapters and kernels that it does not have."""
    tree = config_json(folder)
    check_architecture(config.model.path, tree, unchecked=config.model.unchecked)
    if config.train.lora.rank and tree.get("model_type") in CHECKED:
        check_targets(config.train.lora.targets, LINEAR_LAYERS)
    if config.train.device != "cpu":
        choose_kernels(config.train.kernels, "cuda", tree.get("model_type"))


def load_codec(config: Config, folder: Path) -> PromptCodec:
    """Load tokenizer and prompt format of the model in a folder. Raises UserError when it has no usable tokenizer."""
    from azr.prompts.codec import PromptCodec

    check_tokenizer_files(config.model.path, folder)
    try:
        return PromptCodec.load(replace(config, model=replace(config.model, path=str(folder))))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path {config.model.path!r} holds no tokenizer that can be loaded ({str(error).splitlines()[0]}); "
            "give a whole Hugging Face model folder."
        ) from error

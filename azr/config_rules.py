"""Check a config by itself: its plug-ins, its names, and the rules between its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from azr.algorithms.kernels import check_flash_attn, choose_kernels
from azr.cluster.push_choice import decide_push
from azr.config import CONTINUED, TEMPLATES, Config, NoImportance
from azr.environments.own import described
from azr.errors import UserError, did_you_mean
from azr.plugins import load_for
from azr.rollout.engine_options import engine_options
from azr.runs import trackers
from azr.selfplay.rewards import check_names
from azr.tasks.registry import KINDS, missing_examples


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

"""Rules between the options of a run: those that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from azr.config import Config, NoImportance


def contradictions(config: Config) -> Iterator[str]:
    """Yield a sentence, with what to do about it, for each rule between options that the config breaks."""
    for rules in (_prompt_rules, _data_rules, _reward_rules, _batch_rules, _composite_rules, _executor_rules):
        yield from rules(config)
    yield from _staleness_rules(config)


def _prompt_rules(config: Config) -> Iterator[str]:
    model = config.model
    if model.prompt_format == "compact" and model.template != "auto":
        yield (
            f"model.template is {model.template}, but the compact format has no chat template: leave it at auto, or "
            "set model.prompt_format to chat."
        )
    if model.prompt_format != "chat" and model.thinking != "auto":
        yield (
            f"model.thinking is {model.thinking}, but only chat prompts can open the thinking: leave it at auto, or "
            "set model.prompt_format to chat."
        )
    if model.prompt_format == "completion" and config.selfplay.composites.chance:
        yield (
            "selfplay.composites.chance gives functions that a program must call, which no example of the completion "
            "format can say: take 0, or set model.prompt_format to chat."
        )
    if config.train.lora.dropout and (config.kinds or config.data.samples):
        yield (
            "train.lora.dropout makes the ratio of new to old probabilities differ from 1 at random: take 0, or learn "
            "from traces alone (data.samples 0, data.play alone)."
        )
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
    if config.data.prefix != "none" and not config.data.traces:
        yield (f"data.prefix is {config.data.prefix}, but data.traces is 0, so there is none to begin with: raise it.")
    asking = {"compact": "asks by tags", "completion": "continues examples"}
    if config.data.path is not None and (how := asking.get(config.model.prompt_format)):
        yield (
            f"data.path has questions in words, but the {config.model.prompt_format} format {how}: set "
            "model.prompt_format to chat."
        )


def _reward_rules(config: Config) -> Iterator[str]:
    reward, longest = config.reward, config.rollout.max_response_tokens
    if reward.overlong == "soft" and reward.overlong_buffer >= longest:
        yield (
            f"reward.overlong_buffer={reward.overlong_buffer} would make every response of up to "
            f"rollout.max_response_tokens={longest} tokens too long: lower it."
        )


def _batch_rules(config: Config) -> Iterator[str]:
    sizes = config.trajectories_by_step
    if not all(sizes) and not config.selfplay.train_on_estimates:
        yield (
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
                yield (
                    f"A step has {total} trajectories, which {knob}={parts} does not divide; change it, {size_knobs}."
                )
    play = config.selfplay
    if (play.repeated_tasks or play.derived_tasks) and not play.train_on_estimates:
        yield (
            "selfplay.repeated_tasks and selfplay.derived_tasks are played only to be trained on: switch "
            "selfplay.train_on_estimates on, or set both to 0."
        )
    algorithm, data, refills = config.algorithm, config.data, config.rollout.refill > 1
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
    if config.max_trajectory_tokens > config.train.tokens_per_micro_batch:
        yield (
            f"train.tokens_per_micro_batch={config.train.tokens_per_micro_batch} cannot hold one trajectory of up "
            f"to {config.max_trajectory_tokens} tokens (rollout.max_prompt_tokens + rollout.max_response_tokens); "
            "raise it."
        )


def _composite_rules(config: Config) -> Iterator[str]:
    composites, section = config.selfplay.composites, "selfplay.composites"
    if not composites.chance:
        return
    if composites.functions > composites.max_functions:
        yield (
            f"{section}.functions is {composites.functions} and cannot grow to {section}.max_functions="
            f"{composites.max_functions}: change one of the two."
        )
    if not config.ablation.new_tasks:
        yield f"{section}.chance needs proposals: switch ablation.new_tasks on, or take 0."
    if composites.start_step > config.run.steps:
        yield (
            f"{section}.start_step is {composites.start_step}, after the last of run.steps={config.run.steps}: lower "
            f"it, or take {section}.chance=0."
        )


def _executor_rules(config: Config) -> Iterator[str]:
    backend, runtime = config.executor.backend, config.executor.docker_runtime
    if runtime is not None and backend not in ("auto", "docker"):
        yield (
            f"executor.docker_runtime={runtime} is for containers, and executor.backend={backend} has none: "
            "leave one of them out."
        )


def _staleness_rules(config: Config) -> Iterator[str]:
    rollout = config.rollout
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

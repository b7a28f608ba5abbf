"""Mistakes in a config, found before anything is started or written."""

from __future__ import annotations

import json
import operator
from dataclasses import asdict
from pathlib import Path

from azr import values
from azr.config import Config
from azr.executor import protocol
from azr.tasks.registry import KINDS
from azr.tracking.run_dir import check_free

_LOWEST: dict[str, float] = {
    "run.steps": 1,
    "run.max_minutes": 0.01,
    "selfplay.proposals_per_kind": 1,
    "selfplay.solves_per_kind": 0,
    "selfplay.references": 0,
    "selfplay.induction_inputs": 2,
    "selfplay.estimate_samples": 1,
    "selfplay.crossings": 0,
    "selfplay.buffer_capacity": 1,
    "selfplay.seed_rounds": 0,
    "rollout.engines": 1,
    "rollout.tensor_parallel": 1,
    "rollout.max_prompt_tokens": 1,
    "rollout.max_response_tokens": 1,
    "rollout.temperature": 0.01,
    "rollout.max_concurrent": 1,
    "rollout.cpu_kv_cache_gib": 0.01,
    "rollout.cpu_threads": 1,
    "executor.workers": 1,
    "executor.wall_s": 0.01,
    "executor.memory_mb": 32,
    "executor.source_bytes": 1,
    "executor.output_bytes": 1,
    "executor.repeats": 1,
    "algorithm.dual_clip": 1,
    "algorithm.clip_low": 0,
    "algorithm.clip_high": 0,
    "algorithm.value_clip": 0,
    "algorithm.policy_updates": 1,
    "algorithm.critic_updates": 1,
    "train.data_parallel": 1,
    "train.policy_lr": 0,
    "train.critic_lr": 0,
    "train.warmup_steps": 0,
    "train.decay_steps": 0,
    "train.grad_clip": 0,
    "train.cpu_threads": 1,
    "train.logprob_chunk": 1,
    "exam.every": 0,
    "exam.tasks_per_kind": 1,
    "exam.samples": 1,
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
    "cluster.cpus": 1,
    "cluster.bucket_mb": 1,
}
"""Smallest value of every number that has one."""
_HIGHEST: dict[str, float] = {
    "selfplay.induction_inputs": protocol.MAX_INPUTS,
    "executor.output_bytes": values.MAX_BYTES,
}


def trajectories_per_step(config: Config) -> int:
    """Trajectories a step is sure to train on; estimate rollouts come on top."""
    play = config.selfplay
    proposals = play.proposals_per_kind if play.train_proposer and play.new_tasks else 0
    return len(play.kinds) * (proposals + play.solves_per_kind)


def longest_trajectory(config: Config) -> int:
    """Tokens of the longest prompt and response together."""
    return config.rollout.max_prompt_tokens + config.rollout.max_response_tokens


def check(config: Config) -> None:
    """Raises ValueError, in one sentence with its remedy, for the first mistake in the config itself."""
    _check_ranges(config)
    _check_kinds(config)
    _check_batch(config)


def check_surroundings(config: Config, *, resumed: bool = False) -> None:
    """As ``check``, for what the config needs to find: models that are long enough, and a free run directory unless a
    run is resumed."""
    if not resumed:
        check_free(config.run)
    _check_context(config, _model_folder(config.model.path, "model.path"))
    if config.model.critic_path is not None:
        _model_folder(config.model.critic_path, "model.critic_path")


def _check_ranges(config: Config) -> None:
    tree = asdict(config)
    for bounds, word, beyond in ((_LOWEST, "least", operator.lt), (_HIGHEST, "most", operator.gt)):
        for knob, bound in bounds.items():
            section, name = knob.split(".")
            value = tree[section][name]
            if value is not None and beyond(value, bound):
                raise ValueError(f"{knob} is {value}; it must be at {word} {bound:g}.")


def _check_kinds(config: Config) -> None:
    unknown = [kind for kind in config.selfplay.kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"There is no task kind {unknown[0]!r}; selfplay.kinds may hold {', '.join(KINDS)}.")
    if not config.selfplay.kinds or len(set(config.selfplay.kinds)) != len(config.selfplay.kinds):
        raise ValueError("selfplay.kinds must name at least one kind, and none twice.")


def _check_batch(config: Config) -> None:
    total, ranks = trajectories_per_step(config), config.train.data_parallel
    if not total and not config.selfplay.train_on_estimates:
        raise ValueError(
            "No step would train on anything: raise selfplay.solves_per_kind or switch selfplay.train_on_estimates on."
        )
    for knob, parts in (
        ("algorithm.policy_updates", config.algorithm.policy_updates),
        ("algorithm.critic_updates", config.algorithm.critic_updates),
        ("train.data_parallel", ranks),
    ):
        if parts < 1 or total % parts:
            raise ValueError(
                f"A step has {total} trajectories, which {knob}={parts} does not divide; "
                "change it, selfplay.proposals_per_kind or selfplay.solves_per_kind."
            )
    if config.selfplay.crossings and not config.selfplay.train_on_estimates:
        raise ValueError(
            "selfplay.crossings are played only to be trained on: switch selfplay.train_on_estimates on, or take 0."
        )
    algorithm = config.algorithm
    kl_loss = algorithm.needs_reference and algorithm.kl_in == "loss"
    if algorithm.skip_zero_advantages and (algorithm.entropy_coef or kl_loss):
        raise ValueError(
            "algorithm.skip_zero_advantages would take trajectories from the entropy bonus or the KL loss: switch it "
            "off, or set algorithm.entropy_coef and algorithm.kl_coef to 0."
        )
    if longest_trajectory(config) > config.train.tokens_per_micro_batch:
        raise ValueError(
            f"train.tokens_per_micro_batch={config.train.tokens_per_micro_batch} cannot hold one trajectory of up to "
            f"{longest_trajectory(config)} tokens (rollout.max_prompt_tokens + rollout.max_response_tokens); raise it."
        )


def _model_folder(path: str, knob: str) -> Path:
    """Folder of a local model, or of a hub model that is already in the cache."""
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    local = folder.is_absolute() or path.startswith(".") or folder.exists() or folder.parent.is_dir()
    if local or path.count("/") != 1:
        raise ValueError(f"{knob} {path!r} holds no model (no config.json there); give a Hugging Face model folder.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"{knob} {path!r} is no local folder and could not be fetched from the hub; "
            "give a Hugging Face model folder."
        ) from error


def _check_context(config: Config, folder: Path) -> None:
    limit = json.loads((folder / "config.json").read_text()).get("max_position_embeddings")
    longest = longest_trajectory(config)
    if limit is not None and longest > limit:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens is {longest}, but the model in "
            f"{config.model.path} reads at most {limit} tokens; lower one of them."
        )

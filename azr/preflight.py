"""Mistakes in a config, found before anything is started or written."""

from __future__ import annotations

import json
from pathlib import Path

from azr.config import Config
from azr.runs.run_dir import check_free
from azr.tasks.registry import KINDS


def check(config: Config) -> None:
    """Raises ValueError, in one sentence with its remedy, for the first mistake in the config itself."""
    _check_kinds(config)
    _check_batch(config)


def check_surroundings(config: Config, *, resumed: bool = False) -> None:
    """As ``check``, for what the config needs to find: models that are long enough, and a free run directory unless a
    run is resumed."""
    if not resumed:
        check_free(config.run)
    _check_context(config, _model_folder(config.model.path, "model.path"))


def _check_kinds(config: Config) -> None:
    unknown = [kind for kind in config.selfplay.kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"There is no task kind {unknown[0]!r}; selfplay.kinds may hold {', '.join(KINDS)}.")
    if not config.selfplay.kinds or len(set(config.selfplay.kinds)) != len(config.selfplay.kinds):
        raise ValueError("selfplay.kinds must name at least one kind, and none twice.")


def _check_batch(config: Config) -> None:
    total, ranks = config.min_trajectories, config.train.data_parallel
    if not total and not config.selfplay.train_on_estimates:
        raise ValueError(
            "No step would train on anything: raise selfplay.solver_prompts or switch selfplay.train_on_estimates on."
        )
    for knob, parts in (
        ("algorithm.policy_mini_batches", config.algorithm.policy_mini_batches),
        ("algorithm.estimator.critic_mini_batches", config.algorithm.critic_mini_batches),
        ("train.data_parallel", ranks),
    ):
        if parts < 1 or total % parts:
            raise ValueError(
                f"A step has {total} trajectories, which {knob}={parts} does not divide; "
                "change it, selfplay.proposer_prompts or selfplay.solver_prompts."
            )
    if config.selfplay.derived_tasks and not config.selfplay.train_on_estimates:
        raise ValueError(
            "selfplay.derived_tasks are played only to be trained on: switch selfplay.train_on_estimates on, or take 0."
        )
    algorithm = config.algorithm
    if algorithm.drop_zero_advantage and (algorithm.entropy_coef or algorithm.needs_reference):
        raise ValueError(
            "algorithm.drop_zero_advantage would take trajectories from the entropy bonus or the KL loss: switch it "
            "off, or set algorithm.entropy_coef and algorithm.kl_coef to 0."
        )
    if config.max_trajectory_tokens > config.train.tokens_per_micro_batch:
        raise ValueError(
            f"train.tokens_per_micro_batch={config.train.tokens_per_micro_batch} cannot hold one trajectory of up "
            f"to {config.max_trajectory_tokens} tokens (rollout.max_prompt_tokens + rollout.max_response_tokens); "
            "raise it."
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
    longest = config.max_trajectory_tokens
    if limit is not None and longest > limit:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens is {longest}, but the model in "
            f"{config.model.path} reads at most {limit} tokens; lower one of them."
        )

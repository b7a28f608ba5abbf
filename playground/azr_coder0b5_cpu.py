"""Self-play that teaches Qwen2.5-Coder-0.5B-Instruct on two cores: ``python -m playground.azr_coder0b5_cpu``.

Its answers are some ten tokens long. With CRUXEval's folder as eval.data, none of its programs becomes a task.
"""

from azr.cli.run import launch
from azr.config import (
    RLOO,
    AlgorithmConfig,
    CheckpointConfig,
    Config,
    EvalConfig,
    ExecutorConfig,
    LoraConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    TrainConfig,
)
from azr.own_data import own_data

config = Config(
    run=RunConfig(name="azr_coder0b5_cpu", steps=20), executor=ExecutorConfig(workers=2),
    model=ModelConfig(path="Qwen/Qwen2.5-Coder-0.5B-Instruct", prompt_format="completion"),
    # Few prompts with many responses each: most of the work would otherwise be prompts.
    selfplay=SelfPlayConfig(
        kinds=("deduction", "abduction"), proposer_prompts=12, proposals_per_prompt=6, solver_prompts=0, references=4,
        group_size=16, train_on_estimates=True, repeated_tasks=6, seed_tasks=40,
        seeds=f"{own_data('coder_seeds')}/seeds.jsonl",
    ),
    rollout=RolloutConfig(max_prompt_tokens=1024, max_response_tokens=192, max_concurrent=128),
    eval=EvalConfig(every=10, limit=50, suites=("exam", "cruxeval-i:completion", "cruxeval-o:completion")),
    # Tasks always or never solved cost what wrong answers do; at 0 proposals soon are too easy to teach.
    reward=RewardConfig(unlearnable=-0.5), checkpoint=CheckpointConfig(every=10),
    algorithm=AlgorithmConfig(estimator=RLOO(), loss_weighting="trajectory", drop_zero_advantage=True),
    train=TrainConfig(
        policy_lr=1e-4, warmup_steps=2, adam_beta2=0.99, tokens_per_micro_batch=1536,
        lora=LoraConfig(rank=32, alpha=32),
    ),
)  # fmt: skip

if __name__ == "__main__":
    launch(config)

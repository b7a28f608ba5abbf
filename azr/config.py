"""Every knob of a run: one typed tree, with units, free of torch.

Derived values are properties, so an override of a parent field always reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Estimator = Literal["trrpp", "gae", "reinforce++", "rloo", "grpo", "dr_grpo"]
KlEstimator = Literal["k1", "k2", "k3"]

BANNED_MODULES = (
    "asyncio", "atexit", "bcrypt", "bdb", "bltns", "builtins", "bz2", "calendar", "cmd", "code", "codecs", "codeop",
    "concurrent", "copyreg", "cProfile", "ctypes", "curses", "datetime", "dbm", "doctest", "ensurepip",
    "faulthandler", "fcntl", "fileinput", "ftplib", "gc", "getpass", "glob", "gzip", "hashlib", "hmac", "http",
    "imaplib", "imp", "importlib", "inspect", "io", "linecache", "locale", "logging", "lzma", "mailbox", "marshal",
    "mmap", "msvcrt", "multiprocessing", "nt", "ntpath", "os", "pathlib", "pdb", "pebble", "pickle", "pickletools",
    "pkgutil", "platform", "poplib", "posix", "posixpath", "profile", "pstats", "pty", "pwd", "pydoc", "random",
    "readline", "resource", "runpy", "sched", "secrets", "select", "selectors", "shelve", "shutil", "signal", "site",
    "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys", "sysconfig", "syslog", "tarfile",
    "tempfile", "termios", "threading", "time", "timeit", "tkinter", "trace", "traceback", "tracemalloc", "tty",
    "turtle", "unittest", "urllib", "uuid", "warnings", "weakref", "webbrowser", "winreg", "xmlrpc", "zipapp",
    "zipfile", "zipimport", "zoneinfo", "_thread",
)  # fmt: skip
"""Modules a task program may not name: clocks, randomness, I/O, processes and interpreter internals.

A name (`os`) is refused wherever it stands in a dotted path, a dotted one (`os.path`) as that path only. Names with a
leading underscore are refused always."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str = "azr_run"
    """Name of the run directory below `root`."""
    root: str = "orz_ckpt"
    """Folder that holds run directories."""
    steps: int = 500
    """Training steps: one propose/solve/update round each."""
    max_minutes: float | None = None
    """The run ends, as after its last step, with the step that passes this many minutes since its start; none for no
    bound."""
    seed: int = 1
    """Seed of everything the driver draws and of the engines."""
    deterministic: bool = False
    """The same seed on the same machine gives the same run, bit for bit on a CPU. Slower: each engine answers one
    prompt at a time, so `rollout.generate_timeout_s` must be enough for all prompts of a step."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    path: str = "Qwen/Qwen2.5-Coder-7B"
    """Hugging Face folder or hub name of the policy and the reference policy."""
    critic_path: str | None = None
    """Where the critic's backbone starts from; the policy's path when not given."""
    prompt_style: Literal["chat", "compact"] = "chat"
    """`chat` for pretrained language models, `compact` for models trained on this project's own tags."""


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    kinds: tuple[str, ...] = ("deduction", "abduction", "induction")
    """Reasoning kinds to play; `error` is the fourth."""
    proposals_per_kind: int = 64
    """Proposer trajectories per kind and step."""
    solves_per_kind: int = 64
    """Solver trajectories per kind and step, beside the estimate rollouts."""
    references: int = 6
    """K: past tasks shown to the proposer."""
    induction_inputs: int = 10
    """Inputs of an induction task; the first half is shown to the solver, the rest is hidden."""
    estimate_samples: int = 8
    """Solver samples per valid proposal that estimate its solve rate, at the rollout temperature."""
    train_on_estimates: bool = False
    """Also train the solver on the estimate samples, as groups."""
    crossings: int = 0
    """Most tasks of each kind that the runs of an accepted task make besides it, for the solver to play in groups of
    `estimate_samples`: the pairs of an induction are deductions and abductions. They cost no proposal, are not stored
    and pay no proposer. Needs `train_on_estimates`."""
    train_proposer: bool = True
    """Off: proposals are made and stored, but only the solver is trained."""
    new_tasks: bool = True
    """Off, a control for experiments: nothing is proposed after seeding, and each step samples as many stored tasks
    as it would propose, as if for an estimate."""
    task_filter: Literal["all", "non_one", "non_extremes"] = "all"
    """Which proposals enter the buffer, by solve rate s: any, s < 1, or 0 < s < 1."""
    buffer_capacity: int = 16384
    """Tasks kept per kind; the oldest leave first."""
    seed_tasks: int = 256
    """Tasks per kind gathered before the first step, grown from one identity program."""
    seed_rounds: int = 20
    """Most rounds of proposals spent on seeding before going on with what there is."""


@dataclass(frozen=True, kw_only=True)
class IntrinsicRewardConfig:
    """Optional bonuses for the proposer; a coefficient of 0 costs nothing."""

    complexity: float = 0.0
    """Coefficient of cyclomatic complexity / 15."""
    edit_distance: float = 0.0
    """Coefficient of the mean AST distance from the references."""
    halstead: float = 0.0
    """Coefficient of Halstead effort and volume."""
    answer_diversity: float = 0.0
    """Coefficient of 1 - frequency of the task's answer in the buffer."""
    maximum: float = 0.5
    """Upper bound of each bonus."""
    combine: Literal["sum", "multiply", "sum_multiply", "multiply_sum"] = "sum"
    """How bonuses c join the learnability a: a+Σc, a·Πc, a+Πc, a·Σc."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    wrong: float = -0.5
    """Solver: well-formed but wrong; proposer: a task that is there already."""
    malformed: float = -1.0
    """Solver and proposer: not in the asked form; proposer: refused by validation."""
    unlearnable: float = 0.0
    """Proposer: solve rate 0 or 1. The paper says 0; the authors' code -0.5."""
    shuffle: bool = False
    """A control for experiments: training sees the rewards of each (kind, role) in random order. Metrics and rollout
    records keep the true ones."""
    intrinsic: IntrinsicRewardConfig = field(default_factory=IntrinsicRewardConfig)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    engines: int = 1
    """vLLM engines."""
    tensor_parallel: int = 1
    """GPUs per engine."""
    max_prompt_tokens: int = 6144
    max_response_tokens: int = 8096
    temperature: float = 1.0
    """One temperature for proposing, estimating and solving; the losses use the same."""
    max_concurrent: int = 256
    """Sequences decoded at once per engine."""
    gpu_memory_utilization: float = 0.4
    """Share of a GPU's memory the engine may take."""
    cpu_kv_cache_gib: float = 1.0
    """KV cache of a CPU engine, GiB."""
    cpu_threads: int = 1
    """Compute threads of a CPU engine; with a tiny model, more of them wait for each other."""
    start_timeout_s: float = 600.0
    generate_timeout_s: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig:
    backend: Literal["auto", "docker", "bubblewrap", "namespace"] = "auto"
    """Walls around model-written code; `auto` takes the strongest that works here."""
    docker_runtime: str | None = None
    """Container runtime of the docker backend, such as gVisor's `runsc`; the engine's default when not given."""
    workers: int = 4
    """Programs that run at once."""
    wall_s: float = 1.0
    """Wall-clock limit of one call, seconds."""
    memory_mb: int = 512
    """Address space of one program, MiB."""
    source_bytes: int = 16384
    """Longest program accepted."""
    output_bytes: int = 65536
    """Longest canonical value accepted."""
    repeats: int = 2
    """Runs in separate interpreters when a proposal is validated."""
    banned_modules: tuple[str, ...] = BANNED_MODULES


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    estimator: Estimator = "trrpp"
    """Advantage estimator."""
    whitening: Literal["token", "trajectory"] = "token"
    """trrpp, gae and reinforce++: whether long responses weigh more in mean and deviation."""
    weighting: Literal["token", "trajectory", "stratum"] = "token"
    """What weighs the same in the policy's loss. By trajectory, short answers are heard beside long programs; by
    stratum, each kind and role as a whole, and so few proposals beside many solutions."""
    gamma: float = 1.0
    gae_lambda: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Bound c > 1 on the loss of negative advantages; off when not given."""
    value_clip: float = 0.2
    """Bound on the critic's move from its old value; 0 switches clipping off."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; 0 leaves the reference policy out."""
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: KlEstimator = "k3"
    entropy_coef: float = 0.0
    importance_cap: float | None = 2.0
    """Cap of the engine/trainer importance weight exp(logp_trainer - logp_engine); none switches it off."""
    policy_updates: int = 1
    """Optimizer steps per training step; the batch is split into as many parts."""
    critic_updates: int = 1
    skip_zero_advantages: bool = False
    """Leave trajectories without any advantage, such as groups of equal rewards, out of the policy's update: they cost
    time and have no gradient, and no longer count in the tokens that the loss is averaged over. Only without
    `entropy_coef` and a KL loss, to which they would matter."""

    @property
    def needs_critic(self) -> bool:
        return self.estimator == "gae"

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef != 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Compute type of trainers and engines; optimiser state is always float32. `auto`: bfloat16, or float32 on a CPU
    that has no instructions for bfloat16."""
    data_parallel: int = 1
    """Ranks per role."""
    policy_lr: float = 1e-6
    critic_lr: float = 5e-6
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    decay_steps: int = 0
    """Optimizer steps after the warm-up over which the rate falls linearly to 0; 0 keeps it as it is."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    """Largest global gradient norm."""
    tokens_per_micro_batch: int = 16384
    """Packed tokens in one forward/backward of one rank."""
    gradient_checkpointing: bool = True
    offload_optimizer: bool = False
    """Keep optimiser state in host memory."""
    attention: Literal["auto", "flash", "sdpa"] = "auto"
    cpu_threads: int | None = None
    """Compute threads of a CPU rank; the cores it may use when not given."""
    logprob_chunk: int = 2048
    """Tokens whose logits are in memory at once."""
    init_timeout_s: float = 600.0
    step_timeout_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    address: str | None = None
    """Ray cluster to join (`auto` for the one `ray start` made); none starts one on this machine."""
    cpus: int | None = None
    """CPU slots of a cluster started here, 8 when not given; they are bookkeeping, not cores."""
    colocate: bool = True
    """Engines share the GPUs of the trainers, and take turns with them; off, they have GPUs of their own."""
    placement_timeout_s: float = 120.0
    """How long to wait for the placement group."""
    bucket_mb: int = 256
    """Weights travel to the engines in buckets of this size, MiB."""


@dataclass(frozen=True, kw_only=True)
class ExamConfig:
    """The held-out exam; `azr exam` grades a finished model on all of it."""

    path: str | None = "data/exam"
    """Folder of the exam. No program of it is ever stored or trained on; none lifts that."""
    every: int = 0
    """Steps between exams, with one more before the first step and after the last; 0 for no exams."""
    tasks_per_kind: int = 64
    """Tasks asked, the same ones every time and in every run."""
    samples: int = 2
    """Answers per task at temperature 1, beside a greedy one."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What a killed run goes on from; the last step of a run, and a run that is asked to stop, are always saved."""

    every: int = 10
    """Steps between checkpoints; 0 for none but those."""
    keep: int = 2
    """Newest checkpoints kept; a file called KEEP in a checkpoint's folder protects that one for good."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    tensorboard: bool = True
    rollouts: bool = True
    """Write every trajectory's text to rollouts/."""
    progress: bool = True


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    selfplay: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    exam: ExamConfig = field(default_factory=ExamConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

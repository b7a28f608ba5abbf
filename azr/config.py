"""Every option of a run: one typed tree, torch-free. Bounds stand on the field, meaning and unit below it.

Algorithm and training have theirs in `azr.config_training`; `azr.config_rules` has the rules between options.
`azr.config_tree` builds the tree from YAML and from the command line, and checks the bounds. Derived values are
properties, so an override of a parent field always reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from azr.config_training import *  # noqa: F403  # recipes take every class from here
from azr.config_training import AlgorithmConfig, Count, CountOrZero, NumProcesses, Positive, Share, TrainConfig
from azr.execution import MAX_INPUTS
from azr.own_data import own_data

Replay = Literal["newest", "newest_and_seeds", "learnability", "easy_to_hard"]
CONTINUED = ("completion", "worked")
"""Values of `model.prompt_format` that let a model continue examples."""
TEMPLATES = ("auto", "conversation", "tokenizer")
"""Values of `model.template` that are not a file."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str = "azr_run"
    """Name of the run directory below `root`."""
    root: str = "orz_ckpt"
    """Folder that holds run directories."""
    steps: Count = 500
    """Training steps: one propose/solve/update round each."""
    max_minutes: Annotated[float, Field(ge=0.01, le=1e6)] | None = None
    """End the run after the step in which this many minutes have passed since its start; none for no limit."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1
    """Seed of the driver's draws and of the engines."""
    deterministic: bool = False
    """The same seed on the same machine gives the same run, bit for bit on a CPU. Slower: each engine answers one
    prompt at a time, so `timeout.generate_s` must be enough for all prompts of a step."""
    plugins: tuple[str, ...] = ()
    """Your modules or installed packages that add kinds of self-play, rewards of proposals, bonuses and estimators; see
    `docs/extending.md`. What a package offers by an entry point is also found by its name alone."""
    stop_when_malformed: bool = True
    """Save and end the run after three rounds in a row with over 80% of a role's responses malformed or cut off. Off:
    each such round still prints its alarm."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    path: str = "Qwen/Qwen2.5-Coder-7B"
    """Hugging Face folder or hub name that policy, reference policy and critic start from."""
    prompt_format: Literal["auto", "chat", "completion", "worked", "compact"] = "auto"
    """`chat` asks in words, by a template. `completion` lets the model continue numbered examples: for base models and
    small ones. `worked` does so too, and its examples trace the values of a program before they answer. `compact` is
    for models trained on this project's own tags. `auto`: `completion` for self-play alone with a model that has no
    chat template, if all kinds have examples; else `chat`."""
    template: str = "auto"
    """Chat template: `conversation` is the plain User/Assistant format for base models, `tokenizer` the tokenizer's own
    template, anything else the name of a Jinja file. `auto` takes the tokenizer's own if the model was trained on it,
    as its end token or a `<think>` at the end of its prompts shows, else `conversation`."""
    thinking: Literal["auto", "open", "none"] = "auto"
    """Whether a chat prompt ends with `<think>`. `auto`: with `conversation`, and with another template only if that
    opens it itself. `open`: always. `none`: never, and then no prompt asks for thinking in tags and `reward.format
    strict` for none."""
    unchecked: bool = False
    """Allow an architecture that was never compared with vLLM; run `azr check-model` first."""

    @property
    def continues_examples(self) -> bool:
        return self.prompt_format in CONTINUED


@dataclass(frozen=True, kw_only=True)
class SelfPlayConfig:
    kinds: tuple[str, ...] = ("deduction", "abduction", "induction")
    """Reasoning kinds to play; `error` is the fourth."""
    proposer_prompts: Count = 64
    """Proposals per kind and step; see `proposals_per_prompt`."""
    proposals_per_prompt: Count = 1
    """Proposals that answer the same prompt. They form a group for `rloo`, `grpo` and `dr_grpo`; with 1 all proposals
    of a kind form one group."""
    proposer_baseline: Literal["prompt", "kind"] = "prompt"
    """`kind`: all proposals of a kind form one group, whatever their prompts."""
    solver_prompts: CountOrZero = 64
    """Solver prompts per kind and step with one response each, besides the groups that estimate solve rates. With
    `rloo`, `grpo` and `dr_grpo`, which compare answers to one task, these responses have the advantage 0."""
    references: CountOrZero = 6
    """K: past tasks shown to the proposer."""
    induction_inputs: Annotated[int, Field(ge=2, le=MAX_INPUTS)] = 10
    """Inputs of an induction task; solvers see the first half. Take 4 for small models, which do not count to ten."""
    group_size: Count = 8
    """Solver responses to each valid proposal, which estimate its solve rate at the rollout temperature."""
    train_on_estimates: bool = False
    """Also train the solver on the estimate samples, as groups."""
    repeated_tasks: CountOrZero = 0
    """Stored tasks of each kind that the solver answers again every step, in groups of `group_size`; `replay` chooses
    them. Needs `train_on_estimates`."""
    replay: Replay = "newest"
    """How repeated tasks are drawn. `newest`: from the newest that were solved sometimes but not always when they were
    proposed. `newest_and_seeds`: up to half of them are tasks that the buffer began with. `learnability`: all stored
    tasks, and the references of proposals too, with a chance in proportion to p(1-p) of the latest solve rate p.
    `easy_to_hard`: the same, and references are shown by falling p; prompts of examples then ask for a harder one."""
    chained_tasks: CountOrZero = 0
    """Most tasks of each kind and step that are made of two stored ones, f(x) = second(first(x)), and answered in
    groups of `group_size`. The product of the two solve rates is in a band that moves until half of the answers are
    right. They are stored, and may be chained again. No response is sampled for them. Not for `error`. Needs
    `train_on_estimates`."""
    derived_tasks: CountOrZero = 0
    """Most further tasks of each kind that an accepted task gives the solver, in groups of `group_size`: the pairs of
    an induction are deductions and abductions. They need no proposal, are not stored, and reward no proposer. Needs
    `train_on_estimates`."""
    seed_tasks: CountOrZero = 256
    """Tasks per kind gathered before the first step, grown from one identity program or from `seeds`."""
    seeds: str | None = None
    """File of tasks to start from, one JSON object a line as in a run's `tasks.jsonl` or in the Absolute Zero authors'
    seed files; `.gz` is unpacked. Each is checked again in the sandbox as if it had just been proposed, and the run
    directory's `seeds_rejected.jsonl` says why a line was refused. Only kinds that have fewer than `seed_tasks` then
    grow; one without any starts from the identity program. A resumed run does not read it again."""

    corpus: str | None = None
    """Python code that proposals are about: a folder with .py files, one such file, or JSON lines with `text` (`.gz` is
    unpacked). Its functions of at most 300 tokens are shown for an idea, or given to ask about; docs/corpus.md."""
    corpus_share: Share = 0.5
    """Share of the proposals that have a function of `corpus` in their prompt."""
    tools: Literal["none", "python", "notebook"] = "none"
    """Solvers may run Python, as by `rollout.tools`. Not for kinds that ask what a program returns."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Questions from a file to train on, alone or with self-play; `docs/data.md` describes its rows."""

    path: str | None = None
    """JSON lines (`.gz` is unpacked), parquet, or a data set of the hub: OWNER/NAME[/CONFIG][:SPLIT] (train), or its
    folder. None for self-play alone."""
    grader: tuple[str, ...] = ()
    """Graders of rows that name none, each with its weight if it is not 1: `math`, `my_rewards:style=0.2`."""
    fields: tuple[str, ...] = ()
    """The file's names of fields, if they differ: `prompt=question`, `answer=gold`."""
    play: Literal["alone", "mixed", "alternate"] = "alone"
    """`alone`: no self-play. `mixed`: every step has rows and self-play. `alternate`: odd steps are self-play, even
    steps answer rows."""
    prompts: Count = 128
    """Rows of a step. Epochs follow one another, each in an order that `run.seed` decides."""
    samples: CountOrZero = 8
    """Responses to each row, which form a group; 0 trains on traces alone, as in supervised fine-tuning."""
    traces: CountOrZero = 0
    """Traces of each row that join its group; the policy answers once more for each that the row lacks. Those of over
    `rollout.max_response_tokens` are left out. `algorithm.off_policy` says what is learned from them."""
    environment: str | None = None
    """`FILE.py:CLASS` or `MODULE:CLASS`: your environment, with which each answer to a row is a
    conversation; docs/environments.md."""

    @property
    def group_size(self) -> int:
        return self.samples + self.traces

    def uses_data(self, step: int) -> bool:
        """Whether this step, counted from 1, answers rows of a file."""
        return self.path is not None and (self.play != "alternate" or step % 2 == 0)

    def uses_selfplay(self, step: int) -> bool:
        return self.path is None or self.play == "mixed" or not self.uses_data(step)


@dataclass(frozen=True, kw_only=True)
class AblationConfig:
    """Controls for experiments: each takes one part of the algorithm away."""

    train_proposer: bool = True
    """Off: proposals are made and stored, but only the solver is trained on."""
    new_tasks: bool = True
    """Off: nothing is proposed after seeding, and each step samples as many stored tasks as it would propose, as if for
    an estimate."""
    shuffle_rewards: bool = False
    """Train on the rewards of each (kind, role) in random order. Metrics and rollout files keep the true rewards."""


@dataclass(frozen=True, kw_only=True)
class IntrinsicRewardConfig:
    """Optional bonuses for the proposer, each at most 0.5; one that is not named costs nothing."""

    bonuses: tuple[str, ...] = ()
    """Bonuses that azr/selfplay/rewards.py knows, each as `name:coefficient`: `complexity`, cyclomatic, over
    15; `edit_distance`, of the syntax tree from the references; `halstead`, effort and volume; `answer_diversity`, one
    minus the frequency of the task's answer in the buffer."""
    combine: Literal["sum", "multiply", "sum_multiply", "multiply_sum"] = "sum"
    """How bonuses c combine with the reward a of the solve rate: a+Σc, a·Πc, a+Πc, a·Σc."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    wrong: Annotated[float, Field(ge=-10, le=1)] = -0.5
    """Reward of a well-formed but wrong answer, and of a proposal that is in the buffer already if `repeat` is none."""
    malformed: Annotated[float, Field(ge=-10, le=1)] = -1.0
    """Reward of a malformed response, and of a proposal that validation rejects."""
    unlearnable: Annotated[float, Field(ge=-10, le=1)] = 0.0
    """Reward of a proposal with solve rate 0 or 1. The paper says 0; the authors' code -0.5."""
    repeat: Annotated[float, Field(ge=-10, le=1)] | None = None
    """Reward of a proposal that is in the buffer already or held out. With a number, such a proposal and one with solve
    rate 0 or 1 never get a positive advantage, whatever the rewards of others. None: a repeat gets `wrong`, and one
    that is held out is not trained on."""
    novelty: Share = 0.0
    """How much of a positive reward of a proposal depends on how new its shape is, the program up to names and
    constants: the reward is multiplied by 1 - v + v / sqrt(1 + n) when n stored tasks have that shape."""
    format: Literal["strict", "answer", "thought"] = "strict"
    """What a response must have; anything else is malformed. `strict`: closed thinking, if the prompt opened it, and
    right after it one answer between its tags, in the compact format the answer alone; of a row, as far as its prompt
    speaks of thinking and of answer tags, and in mathematics a box. `answer`: the answer's complete blocks wherever
    they stand, which the end of the turn ends too, in mathematics boxed (Open-Reasoner-Zero). `thought`: closed
    thinking, and after it whatever an evaluation would read as an answer (LUFFY). In the completion format blocks
    alone are required."""
    intrinsic: IntrinsicRewardConfig = field(default_factory=IntrinsicRewardConfig)
    overlong: Count | Literal["keep", "mask"] = "keep"
    """Responses near and at the length limit. `keep`: a response that is cut off is malformed. `mask`: it is not
    trained on. A number: as `keep`, and over so many tokens before `rollout.max_response_tokens` an added reward falls
    linearly from 0 to -1."""
    proposer: str = "learnability"
    """Reward of a proposer for a task's solve rate s, by a name in azr/selfplay/rewards.py: `learnability`, the
    paper's 1-s; `inverse`, 1-s at s=0 too; `variance`, 4s(1-s); `band`, 1 for medium s. It is `unlearnable` at s=1, and
    at s=0 with all but `inverse`."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    engines: NumProcesses = 1
    """vLLM engines."""
    tensor_parallel: NumProcesses = 1
    """GPUs per engine."""
    max_prompt_tokens: Count = 6144
    """Longest prompt, tokens; a proposer is shown fewer references if they would not fit."""
    max_response_tokens: Count = 8096
    """Longest response, tokens; a response that is cut off there is malformed."""
    tools: Literal["none", "python", "python_calls", "notebook", "notebook_calls"] = "none"
    """A sandboxed Python tool for answers to rows and to evaluated questions that ask neither for a program nor what
    one returns. `python`: a turn that ends with a block of Python is replied to with its output; `python_calls`: one
    with a tool call of the chat template; `notebook`, `notebook_calls`: and programs continue those before them."""
    turns: Count = 4
    """Most turns of the model in a conversation with a tool or an environment. All turns and replies have
    `max_response_tokens` together."""
    temperature: Annotated[float, Field(ge=0.01, le=10)] = 1.0
    """One temperature for proposing, estimating and solving; the losses use the same."""
    max_concurrent: Count = 256
    """Sequences decoded at once per engine."""
    refill: Count = 1
    """Most prompts that a step asks for each that it wants, until enough teach: `data.prompts` rows that are not
    answered all right or all wrong, and `selfplay.proposer_prompts` tasks of each kind that are solved sometimes but
    not always. Groups that do not teach are not trained on. 1: each prompt is answered once, and trained on."""
    staleness: CountOrZero = 0
    """Updates of the policy by which a sampled token may be older than the policy that is trained on it. Above 0, and
    with engines of their own (`cluster.colocate` off), the next steps are played while one is learned; responses that
    are in flight when the weights change are paused and continue. Not with `run.deterministic`."""
    partial: bool = False
    """End a step when 90% of its self-play work is done, and carry the rest over to the next step with the tokens it
    has (partial rollouts). Answers to rows of a file are always waited for. That takes one of `staleness`: with 1 no
    step is played ahead, with 2 one is."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of a GPU's memory that an engine may take."""
    engine_options: tuple[str, ...] = ()
    """vLLM's own engine arguments, each as `name:value`, such as `max_num_batched_tokens:16384`, `kv_cache_dtype:fp8`
    or `enforce_eager:true`; not those that an option or the run decides."""


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig:
    backend: Literal["auto", "docker", "bubblewrap", "namespace"] = "auto"
    """Isolation of model-written code; `auto` takes the strongest that works on the machine."""
    docker_runtime: str | None = None
    """Container runtime of the docker backend, such as gVisor's `runsc`; the engine's default when not given."""
    workers: NumProcesses = 4
    """Programs that run at once."""
    wall_s: Annotated[float, Field(ge=0.01, le=1e6)] = 1.0
    """Time limit of a call, seconds. On a busy machine a call also gets half of it as CPU time, unless it is
    idle."""
    memory_mb: Annotated[int, Field(ge=32, le=2**30)] = 512
    """Address space of one program, MiB."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    address: str | None = None
    """Ray cluster to join (`auto` for the one `ray start` made); none starts one on this machine."""
    colocate: bool = True
    """Engines share the GPUs of the trainers, by sleep and offload; off: they have GPUs of their own."""
    push: Literal["auto", "ipc", "nccl", "host"] = "auto"
    """How new weights get to the engines: `ipc` through the memory of the GPU that both share, `nccl` to other GPUs,
    `host` through the host's memory, which goes everywhere. `auto` takes the first of these that goes."""
    push_check_every: CountOrZero = 100
    """Pushes from one to the next that is compared byte by byte (BLAKE3); all others compare sums of bits. 0 for none,
    1 for each."""


@dataclass(frozen=True, kw_only=True)
class TimeoutConfig:
    """Longest waits, seconds; the message of a timeout says who waited for whom."""

    start_s: Positive = 600.0
    """For resources to be reserved, and for an actor to start and load its model."""
    generate_s: Positive = 1800.0
    """For the responses to one prompt, the prompts before it included, and for one program."""
    train_s: Positive = 900.0
    """For one pass of a training step, a push of the weights or a checkpoint. A collective gets 0.8 of it."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Benchmarks during a run; `azr eval` evaluates a finished model on all of them."""

    path: str | None = field(default_factory=lambda: own_data("exam"))
    """Folder of the project's own exam. No program of it is ever stored or trained on; none lifts that."""
    data: str | None = None
    """Folder of the files of other suites; without it they are neither evaluated nor held out; the start says so."""
    suites: tuple[str, ...] = ("exam",)
    """What is evaluated, see `azr eval --list`. No program of these suites is ever stored or trained on."""
    every: CountOrZero = 0
    """Steps between evaluations, with one more before the first step and after the last; 0 for none."""
    limit: Count = 192
    """Most questions of each suite, the same in every evaluation and run; of the exam as many of each kind."""
    samples: CountOrZero = 2
    """Answers per question at temperature 1, besides a greedy one."""


@dataclass(frozen=True, kw_only=True)
class SafetyConfig:
    """A search for alarming words in what the model writes; `docs/observability.md` says what it cannot see."""

    patterns: str | None = None
    """TOML file of rules, see `azr/monitoring/patterns.toml`, which is searched with when none is given."""
    stop_at: Count | None = None
    """Save and end the run after a step with at least this many flagged responses; none for no limit."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What `--resume` continues from; the last step, and a run that a signal stops, are always saved."""

    every: CountOrZero = 10
    """Steps between checkpoints; 0 for none but those."""
    keep: Count = 2
    """Newest checkpoints kept; a file called KEEP in a checkpoint's folder protects that one for good."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Trackers that get a run's metrics and a few samples."""

    to: tuple[str, ...] = ("tensorboard",)
    """Trackers: `tensorboard`, `wandb`, `wandb:PROJECT`, `mlflow`, `mlflow:EXPERIMENT`. docs/observability.md says what
    each gets. One that fails is said once and never ends the run."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of trackers; words of `to` may join several by commas."""
        return tuple(name for name, _ in self._entries)

    def setting(self, name: str, default: str) -> str:
        """Return the text after ``name:`` in `to`, or else the default."""
        return next((setting for each, setting in self._entries if each == name and setting), default)

    @property
    def _entries(self) -> list[tuple[str, str]]:
        entries = (entry.partition(":") for word in self.to for entry in word.split(","))
        return [(name, setting) for name, _, setting in entries]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True, defer_build=True)

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    selfplay: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    data: DataConfig = field(default_factory=DataConfig)
    ablation: AblationConfig = field(default_factory=AblationConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    timeout: TimeoutConfig = field(default_factory=TimeoutConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Reasoning kinds that are played: none where all that is trained on comes from a file."""
        return () if self.data.path is not None and self.data.play == "alone" else self.selfplay.kinds

    @property
    def has_reference(self) -> bool:
        """Whether the reference policy is a model of its own: with adapters it is the policy without them."""
        return self.algorithm.needs_reference and not self.train.lora.rank

    @property
    def trajectories_by_step(self) -> tuple[int, ...]:
        """Trajectories that steps are sure to train on, one number for each sort of step; estimates come on top."""
        play = self.selfplay
        proposals = play.proposer_prompts if self.ablation.train_proposer and self.ablation.new_tasks else 0
        of_play, of_data = len(self.kinds) * (proposals + play.solver_prompts), self.data.prompts * self.data.group_size
        if self.data.path is None:
            return (of_play,)
        return (of_play, of_data) if self.data.play == "alternate" else (of_play + of_data,)

    @property
    def max_trajectory_tokens(self) -> int:
        """Tokens of the longest prompt and response together."""
        return self.rollout.max_prompt_tokens + self.rollout.max_response_tokens

    @property
    def steps_ahead(self) -> int:
        """Steps that may be played while an earlier one trains: none if engines and trainers share GPUs.

        Carried-over samples age by one policy version.
        """
        return 0 if self.cluster.colocate else max(0, self.rollout.staleness - self.rollout.partial)

    @property
    def num_gpus(self) -> int:
        """GPUs that trainers and engines take together; on a CPU, places for as many processes."""
        engines = self.rollout.engines * self.rollout.tensor_parallel
        return max(self.train.data_parallel, engines) if self.cluster.colocate else self.train.data_parallel + engines

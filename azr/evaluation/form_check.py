"""Ask a model in every prompt form, as proposer and as solver, and recommend the form that it follows best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import Progress

from azr.answering import Generate, Problem, answer, task_problem
from azr.concurrency import gather, stable_seed
from azr.config import Config, ExecutorConfig, ModelConfig, RewardConfig, RolloutConfig, SelfPlayConfig
from azr.config_tree import override
from azr.errors import UserError
from azr.evaluation.suites.exam import OWN, exam_questions
from azr.executor.pool import SandboxPool
from azr.hardware import ComputeType
from azr.prompts.codec import PromptCodec, load_tokenizer
from azr.records import COPIED, ROLES, VALID, Completion, Judgement, Role, Sample, Stops, Task
from azr.rollout.engine import RolloutEngine
from azr.rollout.quiet_start import quiet_start
from azr.runs.model_folder import text_setting
from azr.selfplay.proposer import validate
from azr.tasks.base import RejectReason, Run, Verdict
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS

FORMS = {"completion": ModelConfig(prompt_format="completion")}
FORMS |= {template: ModelConfig(template=template) for template in ("tokenizer", "conversation")}
"""Forms that a pretrained model may follow, as options of a run; `conversation` opens the thinking."""
COMPACT = {"compact": ModelConfig(prompt_format="compact")}
"""The only form of a model whose vocabulary has its tags."""
MAX_TOKENS = 160
"""Longest response. The answers of the tasks have a few dozen tokens."""
SAMPLES = 6
"""Responses of each form, kind and role, at temperature 1."""
RESPONSES = len(ROLES) * len(SelfPlayConfig().kinds) * SAMPLES
"""Responses of each form."""
REFERENCES = 4
"""Past tasks in a proposal prompt."""
INDUCTION_INPUTS = 4
"""Inputs of an induction: small models do not count to ten."""
TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True)
class Cell:
    """Responses in one form, of one role to one kind."""

    form: str
    role: Role
    kind: str
    samples: Sequence[Sample]

    @property
    def well_formed(self) -> float:
        """Share of responses in the asked form."""
        bad = (RejectReason.MALFORMED, Verdict.MALFORMED)
        return fmean(each.judgement.verdict not in bad for each in self.samples if each.judgement)

    @property
    def good(self) -> float:
        """Share of right answers, or of valid proposals that do not copy what their prompt shows."""
        judged = [each.judgement for each in self.samples if each.judgement]
        return fmean(each.verdict in (VALID, Verdict.RIGHT) and not each.parts.get(COPIED) for each in judged)

    @property
    def tokens(self) -> float:
        return fmean(len(each.completion.response_ids) for each in self.samples)


@dataclass(frozen=True, slots=True)
class FormCheck:
    cells: tuple[Cell, ...]
    left_out: Mapping[str, str]
    """Forms that the model cannot be asked in, with the reason."""
    text: Callable[[Completion], str]

    def table(self) -> str:
        """Return a table: one line per form, role and kind."""
        lines = [f"{'form':<14}{'role':<10}{'kind':<9}{'well-formed':>14}{'valid/right':>13}{'tokens':>7}"]
        for cell in self.cells:
            shares = f"{cell.well_formed:>14.0%}{cell.good:>13.0%}{cell.tokens:>7.0f}"
            lines.append(f"{cell.form:<14}{cell.role:<10}{cell.kind:<9}{shares}")
        return "\n".join([*lines, *(f"{form}: not tried. {why}" for form, why in self.left_out.items())])

    def score(self, form: str, role: Role) -> tuple[float, float]:
        """Return the shares of valid or right and of well-formed responses, over all kinds."""
        cells = [each for each in self.cells if (each.form, each.role) == (form, role)]
        return fmean(each.good for each in cells), fmean(each.well_formed for each in cells)

    @property
    def best(self) -> str:
        """Form with most valid proposals and right answers; of equals the one followed most often."""
        scores = {cell.form: zip(*(self.score(cell.form, role) for role in ROLES), strict=True) for cell in self.cells}
        return max(scores, key=lambda form: tuple(map(sum, scores[form])))

    @property
    def learns(self) -> bool:
        """Whether rewards can differ: some proposal is valid, and some answer is right."""
        return all(self.score(self.best, role)[0] > 0 for role in ROLES)

    def example(self) -> str:
        """Return one whole proposal in the best form, a valid one if there is any."""
        cells = [each for each in self.cells if (each.form, each.role) == (self.best, "proposer")]
        first = min((sample for cell in cells for sample in cell.samples), key=lambda sample: sample.verdict != VALID)
        return self.text(first.completion)

    def advice(self) -> str:
        """Return one sentence that says which form to take."""
        form = self.best
        (valid, _), (right, _) = (self.score(form, role) for role in ROLES)
        shares = f"{valid:.0%} of its proposals are valid and {right:.0%} of its answers right"
        if not self.learns:
            return (
                f"This model will learn nothing by self-play: even in its best form, {form}, {shares}. Take another "
                "model, or train it on the form first."
            )
        model, default = (COMPACT | FORMS)[form], ModelConfig()
        words = [f"--model.prompt-format {model.prompt_format}"] if model.prompt_format != default.prompt_format else []
        words += [f"--model.template {model.template}"] if model.template != default.template else []
        words.append(f"--selfplay.induction-inputs {INDUCTION_INPUTS}")
        return f"Take {form}: {' '.join(words)} ({shares})."


async def check_forms(path: str, *, dtype: ComputeType) -> FormCheck:
    """Start vLLM and a sandbox, and ask held-out tasks in every form. Raises UserError where no form can be asked."""
    configs, codecs, left_out = _codecs(path)
    if not codecs:
        raise UserError(f"{path} can be asked in no form: {'; '.join(left_out.values())}")
    stops = Stops(tuple(dict.fromkeys(text for codec in codecs.values() for text in codec.stops.strings)))
    config = override(next(iter(configs.values())), {"timeout.generate_s": TIMEOUT_S, "train.dtype": dtype})
    engine = RolloutEngine(config, stops=stops)
    with quiet_start(path):
        await engine.start()
    try:
        async with SandboxPool(ExecutorConfig(workers=2)) as pool:
            with Progress(console=(console := Console(stderr=True)), disable=not console.is_terminal) as bar:
                step = partial(bar.advance, bar.add_task("responses", total=len(codecs) * RESPONSES))
                asking = (_ask(f, configs[f], codecs[f], engine.generate, pool.execute, step) for f in codecs)
                cells = [cell for of_form in await gather(*asking) for cell in of_form]
    finally:
        await engine.shutdown()
    return FormCheck(tuple(cells), left_out, next(iter(codecs.values())).response_text)


def _codecs(path: str) -> tuple[dict[str, Config], dict[str, PromptCodec], dict[str, str]]:
    """Return configs and codecs of the forms that the model can be asked in, and why it cannot be in the others."""
    longest = min(text_setting(Path(path), "max_position_embeddings") or 4096, 4096) - MAX_TOKENS
    base = Config(
        selfplay=SelfPlayConfig(references=REFERENCES, induction_inputs=INDUCTION_INPUTS),
        reward=RewardConfig(format="answer"),
        rollout=RolloutConfig(max_prompt_tokens=longest, max_response_tokens=MAX_TOKENS, max_concurrent=64),
    )
    configs, codecs, left_out = {}, {}, {}
    for form, model in (COMPACT if CompactFormat.answer in load_tokenizer(path).get_vocab() else FORMS).items():
        config = replace(base, model=replace(model, path=path))
        try:
            codec = PromptCodec.load(config)
            for kind in config.selfplay.kinds:
                codec.proposer_prompt(KINDS[kind], [KINDS[kind].seed()], longest)
        except UserError as error:
            left_out[form] = str(error)
        else:
            configs[form], codecs[form] = config, codec
    return configs, codecs, left_out


async def _ask(
    form: str, config: Config, codec: PromptCodec, generate: Generate, execute: Run, step: Callable[[float], None]
) -> list[Cell]:
    tasks = {kind: _held_out(kind, config.selfplay.induction_inputs) for kind in config.selfplay.kinds}
    problems: dict[tuple[Role, str], list[Problem]] = {
        ("proposer", kind): [_proposal(kind, tasks, number, config, codec, execute) for number in range(SAMPLES)]
        for kind in tasks
    } | {("solver", kind): [task_problem(task, "forms", codec, execute) for task in tasks[kind]] for kind in tasks}

    async def cell(role: Role, kind: str) -> Cell:
        seed = stable_seed(form, role, kind)
        asked = [
            answer(each, 1, generate=generate, max_tokens=MAX_TOKENS, seed=seed + number, temperature=1.0)
            for number, each in enumerate(problems[role, kind])
        ]
        samples = [sample for samples in await gather(*asked) for sample in samples]
        step(len(samples))
        return Cell(form, role, kind, samples)

    return await gather(*(cell(role, kind) for role, kind in problems))


def _held_out(kind: str, inputs: int) -> list[Task]:
    """Return tasks of this project's exam, short and long ones; of inductions with so many inputs."""
    of_kind = [each.gold for each in exam_questions(OWN) if each.gold.kind == kind]
    chosen = of_kind[:: len(of_kind) // SAMPLES][:SAMPLES]
    return [replace(task, inputs=task.inputs[:inputs], outputs=task.outputs[:inputs]) for task in chosen]


def _proposal(
    kind: str, tasks: Mapping[str, Sequence[Task]], number: int, config: Config, codec: PromptCodec, execute: Run
) -> Problem:
    """Return a proposal prompt as a problem; its references are held-out tasks, other ones for each number."""
    pool = [task for name in KINDS[kind].reference_kinds if name in tasks for task in tasks[name]]
    turned = pool[number % len(pool) :] + pool[: number % len(pool)]
    wanted = turned[: KINDS[kind].references_per_prompt(REFERENCES)]
    prompt_ids, shown = codec.proposer_prompt(KINDS[kind], wanted, config.rollout.max_prompt_tokens)
    id = f"{kind}-{number}"

    async def judge(completion: Completion) -> Judgement:
        _, judgement = await validate(
            kind, completion, shown, config=config, codec=codec, execute=execute, id=id, step=0
        )
        return judgement

    return Problem(id=id, kind=kind, group="forms", prompt_ids=prompt_ids, judge=judge)

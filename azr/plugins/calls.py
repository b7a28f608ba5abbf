"""Calls of a plug-in's kinds and functions, which run in the driver: it is the user's own code.

A call that fails costs one answer: one sentence names the function, and its traceback is in the log. A slow call is
named while it runs; it holds up the run, and nothing can end it.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from azr.config import RewardConfig
from azr.errors import UserError
from azr.estimators import Estimator
from azr.execution import MAX_INPUTS, ExecutionRequest, ExecutionResult
from azr.isolated import NUM_SAID, TIME_LIMIT_S, InvalidReply, plain_number
from azr.plugins.own import ESTIMATORS, REWARDS, WORDS, checked_task
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, Run, TaskKind, Verdict
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS
from azr.text import brief, clipped, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

ESTIMATE_LIMIT_S = 60.0
"""For the advantages of a whole batch."""
_RESPONSE, _PROPOSAL = "such a response is not trained on", "such a proposal is not trained on"
_STEP = "nothing is learned in such a step"
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class PluginFunction:
    """How a function of a plug-in is named in the log, and what was logged of it: each problem once, at most five."""

    name: str
    """Such as ``examples.expressions: kind expressions, grade``."""
    costs: str
    """What is lost if a call fails."""
    limit_s: float = field(default_factory=lambda: TIME_LIMIT_S)
    """A call that takes longer is named."""
    _said: set[str] = field(default_factory=set)

    @contextmanager
    def called(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Log what is raised in the block, and leave it; InvalidReply needs no traceback. Name the function if the
        block takes over its limit, without the time in blocks of what is yielded, which wait for programs."""
        num_waiting, timer = 0, self._timer()

        @contextmanager
        def paused() -> Iterator[None]:
            nonlocal num_waiting, timer
            num_waiting += 1
            timer.cancel()
            try:
                yield
            finally:
                num_waiting -= 1
                if not num_waiting:
                    timer = self._timer()

        try:
            yield paused
        except InvalidReply as nonsense:
            self._say(f"returned {nonsense}; {self.costs}")
        except Exception as error:
            self._say(f"raised {type(error).__name__}: {clipped(first_line(error), 200)}; {self.costs}", error)
        finally:
            timer.cancel()

    def _timer(self) -> threading.Timer:
        # A thread, since a function that does not return leaves no turn to the event loop.
        slow = f"takes over {self.limit_s:g} s for one call; the run waits and cannot end it"
        timer = threading.Timer(self.limit_s, self._say, [slow])
        timer.daemon = True
        timer.start()
        return timer

    def _say(self, problem: str, error: Exception | None = None) -> None:
        if problem not in self._said and len(self._said) < NUM_SAID:
            self._said.add(problem)
            log.warning("%s %s", self.name, problem, exc_info=error)


def _guarded(function: PluginFunction, call: Callable[..., Any], read: Callable[..., T]) -> Callable[..., T | None]:
    """Return a function that calls the plug-in's and returns None if it fails. ``read``: from what is returned and what
    was given to the answer; raises InvalidReply."""

    def answer(*given: Any) -> T | None:
        with function.called():
            return read(call(*given), *given)
        return None

    return answer


def guarded(plugin: str, group: str, name: str, stated: Any) -> Any:
    """Return a plug-in's reward, bonus or estimator, which returns None if it fails. The class of an estimator stays
    the same one. Raises UserError if a reward or bonus fails over a dummy."""
    what = f"{plugin}: {WORDS[group]} {name}"
    if group == ESTIMATORS:
        stated.score = _guarded(PluginFunction(what, _STEP, ESTIMATE_LIMIT_S), stated.score, _advantages)
        return stated
    given: tuple[Any, ...] = (
        (0.5, RewardConfig()) if group == REWARDS else (next(iter(KINDS.values())).seed(), [], list)
    )
    try:
        _number(stated(*given))
    except InvalidReply as nonsense:
        raise UserError(f"The {WORDS[group]} {name} of the plug-in {plugin} returns {nonsense}: correct it.") from None
    except Exception as error:
        said = f"{type(error).__name__}: {clipped(first_line(error), 200)}"
        raise UserError(f"The {WORDS[group]} {name} of the plug-in {plugin} cannot be called ({said}).") from error
    return _guarded(PluginFunction(what, _PROPOSAL), stated, _number)


def _number(returned: object, *_: object) -> float:
    number = plain_number(returned)
    if isinstance(number, int | float) and math.isfinite(number):
        return float(number)
    raise InvalidReply(f"{brief(returned)}, which is not a finite number")


def _advantages(returned: object, estimator: Estimator, batch: Batch) -> Tensor:
    """Return advantages, float64 (R)."""
    import torch

    if not isinstance(returned, torch.Tensor):
        raise InvalidReply(f"{brief(returned)}, which is not a tensor")
    if returned.shape != batch.seq_index_R.shape:
        tokens = len(batch.seq_index_R)
        raise InvalidReply(f"a tensor of the shape {tuple(returned.shape)}, and there are {tokens:,} response tokens")
    if not bool(returned.isfinite().all()):
        raise InvalidReply("numbers that are not finite")
    try:
        same = json.loads(json.dumps(estimator.state)) == estimator.state
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidReply("advantages, and a state that JSON changes: take texts, numbers, lists and dicts")
    return returned.detach().double()


def _delegate(method: str) -> Any:
    """Return a method that asks the plug-in's kind."""
    return lambda self, *given: getattr(self.kind, method)(*given)


class PluginKind(TaskKind):
    """A plug-in's kind in a run, which continues without the response that the kind fails over.

    Every accepted task has been shown once, so a task that cannot be shown costs its proposal only.
    """

    def __init__(self, plugin: str, kind: TaskKind) -> None:
        self.kind = kind
        for stated in ("name", "reference_kinds", "labels", "proposes_programs"):
            setattr(self, stated, getattr(kind, stated))
        what = f"{plugin}: kind {kind.name}"
        self._validating = PluginFunction(f"{what}, validate", _RESPONSE)
        self._grading = PluginFunction(f"{what}, grade", _RESPONSE)
        self._derive = _guarded(PluginFunction(f"{what}, derive_tasks", _RESPONSE), kind.derive_tasks, self._tasks)

    seed, references_per_prompt, io_pairs = map(_delegate, ("seed", "references_per_prompt", "io_pairs"))
    reference, proposal, solver_view, solution = map(_delegate, ("reference", "proposal", "solver_view", "solution"))
    proposer_instructions, solver_instructions = map(_delegate, ("proposer_instructions", "solver_instructions"))

    async def validate(self, proposal: Proposal, run: Run) -> Task | RejectReason:
        validate, read = partial(self.kind.validate, proposal), partial(self._outcome, proposal)
        outcome = await _judged(self._validating, validate, run, read)
        return RejectReason.LOST if outcome is None else outcome

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        verdict = await _judged(self._grading, partial(self.kind.grade, task, answer), run, _verdict)
        return Verdict.UNGRADED if verdict is None else verdict

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        return self._derive(task, pairs) or ()

    def _outcome(self, proposal: Proposal, returned: object) -> Task | RejectReason:
        if isinstance(returned, RejectReason):
            return returned
        if not isinstance(returned, Task):
            raise InvalidReply(f"{brief(returned)}, which is neither a task nor a RejectReason")
        return checked_task(self.kind, returned, proposal.id)

    def _tasks(self, returned: object, *_: object) -> tuple[Task, ...]:
        if not isinstance(returned, tuple):
            raise InvalidReply(f"{brief(returned)}, which is not a tuple of tasks")
        return tuple(checked_task(self.kind, each) for each in returned)


def _verdict(returned: object) -> Verdict:
    if not isinstance(returned, Verdict):
        raise InvalidReply(f"{brief(returned)}, which is not a Verdict")
    return returned


async def _judged(
    function: PluginFunction, judge: Callable[[Run], Awaitable[object]], run: Run, read: Callable[[object], T]
) -> T | None:
    """Return what a kind makes of a response, None if it fails. Raises what ``run`` raises, which is not its fault."""
    failures = list[Exception]()

    async def execute(request: ExecutionRequest) -> ExecutionResult:
        if not 1 <= len(request.inputs) <= MAX_INPUTS:  # a model may have written that many
            raise ValueError(f"a request has 1 to {MAX_INPUTS} inputs, not {len(request.inputs)}")
        with paused():
            try:
                return await run(request)
            except Exception as error:
                failures.append(error)
                raise

    with function.called() as paused:
        try:
            return read(await judge(execute))
        except Exception:
            if not failures:
                raise
    if failures:
        raise failures[0]
    return None

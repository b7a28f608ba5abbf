"""Expected seconds of a step, phase by phase: what must be computed or moved, over the assumed rates.

A phase waits for several things at once, and lasts as long as the slowest of them: its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from azr.config import Config
from azr.plan import memory
from azr.plan.inputs import Assumptions, ClusterSpec, Workload, update_share
from azr.plan.memory import EngineMemory, ModelRole

GIGA, TERA = 1e9, 1e12
STEP_TRAFFIC = 28
"""Bytes per parameter that Adam moves: reads master copy, two moments and gradient, writes all but the last."""
VALIDATION_RUNS = 4
"""Runs of a proposed program; see docs/executor.md."""

Seconds = Mapping[str, float]
"""Bounds of a phase: seconds by what it waits for."""


def forward_flops(role: ModelRole, load: Workload, attention_cost: float = 1.0) -> float:
    """Return operations of a forward over the trained trajectories: 2 per parameter and token, and causal attention,
    each of whose operations counts as `attention_cost`.

    The output head only sees response tokens.
    """
    shape = role.shape
    per_token = 2 * (
        shape.in_layers + (shape.layers - shape.recurrent) * attention_cost * shape.query * load.mean_length
    )
    head = 2 * shape.embedding * load.trained * load.mean_response * role.has_head
    return per_token * load.trained_tokens + head


def token_seconds(engine: EngineMemory, cached_tokens: float, assumed: Assumptions) -> float:
    """One token for every sequence decoded at once: weights and their KV cache are read once."""
    read = engine.weights + cached_tokens * engine.kv_token
    return read / (assumed.memory_gb_s * GIGA * assumed.decode_efficiency) + assumed.decode_overhead_ms / 1e3


@cache
def expected_longest(count: int, mean: float, most: float) -> float:
    """Tokens of the longest of `count` responses whose lengths are exponential with this mean and are cut at `most`.

    The integral of 1 - F(x)^n up to the cut, which is mean · Σ F(most)^k / k for k from 1 to n: it grows with the
    logarithm of n until the cut. Lengths that are all `most` stay so.
    """
    if mean >= most or not count:
        return most if count else 0.0
    below = 1 - math.exp(-most / mean)
    return mean * math.fsum(below**k / k for k in range(1, count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step's phases."""

    config: Config
    load: Workload
    nodes: ClusterSpec
    assumed: Assumptions

    def by_phase(self, roles: Sequence[ModelRole], engine: EngineMemory) -> dict[str, Seconds]:
        """In the order of a step; `roles` has the policy first."""
        algorithm = self.config.algorithm
        times = {"play": self.play(roles[0], engine), "score": self.score(roles)}
        for role in roles:
            if role.trains:
                updates = algorithm.policy_mini_batches if role.name == "policy" else algorithm.critic_mini_batches
                times[f"train {role.name}"] = self.train(role, updates)
        times["push"] = self.push(roles[0])
        return times | ({"turns": self.turns(roles)} if self.config.cluster.colocate else {})

    def play(self, policy: ModelRole, engine: EngineMemory) -> Seconds:
        """Prompts are read, responses decoded at the speed of memory, programs run, and all of it is led by one driver.

        The longest proposal is followed by the longest estimate, each alone on its engine by then: an upper bound.
        """
        rollout, load, assumed = self.config.rollout, self.load, self.assumed
        # What follows a proposal waits for it, unless the next step's proposals fill the time.
        waves = (load.proposals, load.trajectories - load.proposals)
        counts = [sum(waves)] if self.config.steps_ahead else waves
        decoding = sum(self._decoding(count, engine) for count in counts)
        gpus = rollout.engines * rollout.tensor_parallel
        prefill = 2 * policy.shape.parameters * load.prompts * load.mean_prompt
        reading = prefill / (gpus * assumed.peak_tflops * TERA * assumed.prefill_mfu)
        alone = token_seconds(engine, load.mean_prompt + rollout.max_response_tokens, assumed)
        runs = VALIDATION_RUNS * load.proposals + load.estimates + load.solves
        followers = load.estimates or load.solves or load.row_answers
        return {
            "decoding": decoding + reading,
            "longest response": (self._tail(load.proposals) + self._tail(followers)) * alone,
            "executor": runs / (self.config.executor.workers * assumed.executor_runs_s),
            "driver": load.trajectories * assumed.driver_ms / 1e3,
        }

    def _decoding(self, count: int, engine: EngineMemory) -> float:
        """Seconds of so many responses that begin together."""
        rollout, load = self.config.rollout, self.load
        room = engine.kv_tokens / load.mean_length
        at_once = max(1.0, min(rollout.max_concurrent, count / rollout.engines, room))
        cached = load.mean_prompt + load.mean_response / 2
        rate = at_once / token_seconds(engine, at_once * cached, self.assumed)
        return count * load.mean_response / rollout.engines / rate

    def _tail(self, count: int) -> float:
        """Tokens of the last response that is waited for: with `rollout.partial` of the first nine in ten."""
        mean, most = self.load.mean_response, self.config.rollout.max_response_tokens
        longest = expected_longest(count, mean, most)
        return min(longest, mean * math.log(10)) if self.config.rollout.partial and mean < most else longest

    def score(self, roles: Sequence[ModelRole]) -> Seconds:
        """Critic values, reference logprobs and, where there are several mini-batches, the policy's own; in turn."""
        passes = [self._passing(role, 1) for role in memory.scorers(self.config, roles)]
        bound = max(passes, key=seconds_of, default={})
        return {max(bound, key=lambda what: bound[what]): sum(map(seconds_of, passes))} if bound else {}

    def train(self, role: ModelRole, updates: int) -> Seconds:
        """Forward, backward (twice a forward), what checkpointing computes again; then `updates` optimizer steps."""
        # Of a frozen layer the backward computes the gradient of its inputs, and not that of its weights.
        backward = 2 if role.trains_all else 1
        passes = 1 + backward + memory.RECOMPUTED[self.config.train.checkpointing]
        stepping = self._optimizer(role, updates)
        return {what: at + stepping for what, at in self._passing(role, passes, updates, reduces=True).items()}

    def push(self, policy: ModelRole) -> Seconds:
        """All weights once into each node, while inside each they pass to its engines.

        Through host memory one node sends to all others; collectives pass them on from node to node.
        """
        assumed, nodes = self.assumed, math.ceil(self.config.num_gpus / self.nodes.gpus)
        shape = policy.shape
        nbytes = memory.element_bytes(self.config.train) * (shape.parameters + shape.embedding * shape.tied)
        inside = nbytes / (assumed.push_gb_s * GIGA)
        if nodes == 1:
            return {"push inside a node": inside}
        if self.config.cluster.push != "host":
            return {"push inside a node": inside, "network": nbytes / (assumed.network_gb_s * GIGA)}
        return {"object store": inside + (nodes - 1) * nbytes / (assumed.object_store_gb_s * GIGA)}

    def turns(self, roles: Sequence[ModelRole]) -> Seconds:
        """Engines sleep and wake; each model comes from the host and goes back there, to score and again to train."""
        train, visitors = self.config.train, memory.scorers(self.config, roles) if len(roles) > 1 else []
        moved = 2 * sum(memory.states(role, train)["parameters"] for role in visitors)
        moved += 2 * sum(memory.offloaded_bytes(role, train) for role in roles if role.trains)
        return {"sleep, wake, offload": self.assumed.turns_s + moved / (self.assumed.pcie_gb_s * GIGA)}

    def _passing(self, role: ModelRole, passes: float, updates: int = 1, *, reduces: bool = False) -> Seconds:
        """Arithmetic, and what crosses links: for each micro-batch ZeRO-3 gathers the parameters and, if it `reduces`
        the gradients, gathers them again.

        With hpZ, parameters cross between nodes once an update, and are gathered from the node's copy from then on.
        Ranks that hold a whole model gather nothing, and add up its gradients in each update, both ways.
        """
        train, assumed = self.config.train, self.assumed
        ranks = train.data_parallel
        # The share counts what full checkpointing computes again as no work, and four passes as three.
        rate = ranks * assumed.peak_tflops * TERA * update_share(assumed, role.shape) * 4 / 3
        times = {"arithmetic": passes * forward_flops(role, self.load, assumed.attention_cost) / rate}
        inside, nodes = min(ranks, self.nodes.gpus), math.ceil(ranks / self.nodes.gpus)
        gathered = memory.element_bytes(train) * role.parameters * train.is_sharded
        fetched = self._micro_batches * (1 + reduces)
        reduced = 4.0 * role.trained * reduces * (self._micro_batches if train.is_sharded else 2 * updates)
        if inside > 1:
            moved = (fetched * gathered + reduced) * (inside - 1) / inside
            times["links in a node"] = moved / (assumed.link_gb_s * GIGA)
        if nodes > 1:
            fetched = updates if memory.node_copies(role, train, self.nodes) else fetched
            moved = (fetched * gathered + reduced) * (nodes - 1) / nodes
            times["network"] = moved / (assumed.network_gb_s * GIGA)
        return times

    def _optimizer(self, role: ModelRole, updates: int) -> float:
        train, assumed = self.config.train, self.assumed
        share = role.trained / memory.shares(train)
        if not train.offload_optimizer:
            return updates * STEP_TRAFFIC * share / (assumed.memory_gb_s * GIGA)
        # Each micro-batch's gradients go to the host, where they are kept, and back and forth to be added up.
        traffic = 3 * 4 * self._micro_batches + updates * (4 + memory.element_bytes(train))
        stepping = updates * STEP_TRAFFIC * share * min(train.data_parallel, self.nodes.gpus)
        return traffic * share / (assumed.pcie_gb_s * GIGA) + stepping / (assumed.host_gb_s * GIGA)

    @property
    def _micro_batches(self) -> int:
        """Micro-batches of one rank, at expected lengths."""
        train = self.config.train
        return max(1, math.ceil(self.load.trained_tokens / train.data_parallel / train.tokens_per_micro_batch))


def seconds_of(phase: Seconds) -> float:
    """Return the largest bound of the phase."""
    return max(phase.values(), default=0.0)

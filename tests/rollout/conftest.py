"""One running engine, in a Ray actor as in a real run, for the whole session: starting one takes long."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from azr.cluster.weight_buckets import WeightBucket
from azr.cluster.weight_transfers import HostOutbox
from azr.config import RolloutConfig
from azr.records import Completion, Stops
from azr.rollout.engine import RolloutEngine
from tests.recipes import engine_config

STOPS = Stops(("}",), (294,))
"""A text, and a token beside the tokenizer's end token, that a model of random weights writes now and then."""
PROMPT = list(range(40, 140))
NamedTensors = dict[str, torch.Tensor]
Groups = Sequence[Iterable[tuple[str, torch.Tensor]]]


@dataclass
class Served:
    """The engine, and a Hugging Face model that always holds the weights the engine should have."""

    engine: Any
    model: PreTrainedModel
    version: int = 0
    writer: HostOutbox = field(default_factory=lambda: HostOutbox().open(1 << 20))

    def perturbed(self, seed: int) -> NamedTensors:
        """New values for every parameter, far enough from the old ones to change every logprob."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: parameter.detach() + 0.05 * torch.randn(parameter.shape, generator=generator)
            for name, parameter in self.model.named_parameters()
        }

    async def push(self, weights: NamedTensors, groups: Groups | None = None) -> None:
        """Send the weights, in these groups if not in one."""
        bucket = await self.load(groups or [weights.items()])
        assert await self.engine.finish_update.remote(bucket.version, bucket.digest) == bucket.version
        self.follow(weights, bucket.version)

    async def load(self, groups: Groups, **options: bool) -> WeightBucket:
        """Begin an update and load all of its buckets; return the last."""
        version = self.version + 1
        await self.engine.begin_update.remote(version)
        for bucket in self.writer.pack(version, groups, **options):
            await self.engine.load_bucket.remote(bucket)
        return bucket

    def follow(self, weights: NamedTensors, version: int) -> None:
        self.model.load_state_dict(weights, strict=False)
        self.version = version

    async def check(self) -> None:
        """Sample a response by the weights that the engine should have."""
        (completion,) = await self.engine.generate.remote(PROMPT, n=1, max_tokens=24, temperature=1.0)
        assert set(completion.weight_versions) == {self.version} and self.logprob_error(completion, 1.0) < 1e-4

    def logprob_error(self, completion: Completion, temperature: float) -> float:
        """Mean absolute difference between the engine's logprobs and the model's, in float32."""
        return float(self.logprob_errors(completion, temperature).mean())

    @torch.no_grad()
    def logprob_errors(self, completion: Completion, temperature: float) -> torch.Tensor:
        """As `logprob_error`, of each response token."""
        ids = torch.tensor([completion.token_ids])
        logits = self.model(ids).logits[0, len(completion.prompt_ids) - 1 : -1] / temperature
        response = torch.tensor(completion.response_ids, dtype=torch.int64)
        expected = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        return (expected - torch.tensor(completion.logprobs)).abs()


@pytest.fixture(scope="session")
def served(ray_cluster: None, tiny_model_path: Path) -> Iterator[Served]:
    # What is in flight when weights change is interrupted; other tests' engines wait for it.
    config = RolloutConfig(max_prompt_tokens=256, max_response_tokens=256, max_concurrent=64, staleness=1)
    engine = ray.remote(RolloutEngine).remote(engine_config(tiny_model_path, config, 1800.0), stops=STOPS, seed=0)
    ray.get(engine.start.remote(), timeout=300)
    served = Served(engine, AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32).eval())
    yield served
    served.writer.close()
    ray.get(engine.shutdown.remote(), timeout=60)
    ray.kill(engine)

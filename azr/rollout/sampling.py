"""One prompt through vLLM: tokens in, completions out, nothing decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from azr.records import Completion, FinishReason

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


async def sample(
    llm: AsyncLLM,
    request_id: str,
    prompt_ids: Sequence[int],
    *,
    n: int,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    weight_version: int,
) -> list[Completion]:
    """`n` completions sampled from softmax(logits / temperature), without any truncation of the distribution."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    parameters = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        top_p=1.0,
        top_k=-1,
        # The sampled token's own logprob and no others, as plain lists.
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    (output,) = [o async for o in llm.generate(tokens_input(list(prompt_ids)), parameters, request_id)]
    return [
        Completion(
            prompt_ids=tuple(prompt_ids),
            response_ids=tuple(sampled.token_ids),
            logprobs=tuple(sampled.logprobs.logprobs),
            finish_reason=FinishReason(sampled.finish_reason),
            weight_version=weight_version,
        )
        for sampled in output.outputs
    ]

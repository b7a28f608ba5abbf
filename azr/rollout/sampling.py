"""One prompt through vLLM: tokens in, completions out, nothing decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from azr.records import Completion, FinishReason

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs import TokensInput
    from vllm.outputs import RequestOutput
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
    alone: bool,
) -> list[Completion]:
    """`n` completions sampled from softmax(logits / temperature), without any truncation of the distribution.

    `alone`: nothing else is in the engine, nor is asked of it meanwhile; with a seed the completions then hang on the
    arguments and the weights only, to the last bit.
    """
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
    answer = _alone if alone else _among_others
    output = await answer(llm, request_id, tokens_input(list(prompt_ids)), parameters)
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


async def _among_others(
    llm: AsyncLLM, request_id: str, prompt: TokensInput, parameters: SamplingParams
) -> RequestOutput:
    (output,) = [output async for output in llm.generate(prompt, parameters, request_id)]
    return output


async def _alone(llm: AsyncLLM, request_id: str, prompt: TokensInput, parameters: SamplingParams) -> RequestOutput:
    """Rounding depends on what is computed together, so the samples start together, with an empty prefix cache.

    vLLM takes in the samples of a prompt one after another and would begin with the first.
    """
    await llm.pause_generation(mode="keep", clear_cache=True)
    try:
        answer = await llm.add_request(request_id, prompt, parameters)
        await llm.resume_generation()
        return await answer.get()
    except asyncio.CancelledError:
        await llm.abort(request_id)
        raise

"""What is said when an engine's share of a GPU is not free."""

import pytest

from azr.errors import UserError
from azr.rollout import vllm_adapter
from azr.rollout.vllm_adapter import GIB, shortage, wait_until_free

Use = tuple[int, int, dict[int, int | None]]


def gpu(free_gib: float, holders: dict[int, int | None] | None = None) -> Use:
    return 80 * GIB, int(free_gib * GIB), holders or {}


def test_who_has_the_memory_is_named_the_largest_first() -> None:
    assert shortage("3", 0.85, *gpu(50, {7: 2 * GIB, 9: 27 * GIB, 11: None})) == (
        "An engine wants 68.0 GiB of GPU 3 (rollout.gpu_memory_utilization=0.85 of 80.0) and 0.5 for its process to be "
        "free when it starts, but only 50.0 are (taken by process 9 with 27.0 GiB, process 7 with 2.0 GiB, process "
        "11): lower rollout.gpu_memory_utilization, or end what else runs on this GPU."
    )
    assert shortage("3", 0.85, *gpu(68.5)) is None, "enough is enough"
    assert "(nvidia-smi says who has the rest)" in str(shortage("3", 0.85, *gpu(68.4)))


async def test_memory_that_is_still_coming_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a6f,7")
    asked: list[str] = []

    def use(name: str) -> Use:
        asked.append(name)
        return gpu(10 if len(asked) < 3 else 80)

    monkeypatch.setattr(vllm_adapter, "_use", use)
    await wait_until_free(0.85, 2)
    assert asked == ["3", "GPU-5a6f"] * 2
    monkeypatch.setattr(vllm_adapter, "PATIENCE_S", 0.0)
    monkeypatch.setattr(vllm_adapter, "_use", lambda name: gpu(10))
    with pytest.raises(UserError, match=r"only 10\.0 are"):
        await wait_until_free(0.85, 2)

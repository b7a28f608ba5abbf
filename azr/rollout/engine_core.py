"""What an engine's actor says when the core process that samples for it is dead."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

LOOK_S = 1.0
"""Between two looks at the core process while a call waits for it."""


class CoreDied(RuntimeError):
    """The actor lives on without its core process; nothing but another actor helps."""


class HasCore(Protocol):
    @property
    def core_died(self) -> bool: ...


E = TypeVar("E", bound=HasCore)
P = ParamSpec("P")
T = TypeVar("T")


def reports_death(
    method: Callable[Concatenate[E, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[E, P], Coroutine[Any, Any, T]]:
    """Raises CoreDied when the core process is dead.

    vLLM never answers some calls that were in flight when it died, those on weights among them. Those that it does
    fail it fails with a class of its own, which whoever reads it from Ray would import all of vLLM for.
    """

    @functools.wraps(method)
    async def reporting(engine: E, *args: P.args, **kwargs: P.kwargs) -> T:
        work = asyncio.ensure_future(method(engine, *args, **kwargs))
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
                if engine.core_died:
                    raise CoreDied("vLLM's core process is dead")
            return work.result()
        except Exception as error:
            from vllm.v1.engine.exceptions import EngineDeadError

            if isinstance(error, EngineDeadError):
                raise CoreDied("vLLM's core process is dead") from None
            raise
        finally:
            work.cancel()

    return reporting

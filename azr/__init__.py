"""Absolute Zero self-play on Ray, DeepSpeed and vLLM."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azr.executor.pool import SandboxPool as SandboxPool

__version__ = "0.1.0"

# The name that `ast.parse` gives to a text: what it finds odd about a model's is no news for who reads the log.
warnings.filterwarnings("ignore", module="<unknown>")


def __getattr__(name: str) -> Any:
    """Import ``SandboxPool`` on first use, so that ``import azr`` stays light."""
    if name != "SandboxPool":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from azr.executor.pool import SandboxPool

    return SandboxPool

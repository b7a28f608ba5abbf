"""Absolute Zero self-play on Ray, DeepSpeed and vLLM.

Public are the names in ``__all__``, the command line, the options of a config, and the files of a run. They change by
semantic versioning. Other modules may change in any release.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azr.api import Report as Report
    from azr.api import Run as Run
    from azr.api import evaluate as evaluate
    from azr.api import export as export
    from azr.api import run as run
    from azr.config import Config as Config
    from azr.errors import UserError as UserError
    from azr.executor.pool import SandboxPool as SandboxPool

__version__ = "0.1.0"
_HOMES = {
    **dict.fromkeys(("Report", "Run", "evaluate", "export", "run"), "azr.api"),
    "Config": "azr.config", "SandboxPool": "azr.executor.pool", "UserError": "azr.errors",
}  # fmt: skip
__all__ = sorted(_HOMES)

# The name that `ast.parse` gives to a text: what it finds odd about a model's is not news for who reads the log.
warnings.filterwarnings("ignore", module="<unknown>")


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import azr`` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Absolute Zero self-play on Ray, DeepSpeed and vLLM."""

import warnings

__version__ = "0.1.0"

# The name that `ast.parse` gives to a text: what it finds odd about a model's is no news for who reads the log.
warnings.filterwarnings("ignore", module="<unknown>")

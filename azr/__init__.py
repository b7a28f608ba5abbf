"""Absolute Zero self-play on Ray, DeepSpeed and vLLM."""

__version__ = "0.1.0"

"""Tensors in, tensors out: packing, attention, log-probabilities, advantages, losses."""

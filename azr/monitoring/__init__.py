"""Lengths and repetition of responses, and a screen for alarming texts. No model judges."""

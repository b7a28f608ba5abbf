"""Before a run starts: does it fit, and how long does a step take? Plain arithmetic, without torch or Ray.

`shapes` knows models, `batch` what a step amounts to, `memory` bytes, `seconds` time, `verdict` puts them together and
says which knob to turn, `table` writes it down. Every number that is not counted is in `assumptions`.
"""

"""Before a run starts: does it fit, and how long does a step take? Plain arithmetic, without torch or Ray."""

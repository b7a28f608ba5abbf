"""The held-out benchmark: its suites, its graders, and how a run or a finished model takes it."""

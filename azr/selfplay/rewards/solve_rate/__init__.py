"""What a task's solve rate pays its proposer: one function per file, named in `azr.selfplay.rewards.registry`."""

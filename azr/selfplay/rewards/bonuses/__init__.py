"""What a task may earn its proposer beside its solve rate: one per file, named in `azr.selfplay.rewards.registry`."""

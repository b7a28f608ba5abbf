"""What proposer and solver earn: the rule in `pay`, and what is chosen by name in `registry`."""

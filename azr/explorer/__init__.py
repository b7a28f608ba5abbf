"""What a run has thought: an index beside its records, and the pages and tables of ``azr view`` and ``azr show``."""

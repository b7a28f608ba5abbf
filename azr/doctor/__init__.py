"""What a machine or cluster offers a run, looked at before anything is started: one file per check."""

"""What a machine or a cluster offers a run, looked at before anything is started: one function per section."""

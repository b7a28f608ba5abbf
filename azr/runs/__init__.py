"""Files of a run, and its output while it runs."""

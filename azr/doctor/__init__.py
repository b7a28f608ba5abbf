"""Checks of a machine or a cluster before a run starts: one function per section."""

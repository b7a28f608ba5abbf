"""Propose and solve: prompts, rewards, and the buffer of tasks."""

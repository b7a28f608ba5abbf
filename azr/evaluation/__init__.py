"""Evaluation: a model answers public benchmarks and the project's exam; answers are graded by running code."""

"""Graders: each judges the answers to suites of one form."""

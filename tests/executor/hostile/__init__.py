"""Hostile programs, one file per family, and what runs them."""

"""Honest programs that run beside and after every attack, and notice what it changed."""

from tests.executor.hostile.attack import PARTS

NEIGHBOUR = "def f(number, word):\n    return [sum([number] * 2), ''.join(list(word))]"

HEIR = PARTS["heir"]
"""Arithmetic, the library, and all state of an interpreter and a process that a program could leave behind."""

"""All attacks."""

from tests.executor.hostile.chance import CHANCE, CLOCKS, COMPANY, ODD
from tests.executor.hostile.channels import CHANNELS
from tests.executor.hostile.exhaustion import MEMORY, OUTPUT, TIME
from tests.executor.hostile.files import READING, WRITING
from tests.executor.hostile.forgery import FORGERY, PEEKING
from tests.executor.hostile.learning import LEARNING
from tests.executor.hostile.network import NETWORK, SOCKETS
from tests.executor.hostile.parsing import CRASHES, PARSING
from tests.executor.hostile.processes import OTHERS, PRIVILEGES, PROCESSES
from tests.executor.hostile.tricks import IMPORTS, LIES, TOOLS

FAMILIES = (
    NETWORK, SOCKETS, READING, WRITING, PROCESSES, OTHERS, CHANNELS, PRIVILEGES, TIME, MEMORY, OUTPUT, PARSING, CRASHES,
    FORGERY, PEEKING, LEARNING, LIES, TOOLS, IMPORTS, CHANCE, CLOCKS,
    COMPANY, ODD,
)  # fmt: skip
ATTACKS = tuple(attack for family in FAMILIES for attack in family.attacks)
"""Hostile programs, and a few honest ones with odd values."""

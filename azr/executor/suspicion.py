"""What is suspect about a program, by its code: that its result hangs on hash order, that its calls share state."""

from __future__ import annotations

import dis
import enum
from types import CodeType


class Suspicion(enum.IntFlag):
    """Reasons to run a program otherwise than others."""

    ORDER = 1
    """Its result may depend on the order of hashes, on identity or on addresses: it is repeated more often."""
    STATE = 2
    """A call may leave something behind for the next one in the same process: every call gets a process of its own."""


_ORDER_NAMES = frozenset({"set", "frozenset", "hash", "id", "object", "keys", "items", "__hash__", "repr"})
_ORDER_OPERATIONS = frozenset(dis.opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE", "LOAD_BUILD_CLASS"))


def suspicion(code: CodeType) -> int:
    """What is suspect about a program. Runs nothing of it."""
    found = 0
    waiting = [code]
    while waiting:
        one = waiting.pop()
        waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
        operations = set(one.co_code[::2])
        if not _ORDER_NAMES.isdisjoint(one.co_names) or not _ORDER_OPERATIONS.isdisjoint(operations):
            found |= Suspicion.ORDER
        if dis.opmap["IMPORT_NAME"] in operations:
            found |= Suspicion.STATE
    return found


def has_sets(value: object) -> bool:
    """Whether plain data holds a set at any depth."""
    match value:
        case set() | frozenset():
            return True
        case list() | tuple():
            return any(map(has_sets, value))
        case dict():
            return any(map(has_sets, value)) or any(map(has_sets, value.values()))
    return False

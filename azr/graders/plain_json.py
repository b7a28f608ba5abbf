"""Values as JSON and back, on both sides of a sandbox's wall: its text is a part of every program that is called.

What JSON has is itself; other values are objects with one letter as key. Subclasses count as what they derive from,
and what is no plain data becomes an `Opaque`, which equals nothing. Standard library only.
"""

import collections
import collections.abc
import decimal
import fractions

MAX_DEPTH = 200
_LONG = 10**300
_FEW_COLLISIONS = 32
_MAX_BITS = 2**16
_MAX_HEX = 2**15


class Opaque:
    """Something of which only the type's name is known; it equals nothing else."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


def encode(value, depth=0):
    """What `json.dumps` can write."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if isinstance(value, int):
        value = int(value)
        return value if -_LONG < value < _LONG else {"i": hex(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if depth >= MAX_DEPTH:
        return {"o": "deeply nested"}
    if isinstance(value, list):
        return [encode(each, depth + 1) for each in value]
    if isinstance(value, tuple):
        return {"t": [encode(each, depth + 1) for each in value]}
    if isinstance(value, dict):
        return {"d": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    if isinstance(value, frozenset):
        return {"z": [encode(each, depth + 1) for each in value]}
    if isinstance(value, (set, collections.abc.KeysView)):
        return {"s": [encode(each, depth + 1) for each in value]}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, collections.deque):
        return {"q": [encode(each, depth + 1) for each in value]}
    if isinstance(value, fractions.Fraction):
        return {"f": [encode(value.numerator), encode(value.denominator)]}
    if isinstance(value, decimal.Decimal):
        return {"n": str(value)}
    return {"o": kind.__name__}


def decode(stated):
    """The value again. Raises ValueError, TypeError or ArithmeticError for what `encode` did not make."""
    if type(stated) is list:
        return [decode(each) for each in stated]
    if type(stated) is not dict:
        return stated
    ((letter, content),) = stated.items()
    if letter == "i":
        if len(content) > _MAX_HEX:
            raise ValueError("an integer that takes long to compare with a decimal")
        return int(content, 16)
    if letter == "t":
        return tuple([decode(each) for each in content])
    if letter == "d":
        keys = [decode(key) for key, _ in content]
        refuse_collisions(keys)
        return dict(zip(keys, [decode(item) for _, item in content], strict=True))
    if letter in "sz":
        items = [decode(each) for each in content]
        refuse_collisions(items)
        return set(items) if letter == "s" else frozenset(items)
    if letter == "c":
        return complex(*content)
    if letter == "b":
        return bytes.fromhex(content)
    if letter == "q":
        return collections.deque([decode(each) for each in content])
    if letter == "f":
        parts = decode(content[0]), decode(content[1])
        if max(part.bit_length() for part in parts) > _MAX_BITS:
            raise ValueError("a fraction that takes long to reduce")
        return fractions.Fraction(*parts)
    if letter == "n":
        if len(content) > _MAX_BITS:
            raise ValueError("a decimal of too many digits")
        return decimal.Decimal(content)
    if letter == "o":
        return Opaque(content)
    raise ValueError("no such letter")


def refuse_collisions(items):
    """Raises ValueError when many different items share a hash: a set of n such takes time like n squared."""
    different: dict = {}
    for item in items:
        known = different.setdefault(hash(item), [])
        if item not in known:
            known.append(item)
        if len(known) > _FEW_COLLISIONS:
            raise ValueError("too many items share a hash")

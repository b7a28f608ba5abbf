"""Values as JSON and back, on both sides of a sandbox's wall: its text is a part of every program that is called.

What JSON has is itself; other values are objects with one letter as key. Subclasses count as what they derive from,
and what is not plain data becomes an `Opaque`, which equals nothing. Standard library only.
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


def _fraction(parts):
    if max(part.bit_length() for part in parts) > _MAX_BITS:
        raise ValueError("a fraction that takes long to reduce")
    return fractions.Fraction(*parts)


def _of_text(read, most):
    def restored(text):
        if len(text) > most:
            raise ValueError("a number of so many digits that it takes long to compare")
        return read(text)

    return restored


_CODES: dict = {
    "i": (int, hex, _of_text(lambda text: int(text, 16), _MAX_HEX)),
    "t": (tuple, list, tuple),
    "d": (dict, lambda value: [list(item) for item in value.items()], dict),
    "z": (frozenset, list, frozenset),
    "s": ((set, collections.abc.KeysView), list, set),
    "c": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "b": ((bytes, bytearray), lambda value: bytes(value).hex(), bytes.fromhex),
    "q": (collections.deque, list, collections.deque),
    "f": (fractions.Fraction, lambda value: [value.numerator, value.denominator], _fraction),
    "n": (decimal.Decimal, str, _of_text(decimal.Decimal, _MAX_BITS)),
    "o": (object, lambda value: type(value).__name__, Opaque),
}
"""Letters of types, with what states a value as a list or text, and what makes the value of that again."""


def encode(value, depth=0):
    """What `json.dumps` can write."""
    if value is None or type(value) in (bool, str, float):
        return value
    if isinstance(value, int) and -_LONG < int(value) < _LONG:
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if depth >= MAX_DEPTH:
        return {"o": "deeply nested"}
    if isinstance(value, list):
        return [encode(each, depth + 1) for each in value]
    letter, state = next((letter, state) for letter, (kinds, state, _) in _CODES.items() if isinstance(value, kinds))
    stated = state(value)
    return {letter: encode(stated, depth) if type(stated) is list else stated}


def decode(stated):
    """The value again. Raises ValueError, TypeError or ArithmeticError for what `encode` did not make."""
    if type(stated) is list:
        return [decode(each) for each in stated]
    if type(stated) is not dict:
        return stated
    ((letter, content),) = stated.items()
    if letter not in _CODES:
        raise ValueError("no such letter")
    content = decode(content)
    if letter in "dsz":
        refuse_collisions([key for key, _ in content] if letter == "d" else content)
    return _CODES[letter][2](content)


def refuse_collisions(items):
    """Raises ValueError when many different items share a hash: a set of n such takes time like n squared."""
    different: dict = {}
    for item in items:
        known = different.setdefault(hash(item), [])
        if item not in known:
            known.append(item)
        if len(known) > _FEW_COLLISIONS:
            raise ValueError("too many items share a hash")

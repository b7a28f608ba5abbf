"""Modules of the user's own, which are found in the working directory too."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from azr.errors import UserError


def search_here() -> str:
    """Has modules found in the working directory, after all other places, and returns it."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    return here


def import_own(name: str, what: str) -> ModuleType:
    """The module; ``what`` is what it is to the user, in the words that begin a sentence.

    Raises UserError when it cannot be imported; the traceback of one that is there is printed before.
    """
    search_here()
    try:
        return importlib.import_module(name)
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            traceback.print_exc()
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {error}.") from error

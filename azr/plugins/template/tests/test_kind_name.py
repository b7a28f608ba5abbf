"""The contract that azr has with every kind, on examples of this one."""

from kind_name import KindName

from azr.config import Config, SelfPlayConfig
from azr.plugins import load_for
from azr.plugins.contract import KindContract
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS


class TestKindName(KindContract):
    kind = KindName()
    proposals = ((Section("numbers", "3 1 2"),), (Section("numbers", " 10  9\n9 "),))
    refused = tuple((Section("numbers", text),) for text in ("1", "1 two", "-1 2", "1 1000", "1 " * 13, "\u0661 2"))
    # Answers to the task that the first proposal becomes:
    right = ((Section("ascending", "1 2 3"),),)
    wrong = tuple((Section("ascending", text),) for text in ("1 3 2", "1 2", "1 2 3 3"))
    malformed = ((Section("ascending", "one two three"),), (Section("numbers", "1 2 3"),))


def test_it_is_found_by_its_name():
    """Once the package is installed."""
    load_for(Config(selfplay=SelfPlayConfig(kinds=("kind_name",))))
    assert KINDS["kind_name"].seed().kind == "kind_name"

"""Plug-ins of a test: modules in a working directory of its own, and registries that are as before afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import azr.plugins as loading
from azr.estimators import ESTIMATOR_TYPES
from azr.selfplay.rewards import BONUSES, SOLVE_RATE_REWARDS
from azr.tasks.registry import KINDS

REGISTRIES = (KINDS, SOLVE_RATE_REWARDS, BONUSES, ESTIMATOR_TYPES)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """As they were, after the test."""
    before, loaded = [dict(each) for each in REGISTRIES], set(loading._loaded)
    yield
    loading._loaded &= loaded
    for registry, content in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(content)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def plugin(here: Path) -> Callable[[str], str]:
    """Writes a module, and gives its name."""

    def write(text: str) -> str:
        name = f"plugin_{len(list(here.glob('plugin_*')))}_{abs(hash(str(here)))}"
        (here / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def package(here: Path) -> Callable[..., str]:
    """Writes what an installed package leaves: a module and its entry points. Gives the package's name."""

    def write(text: str, entries: str, name: str | None = None) -> str:
        module = f"module_{len(list(here.glob('module_*')))}_{abs(hash(str(here)))}"
        (here / f"{module}.py").write_text(text)
        about = here / f"{(name or module).replace('-', '_')}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name or module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entries.replace("MODULE", module))
        return name or module

    return write

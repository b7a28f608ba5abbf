"""The import contract, the modules of the package and README's table of floors say the same."""

from tools.floor_table import ROOT, floors, path_of, table


def test_every_module_is_in_exactly_one_layer():
    layered = [path_of(module) for modules in floors() for module in modules if module not in ("playground", "tools")]
    there = [path for path in (ROOT / "azr").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    modules = {path_of(f"azr.{path.stem}") for path in there if path.name != "__init__.py"}
    assert sorted(layered) == sorted(modules)


def test_readme_has_the_table_of_the_contract():
    text = (ROOT / "README.md").read_text()
    assert table() in text, "paste what `python -m tools.floor_table` prints below README's `How it is built`"

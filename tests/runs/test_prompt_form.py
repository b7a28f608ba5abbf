"""``prompts.json`` says what a run's prompts look like; a file that holds something else is named."""

from pathlib import Path

import pytest

from azr.errors import UserError
from azr.records import Stops
from azr.runs.run_dir import PromptForm


def test_what_is_written_is_read(tmp_path: Path):
    form = PromptForm("{{ messages }}", Stops(("</answer>",), (1, 2)))
    form.write(tmp_path / "prompts.json")
    assert PromptForm.read(tmp_path / "prompts.json") == form
    assert PromptForm.read(tmp_path / "gone.json") is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"template": null}', '{"template": 5, "stops": {"strings": ["a"], "token_ids": [1]}}']
)
def test_something_else_is_a_users_mistake(content: str, tmp_path: Path):
    (tmp_path / "prompts.json").write_text(content)
    with pytest.raises(UserError, match=r"prompts.json cannot be read .* remove it"):
        PromptForm.read(tmp_path / "prompts.json")

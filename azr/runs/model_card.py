"""The README of an exported model: where it comes from, how to ask it, what it knows of the exam, and its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from azr.runs.prompt_form import PromptForm

_EXAM = "eval/"
_ADAPTERS = (
    "These are adapters: peft's `PeftModel.from_pretrained(base, folder)` puts them into that model, and vLLM serves "
    "them with `--enable-lora --lora-modules NAME=folder`. The tokenizer here has the chat template of the run.",
    "",
)


def write_card(
    out: Path, *, base: str, adapters: bool, step: int, code: str, config: str, form: PromptForm | None, exam: str
) -> None:
    """Writes ``README.md``. ``adapters``: the folder has these, to be loaded beside the base; ``code``: version of the
    code; ``config``: YAML; ``exam``: see `exam_table`."""
    asking = ["The prompts of the run were written by no chat template."]
    if form is not None and form.template is not None:
        ends = " and ".join(f"`{text}`" for text in form.stops.strings)
        asking = [
            "The tokenizer's chat template writes a user's message as the run's prompts did, up to the tag that opens "
            f"the thinking. Stop at {ends} (in vLLM `stop`; transformers reads it from `generation_config.json` and "
            "wants `generate(..., tokenizer=tokenizer)`). `azr prompts` with the config below prints whole prompts.",
        ]
    # JSON is YAML, and quotes a path whatever it holds.
    library = "peft" if adapters else "transformers"
    header = ["---", f"library_name: {library}", "tags: [absolute-zero, self-play, reinforcement-learning]"]
    if base.count("/") == 1 and not Path(base).exists():
        header.append(f"base_model: {json.dumps(base)}")
    lines = [
        *header,
        "---",
        "",
        "# A policy trained by AZR on Ray",
        "",
        f"Step {step} of Absolute Zero self-play (arXiv 2505.03335) that began with `{base}`. Code: azr {code}.",
        "",
        *(_ADAPTERS if adapters else ()),
        "## How to ask it",
        "",
        *asking,
        "",
        "## Evaluations",
        "",
        exam or "The run evaluated no step up to this one.",
        "",
        "## Config",
        "",
        "```yaml",
        config.strip(),
        "```",
        "",
    ]
    (out / "README.md").write_text("\n".join(lines), encoding="utf-8")


def exam_table(metrics: Path, step: int) -> str:
    """The last evaluation up to a step as a Markdown table; empty when there was none."""
    last: dict[str, Any] = {}
    # A line that has no end yet is of a later step: the run is writing it, or was killed then.
    *lines, _ = metrics.read_text(encoding="utf-8").split("\n") if metrics.is_file() else [""]
    for line in lines:
        record = json.loads(line)
        if record["step"] <= step and any(name.startswith(_EXAM) for name in record):
            last = record
    if not last:
        return ""
    found = {name.removeprefix(_EXAM): value for name, value in sorted(last.items()) if name.startswith(_EXAM)}
    rows = [f"| {name} | {value:.3f} |" for name, value in found.items() if isinstance(value, float)]
    return "\n".join(
        [
            f"After step {last['step']}, shares of right answers and lengths:",
            "",
            "| measure | value |",
            "|---|---|",
            *rows,
        ]
    )

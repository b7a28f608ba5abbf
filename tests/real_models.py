"""Real pretrained models that some tests ask: SmolLM2-135M-Instruct and Qwen2.5-Coder-0.5B-Instruct.

AZR_MODELS names their folder, by default ``.cache/models``. A test of a model that is not there is skipped.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("AZR_MODELS", ROOT / ".cache" / "models"))
SMOLLM2 = FOLDER / "smollm2-135m"
QWEN = FOLDER / "qwen2.5-coder-0.5b"


def _needs(model: Path, remedy: str) -> pytest.MarkDecorator:
    missing = not (model / "model.safetensors").is_file()
    return pytest.mark.skipif(missing, reason=f"needs the real model {model}: {remedy}")


needs_smollm2 = _needs(SMOLLM2, f"make it with .venv/bin/python -m tools.smollm2 {SMOLLM2}")
needs_qwen = _needs(QWEN, "set AZR_MODELS to the folder that holds it")
REAL = [pytest.param(SMOLLM2, marks=needs_smollm2, id="SmolLM2"), pytest.param(QWEN, marks=needs_qwen, id="Qwen")]
"""Parameters of a test that asks both."""

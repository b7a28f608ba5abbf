"""Self-play of Qwen2.5-Coder-0.5B-Instruct that works its answers out: ``python -m playground.azr_coder0b5_worked``.

As azr_coder0b5_cpu, but a trace of the values stands before an answer, and has room.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.azr_coder0b5_cpu import config as direct

config = replace(
    direct,
    run=replace(direct.run, name="azr_coder0b5_worked"),
    model=replace(direct.model, prompt_format="worked"),
    rollout=replace(direct.rollout, max_response_tokens=512),
    eval=replace(direct.eval, suites=("exam", "cruxeval-i:worked", "cruxeval-o:worked")),
)

if __name__ == "__main__":
    launch(config)

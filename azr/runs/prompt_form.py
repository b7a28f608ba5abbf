"""What a run's prompts look like and where its responses end, kept in the run directory for whoever uses the model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from azr.errors import UserError
from azr.records import Stops


@dataclass(frozen=True, slots=True)
class PromptForm:
    """The part of a prompt's form that config and tokenizer files do not tell."""

    template: str | None
    """Text of the Jinja chat template; None where prompts have none."""
    stops: Stops

    def write(self, path: Path) -> None:
        """Whole or not at all: a run that is killed meanwhile must find a file that it can read, or none."""
        staging = path.with_name(f".{path.name}")
        staging.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(staging, path)

    @classmethod
    def read(cls, path: Path) -> PromptForm | None:
        """None when there is no such file. Raises UserError when it holds something else."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read ({error!r}): remove it, and the model's own template stays."
            ) from error

    def keep(self, path: Path) -> None:
        """Write it for a new run; check it for one that goes on, as `check`."""
        self.check(path)
        if not path.exists():
            self.write(path)

    def check(self, path: Path) -> None:
        """Raise UserError when the run of this file began with another template or other stops."""
        before = PromptForm.read(path)
        if before is not None and before != self:
            what = "chat template" if before.template != self.template else "end tokens"
            raise UserError(
                f"The {what} that the run began with is not the one of now, though model.template is the same: restore "
                f"the file that has changed since ({path.name} in the run directory holds what was used), or start "
                "another run."
            )

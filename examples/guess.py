"""A guessing game that each answer to a row plays: `--data.environment examples/guess.py:Guess`; see
docs/environments.md."""

import re
from typing import Any


class Guess:
    """Says whether the number of its row is higher or lower than a guess."""

    def reset(self, row: dict[str, Any]) -> str:
        """Begin a game. What is returned is added to the row's prompt."""
        self.secret, self.guesses, self.found = row["secret"], 0, False
        return "Say one number, and nothing else."

    def step(self, response: str) -> str | None:
        """Reply to a turn of the model; None ends the game."""
        numbers = re.findall(r"\d+", response)
        if len(numbers) != 1:
            return "Say one number."
        self.guesses += 1
        self.found = int(numbers[0]) == self.secret
        if self.found:
            return None
        return "Higher." if int(numbers[0]) < self.secret else "Lower."

    def reward(self) -> dict[str, float]:
        """Return the reward of the game as `score`; the other number becomes a metric."""
        return {"score": 1.0 if self.found else min(self.guesses, 4) * 0.05, "guesses": float(self.guesses)}

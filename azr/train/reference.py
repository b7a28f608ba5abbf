"""The reference policy's rank: scores responses with weights that never change."""

from __future__ import annotations

from azr.train.policy import PolicyScorer


class ReferenceWorker(PolicyScorer):
    """One rank of the frozen policy that the KL is measured against; it has no optimizer."""

    def build(self) -> None:
        self._load(lr=None)

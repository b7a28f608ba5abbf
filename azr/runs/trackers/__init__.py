"""Where a run's numbers and samples go beside its directory, by the names that `tracking.to` takes.

Another tracker is a module beside these, with the shape of `azr.runs.trackers.base.Tracker`, and one line here.
"""

from __future__ import annotations

from azr.config import Config, TrackingConfig
from azr.errors import UserError
from azr.registry import Registry
from azr.runs.trackers.base import Tracker
from azr.runs.trackers.mlflow import MlflowTracker
from azr.runs.trackers.prometheus import PrometheusTracker
from azr.runs.trackers.tensorboard import TensorBoardTracker
from azr.runs.trackers.wandb import WandbTracker

TRACKERS = Registry[type[Tracker]](
    "tracker",
    {
        "tensorboard": TensorBoardTracker,
        "wandb": WandbTracker,
        "mlflow": MlflowTracker,
        "prometheus": PrometheusTracker,
    },
    "tracking.to may hold",
)


def check_names(tracking: TrackingConfig) -> None:
    """Raises UserError for a name that no tracker has, or that stands there twice."""
    for name in tracking.names:
        TRACKERS.find(name)
    if len(set(tracking.names)) < len(tracking.names):
        raise UserError(f"A tracker is named twice in {', '.join(tracking.names)}: name each once.")


def check_ready(config: Config) -> None:
    """Raises UserError when a tracker of the run cannot begin: library, credentials or server are missing."""
    for name in config.tracking.names:
        TRACKERS[name].check(config)

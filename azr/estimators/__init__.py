"""Advantage estimators, one class each: from a step's rewards to one number per response token. No torch to import.

Add one here: a class, and its name in this list.
"""

from azr.estimators.base import ESTIMATOR_TYPES, Estimator
from azr.estimators.gae import GAE
from azr.estimators.rewards import GRPO, RAE, RLOO, TRRPP, DrGRPO, ReinforcePP

__all__ = ["ESTIMATOR_TYPES", "GAE", "GRPO", "RAE", "RLOO", "TRRPP", "DrGRPO", "Estimator", "ReinforcePP"]
_BUILT_IN: tuple[type[Estimator], ...] = (TRRPP, GAE, ReinforcePP, RLOO, GRPO, DrGRPO, RAE)
ESTIMATOR_TYPES |= {each.name: each for each in _BUILT_IN}

"""An advantage estimator: a name, options, a formula, and what it remembers from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, dataclass_transform

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from azr.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

VARIANCE_FLOOR = 1e-8
"""Added to a variance before its root is taken, as in verl's masked whitening."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Estimator:
    """An estimator's class, of which each object is one choice of its options.

    Annotated attributes are options: ``algorithm.estimator.decay``, with their docstrings as help. A module that
    ``run.plugins`` names adds its classes as ``estimators``.

    Example::

        class Scaled(Estimator):
            name = "scaled"
            scale: Positive = 1.0

            def score(self, batch: Batch) -> Tensor:
                return self.scale * batch.centred(batch.kind_role_N)[batch.seq_index_R]
    """

    name: ClassVar[str]
    """What ``algorithm.estimator`` calls it."""
    compares_groups: ClassVar[bool] = False
    """Whether an answer is compared with those to the same prompt alone."""
    loss_weighting: ClassVar[Literal["token", "constant"]] = "token"
    """What ``algorithm.loss_weighting`` auto stands for."""

    def __init_subclass__(cls) -> None:
        cls.__annotations__ = {"name": Literal[cls.name], **get_annotations(cls)}
        dataclass(frozen=True, kw_only=True)(cls)

    def score(self, batch: Batch) -> Tensor | None:
        """Return the advantages of all response tokens (R), from the rewards of the tasks and without their KL; None to
        learn nothing in this step."""
        raise NotImplementedError

    @cached_property
    def state(self) -> dict[str, Any]:
        """What lasts from step to step, as JSON has it: filled by `score`, held by checkpoints, empty at first."""
        return {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Self], handler: GetCoreSchemaHandler) -> CoreSchema:
        """An option of this type takes any registered class by its name."""
        if cls is not Estimator:
            return handler(source)
        return handler.generate_schema(Annotated[Union[*ESTIMATOR_TYPES.values()], Field(discriminator="name")])


ESTIMATOR_TYPES = Registry[type[Estimator]]("estimator", {}, "algorithm.estimator may be")
"""By name: those of this project, and after them those of plug-ins."""

"""The regularizers for existing pytorch-metric-learning code, one line each.

    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from trainables.pml import SECRegularizer

    loss = MultiSimilarityLoss(embedding_regularizer=SECRegularizer(), embedding_reg_weight=0.5)   # eta = 0.5

The regularizer sees the embeddings handed to the loss: let the network NOT normalise them. A running mean advances once per
forward pass of the loss; inside `MultipleLosses` give it to one loss only. PML has no weight schedule: change
`loss.embedding_reg_weight` between steps (trainables.regularizers.eta_at says what to). Our losses need no adapter: they are
callable as PML's trainers call a loss (without a miner). Under PML's `DistributedLossWrapper` a running mean would see one
rank's batch only; use trainables.distributed.gather_batch instead. PML is imported when a class is first asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import Tensor


_CLASS_NAMES = {"sec": "SECRegularizer", "sec_fixed": "FixedMeanSECRegularizer", "l2": "L2Regularizer"}


def __getattr__(name: str) -> Any:
    for regularizer, class_name in _CLASS_NAMES.items():
        if name == class_name:
            return _regularizer_class(regularizer)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_CLASS_NAMES.values())


@cache
def _regularizer_class(regularizer: str) -> Any:
    """A pytorch-metric-learning `BaseRegularizer` class for the regularizer of that name, a user's own included.

    Its constructor takes the regularizer's knobs, e.g. `SECRegularizer(rho=0.1)`; its state is in the `state_dict` of the loss
    it is given to, the wrapped module its attribute `regularizer`. Raises ConfigError for an unknown name or a wrong knob,
    and where pytorch-metric-learning is not installed.
    """
    try:
        from pytorch_metric_learning.regularizers import BaseRegularizer
    except ImportError as error:
        remedy = "pip install pytorch-metric-learning"
        rule = "pytorch-metric-learning must be installed to regularize its losses"
        raise ConfigError(Problem("trainables.pml", rule, None, remedy)) from error
    from trainables.regularizers import REGULARIZERS, build_regularizer

    if regularizer not in REGULARIZERS:
        build_regularizer(regularizer)  # says which names there are

    class Adapter(BaseRegularizer):  # type: ignore[misc]
        def __init__(self, **knobs: object):
            super().__init__()
            self.regularizer = build_regularizer(regularizer, **knobs)

        def compute_loss(self, embeddings: Tensor) -> dict[str, dict[str, object]]:
            value = self.regularizer(embeddings)
            return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}

    Adapter.__name__ = Adapter.__qualname__ = _CLASS_NAMES.get(regularizer, regularizer)
    Adapter.__module__ = __name__
    Adapter.__doc__ = REGULARIZERS[regularizer].__doc__
    return Adapter

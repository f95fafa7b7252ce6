"""Our regularizers as pytorch-metric-learning (PML) regularizers.

    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from trainables.pml import SECRegularizer

    loss = MultiSimilarityLoss(embedding_regularizer=SECRegularizer(), embedding_reg_weight=0.5)   # eta = 0.5

The network must NOT normalise its embeddings. A running mean advances once per forward pass of the loss; inside
`MultipleLosses` give the regularizer to one loss only. PML has no weight schedule: change `loss.embedding_reg_weight`
between steps (see `trainables.regularizers.eta_at`). Under PML's `DistributedLossWrapper` a running mean sees one
rank's batch only; use `trainables.distributed.gather_batch` instead. Our losses need no adapter. PML is imported at
first use.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import Tensor


_REGULARIZERS = {"SECRegularizer": "sec", "FixedMeanSECRegularizer": "sec_fixed", "L2Regularizer": "l2"}


def __getattr__(name: str) -> Any:
    if name in _REGULARIZERS:
        return _adapter(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_REGULARIZERS)


@cache
def _adapter(name: str) -> Any:
    """Return the PML `BaseRegularizer` class called `name`. Raise ConfigError without PML.

    Its constructor takes the regularizer's knobs: `SECRegularizer(rho=0.1)`. The `state_dict` of the loss holds its
    state; the attribute `regularizer` is the wrapped module.
    """
    try:
        from pytorch_metric_learning.regularizers import BaseRegularizer
    except ImportError as error:
        remedy = "pip install pytorch-metric-learning"
        rule = "pytorch-metric-learning must be installed to regularize its losses"
        raise ConfigError(Problem("trainables.pml", rule, None, remedy)) from error
    from trainables.regularizers import REGULARIZERS, build_regularizer

    class Adapter(BaseRegularizer):  # type: ignore[misc]
        def __init__(self, **knobs: object):
            super().__init__()
            self.regularizer = build_regularizer(_REGULARIZERS[name], **knobs)

        def compute_loss(self, embeddings: Tensor) -> dict[str, dict[str, object]]:
            value = self.regularizer(embeddings)
            return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}

    Adapter.__name__ = Adapter.__qualname__ = name
    Adapter.__module__ = __name__
    Adapter.__doc__ = REGULARIZERS[_REGULARIZERS[name]].__doc__
    return Adapter

"""torch's compiler, a second of processor to load and loaded unasked, stays out of processes that compile nothing."""

from __future__ import annotations

import inspect
from typing import Any

import torch

_MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def uncompiled(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """The same optimizer without the marks that keep the compiler out of its methods: to set them loads it.

    What `training.compile` compiles is the network alone.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _MARKED}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def fix_arithmetic(deterministic: bool, *, compiled: bool) -> None:
    """Deterministic kernels where there are some, in what is compiled too; none is chosen by a race of them.

    cuDNN's deterministic convolutions alone make a trial on a CUDA device repeat to the bit, at no cost that was seen
    (docs/log.md); torch's own switch would refuse more, and is for the CPU.
    Types, device, gradients and the precision of products are as torch begins, whatever a method's module has set.
    """
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if compiled:
        torch.use_deterministic_algorithms(deterministic, warn_only=True)  # tells the compiler, and so loads it
    else:
        torch.set_deterministic_debug_mode("warn" if deterministic else "default")

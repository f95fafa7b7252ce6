"""Configure torch's arithmetic: determinism, precision, and optimizers that do not load its compiler (a second)."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

_DECORATED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return the optimizer class without the decorators that load torch's compiler.

    `training.compile` compiles only the network.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _DECORATED}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def fix_arithmetic(deterministic: bool, *, compiled: bool) -> None:
    """Choose deterministic kernels and reset torch's global defaults, which the module of a method may have changed.

    cuDNN's deterministic convolutions make a trial on CUDA repeat to the bit at no measured cost (docs/log.md). torch's
    own switch would refuse more operations, so only the CPU uses it.
    """
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # torch would fill new memory, to reveal bugs; that takes a tenth of a small network's step.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - unknown to the type checker
    if compiled:
        torch.use_deterministic_algorithms(deterministic, warn_only=True)  # loads the compiler
    else:
        torch.set_deterministic_debug_mode("warn" if deterministic else "default")


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Return a context without autocast; a null context if autocast is off, which is cheaper to enter."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()

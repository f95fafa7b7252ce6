"""Choose the device of a worker, and detect a failed one."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tune_dml.planning.request import Resources

if TYPE_CHECKING:
    import torch


def device_of(resources: Resources) -> torch.device:
    """Return the GPU if this process asked Ray for one, otherwise the CPU. Ray lets every process see all GPUs."""
    import torch

    return torch.device("cuda" if resources.share and torch.cuda.is_available() else "cpu")


def missing_device(resources: Resources, device: torch.device) -> str:
    """Return a note if torch does not find the GPU that Ray gave a worker; otherwise an empty string."""
    if not resources.share or device.type != "cpu":
        return ""
    return "was given a GPU, but torch finds no CUDA device there: it trains on the CPU (tune-dml doctor)"


def cuda_error(device: torch.device) -> RuntimeError | None:
    """Return the error that a CUDA device raises at every call of this process; None for a working device.

    A device fails like this after an index out of range or an illegal access, but not for lack of memory. The error
    that reached the trial is often a different one, raised by a later call.
    """
    import torch

    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return error
    return None


def keep_allocated(error: BaseException) -> None:
    """Keep an error and the tensors of its traceback until the process ends.

    On a failed device torch aborts the process when pinned memory is freed. The trial would then count as lost and be
    retried, and its reason would be unknown. Python clears a list when it exits, hence the extra reference.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))

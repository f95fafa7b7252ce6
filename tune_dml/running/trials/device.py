"""The device that a worker trains on, and whether it can train there once more."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tune_dml.planning.request import Resources

if TYPE_CHECKING:
    import torch


def device_of(resources: Resources) -> torch.device:
    """The GPU that Ray gave this process, else the CPU. Ray hides the node's GPUs from nobody, so who has none must not look."""
    import torch

    return torch.device("cuda" if resources.share and torch.cuda.is_available() else "cpu")


def missing_device(resources: Resources, device: torch.device) -> str:
    """What is to be said of a worker that was given a GPU and has none; nothing of any other."""
    if not resources.share or device.type != "cpu":
        return ""
    return "was given a GPU, but torch finds no CUDA device there: it trains on the CPU (tune-dml doctor)"


def cuda_error(device: torch.device) -> RuntimeError | None:
    """What a device says to every call of this process, as long as that lives; None where it does what it is asked.

    So it is on a GPU after an index out of range or an illegal access, and not after too little memory. What noticed it first
    (a convolution, the next copy) often says something else.
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
    """Keep an error, and with its traceback the tensors of every call that it went through, for as long as the process lives.

    Where a device is sick torch ends the process, by a signal, as soon as pinned memory is given back: the trial
    would be a lost one, tried again, and nobody would learn why. At the process's end, too, hence more than a list.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))

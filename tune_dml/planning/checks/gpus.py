"""Count the GPUs that CUDA_VISIBLE_DEVICES leaves visible, from the driver's files, without importing torch."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainables.errors import Problem

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES, _KINDS = Path("/dev"), ("nvidia*", "dxg", "nvmap", "kfd")
"""Device files of machines with GPUs but without the driver's files (some containers, WSL, Jetson, AMD)."""
_UUID = re.compile(r"GPU UUID:\s*(\S+)")
_NONE = {"", "-1"}
"""Names that hide themselves and all names after them."""


def visible_gpus() -> int:
    """Return the number of usable GPUs. As CUDA does, stop at the first named GPU that does not exist."""
    names, gpus = _named_gpus(), _installed_gpus()
    if names is None:
        if gpus or not _has_other_devices():
            return len(gpus)
        import torch

        return torch.cuda.device_count()
    if _absent_names(names, gpus):
        names = names[: names.index(_absent_names(names, gpus)[0])]
    return len(names)


def visibility_problems() -> list[Problem]:
    """Return a problem for named GPUs that do not exist: CUDA hides them and all later ones, and trials use the CPU."""
    gpus = _installed_gpus()
    if not (absent := _absent_names(_named_gpus() or [], gpus)):
        return []
    rule = f"must name GPUs of this machine, which has {', '.join(gpus) or 'none'}"
    remedy = f"Correct or unset it; {_VARIABLE}= (empty) trains on the CPU."
    return [Problem(_VARIABLE, rule, ",".join(absent), remedy)]


def _named_gpus() -> list[str] | None:
    """Return the named GPUs, up to a name that hides the rest; None if the variable is unset."""
    value = os.environ.get(_VARIABLE)
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    hides = [index for index, name in enumerate(names) if name in _NONE]
    return names[: hides[0]] if hides else names


def _absent_names(names: Sequence[str], gpus: Mapping[str, str]) -> list[str]:
    """Return the names that match no GPU's number nor the beginning of its UUID.

    Names that cannot be checked match: MIG devices, and all names under WSL.
    """
    if not gpus:
        return [] if _has_other_devices() else list(names)
    return [
        name
        for name in names
        if not name.startswith("MIG-")
        and name not in gpus
        and not (name.startswith("GPU-") and any(uuid.startswith(name) for uuid in gpus.values()))
    ]


def _has_other_devices() -> bool:
    """Return whether the machine has GPUs that the driver's files do not list."""
    return any(True for kind in _KINDS for _ in _DEVICES.glob(kind))


def _installed_gpus() -> dict[str, str]:
    """Return the UUID of each GPU that the driver lists, by its number."""
    found = [_UUID.search(file.read_text(errors="replace")) for file in sorted(_DRIVER.glob("*/information"))]
    return {str(number): uuid[1] if uuid else "" for number, uuid in enumerate(found)}

"""Count the GPUs that CUDA_VISIBLE_DEVICES leaves visible, from the driver's files: importing torch takes a second."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.errors import Problem

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES, _KINDS = Path("/dev"), ("nvidia*", "dxg", "nvmap", "kfd")
"""Device files of machines with GPUs but without the driver's files (some containers, WSL, Jetson, AMD)."""
_UUID = re.compile(r"GPU UUID:\s*(\S+)")
_NONE = {"", "-1"}
"""Names that hide all devices after them."""


@dataclass(frozen=True)
class _Gpu:
    number: str
    uuid: str

    def is_named(self, name: str) -> bool:
        """Whether a name means this GPU: its number or the beginning of its UUID."""
        return name == self.number or (name.startswith("GPU-") and self.uuid.startswith(name))


def visible_gpus() -> int:
    """Return the number of usable GPUs. Like CUDA, count the named GPUs up to the first that does not exist."""
    names, gpus = _named(), _gpus()
    if names is None:
        return _counted_by_torch() if not gpus and _has_other_devices() else len(gpus)
    if _absent(names, gpus):
        names = names[: names.index(_absent(names, gpus)[0])]
    return len(names)


def visibility_problems() -> list[Problem]:
    """Refuse named GPUs that do not exist. CUDA hides them and all later ones, so trials would train on the CPU."""
    gpus = _gpus()
    if not (absent := _absent(_named() or [], gpus)):
        return []
    rule = f"must name GPUs of this machine, which has {', '.join(gpu.number for gpu in gpus) or 'none'}"
    remedy = f"Correct or unset it; {_VARIABLE}= (empty) trains on the CPU."
    return [Problem(_VARIABLE, rule, ",".join(absent), remedy)]


def _named() -> list[str] | None:
    """Return the named GPUs, up to a name that hides the rest; None if the variable is unset."""
    given = os.environ.get(_VARIABLE)
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    hides = [place for place, name in enumerate(names) if name in _NONE]
    return names[: hides[0]] if hides else names


def _absent(names: Sequence[str], gpus: Sequence[_Gpu]) -> list[str]:
    """Return the names that match no GPU. Names that cannot be checked match: MIG devices, and all names under WSL."""
    if not gpus:
        return [] if _has_other_devices() else list(names)
    known = [name for name in names if not name.startswith("MIG-")]
    return [name for name in known if not any(gpu.is_named(name) for gpu in gpus)]


def _has_other_devices() -> bool:
    """Whether the machine has GPUs that the driver's files do not list."""
    return any(True for kind in _KINDS for _ in _DEVICES.glob(kind))


def _counted_by_torch() -> int:
    import torch

    return torch.cuda.device_count()


def _gpus() -> list[_Gpu]:
    files = sorted(_DRIVER.glob("*/information"))
    found = [_UUID.search(file.read_text(errors="replace")) for file in files]
    return [_Gpu(str(number), uuid[1] if uuid else "") for number, uuid in enumerate(found)]

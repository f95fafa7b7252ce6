"""What a sweep is asked to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What one trial needs."""

    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0
    engine: str = "local"

    @property
    def cpus(self) -> int:
        """CPUs of the whole trial."""
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of the whole trial."""
        return self.workers * self.gpus_per_worker

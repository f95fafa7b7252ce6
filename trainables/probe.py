"""What a trial costs, from its first few steps: seconds and memory. Nothing is reported, and the test half is not looked at."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from trainables.config import TrialConfig
from trainables.context import FolderContext
from trainables.tasks import build_learner
from trainables.training import begin, prepare_process, update

STEPS = 8
"""Timed, after as many to warm up."""


@dataclass(frozen=True)
class Probe:
    """What one trial would take on the machine that was probed."""

    seconds: float
    """Training, evaluations and start; the test half is taken to cost, picture by picture, what validation costs."""
    step_seconds: float
    evaluation_seconds: float
    memory_bytes: int
    """The most that the process has held, its libraries included."""
    gpu_bytes: int
    """The most that its tensors have held on the GPU; 0 on the CPU."""


def probe(config: TrialConfig, *, threads: int = 1, cache_dir: Path | None = None) -> Probe:
    """Train a few steps and validate once. Run it in a process of its own: memory is that of the process."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
        context = FolderContext(Path(folder), device, threads=threads)
        began = time.perf_counter()
        prepare_process(config, context)
        learner = build_learner(config, context, cache_dir=cache_dir)
        run = begin(config, context, learner)
        start = time.perf_counter() - began
        times = []
        for _ in range(2 * STEPS):
            before = _now(device)
            update(run)
            times.append(_now(device) - before)
            run.state.step = min(run.state.step + 1, learner.total_steps - 1)
        before = _now(device)
        learner.validate()
        evaluation = _now(device) - before
    step = median(times[STEPS:])
    evaluations = math.ceil(learner.total_steps / config.training.eval_every)
    halves = evaluations + len(learner.split.test) / max(len(learner.split.validation), 1)
    return Probe(
        start + learner.total_steps * step + halves * evaluation,
        step,
        evaluation,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

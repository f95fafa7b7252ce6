"""Estimate a trial's time and memory from its first steps. Reports no rows and reads no test data."""

import io
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.run import Run, update
from trainables.tasks import build_learner
from trainables.training import checkpoint_state, prepare_process, start_or_resume

_STEPS = 8
"""Number of timed steps, and of warm-up steps before them."""
_CONTEXT = 1 << 30
"""Largest GPU memory that a process uses beside its tensors; more belongs to other processes."""


@dataclass(frozen=True)
class Probe:
    """Estimated cost of one trial on this machine."""

    seconds: float  # time of the start, the training and all evaluations, including the one on the test half
    memory_bytes: int  # peak memory of the process, including libraries
    checkpoint_bytes: int  # size of one checkpoint; a running trial keeps two
    gpu_bytes: int  # peak GPU memory of the process, including CUDA's own; 0 on the CPU
    gpu_room: int = 0  # GPU memory that other processes leave free; 0 on the CPU


def probe(config: TrialConfig, *, threads: int = 1, cache_dir: Path | None = None) -> Probe:
    """Train a few steps and validate once. Call it in a separate process, because it reports the process's memory."""
    device = _device()
    began = time.perf_counter()
    with started_run(config, device, threads, cache_dir) as run:
        start = time.perf_counter() - began
        times = []
        for _ in range(2 * _STEPS):
            before = _now(device)
            take_step(run)
            times.append(_now(device) - before)
        before = _now(device)
        run.learner.validate()
        evaluation = _now(device) - before
        learner, checkpoint = run.learner, io.BytesIO()
        torch.save(checkpoint_state(run), checkpoint)
        gpu_bytes, gpu_room = _gpu_memory(device)
    step = median(times[_STEPS:])
    evaluations = math.ceil(learner.total_steps / config.training.eval_every)
    halves = evaluations + len(learner.split.test) / max(len(learner.split.validation), 1)
    return Probe(
        start + learner.total_steps * step + halves * evaluation,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        checkpoint.tell(),
        gpu_bytes,
        gpu_room,
    )


def steps_per_second(
    config: TrialConfig,
    seconds: float,
    *,
    threads: int = 1,
    cache_dir: Path | None = None,
    ready: Callable[[], object] = lambda: None,
) -> float:
    """Measure training steps per second over `seconds`. The clock starts after a warm-up, when `ready` returns."""
    device = _device()
    with started_run(config, device, threads, cache_dir) as run:
        for _ in range(_STEPS):
            take_step(run)
        _now(device)
        ready()
        start, count = _now(device), 0
        while time.perf_counter() - start < seconds:
            for _ in range(_STEPS):
                take_step(run)
            count += _STEPS
            _now(device)
        return count / (_now(device) - start)


@contextmanager
def started_run(config: TrialConfig, device: torch.device, threads: int, cache_dir: Path | None) -> Iterator[Run]:
    """Start a trial in a temporary folder; yield it before its first step."""
    with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
        context = TrialContext(Path(folder), device, threads=threads)
        prepare_process(config, context)
        yield start_or_resume(config, context, build_learner(config, context, cache_dir=cache_dir))


def take_step(run: Run) -> None:
    """Take one training step; the step counter never reaches the trial's end."""
    update(run)
    run.state.step = min(run.state.step + 1, run.learner.total_steps - 1)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _gpu_memory(device: torch.device) -> tuple[int, int]:
    """Return this process's peak GPU memory, and the memory that other processes leave free."""
    if device.type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    outside = max(total - free - torch.cuda.memory_reserved(device), 0)
    context = min(outside, _CONTEXT)
    return torch.cuda.max_memory_reserved(device) + context, total - (outside - context)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

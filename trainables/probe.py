"""What a trial costs, from its first few steps: seconds and memory. Nothing is reported, and the test half is not looked at."""

from __future__ import annotations

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
from trainables.context import FolderContext
from trainables.tasks import build_learner
from trainables.training import Run, begin, checkpoint_of, prepare_process, update

_STEPS = 8
"""Timed, after as many to warm up."""
_CONTEXT = 1 << 30
"""The most that CUDA and its libraries take of a GPU for a process beside its tensors; the rest is taken to be others'."""


@dataclass(frozen=True)
class Probe:
    """What one trial would take on the machine that was probed."""

    seconds: float
    """Training, evaluations and start; the test half is taken to cost, picture by picture, what validation costs."""
    memory_bytes: int
    """The most that the process has held, its libraries included."""
    checkpoint_bytes: int
    """Of one checkpoint; a trial under way has two."""
    gpu_bytes: int
    """The most that the process has held on the GPU, CUDA's own share included; 0 on the CPU."""
    gpu_room: int = 0
    """Memory of that GPU that others do not hold; 0 on the CPU."""


def probe(config: TrialConfig, *, threads: int = 1, cache_dir: Path | None = None) -> Probe:
    """Train a few steps and validate once. Run it in a process of its own: memory is that of the process."""
    device = _device()
    began = time.perf_counter()
    with begun(config, device, threads, cache_dir) as run:
        start = time.perf_counter() - began
        times = []
        for _ in range(2 * _STEPS):
            before = _now(device)
            one_step(run)
            times.append(_now(device) - before)
        before = _now(device)
        run.learner.validate()
        evaluation = _now(device) - before
        learner, checkpoint_bytes = run.learner, _checkpoint_bytes(run)
        gpu_bytes, gpu_room = _on_gpu(device)
    step = median(times[_STEPS:])
    evaluations = math.ceil(learner.total_steps / config.training.eval_every)
    halves = evaluations + len(learner.split.test) / max(len(learner.split.validation), 1)
    return Probe(
        start + learner.total_steps * step + halves * evaluation,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        checkpoint_bytes,
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
    """Training steps a second over so many seconds, from when `ready`, called after a few steps, has returned."""
    device = _device()
    with begun(config, device, threads, cache_dir) as run:
        for _ in range(_STEPS):
            one_step(run)
        _now(device)
        ready()
        start, count = _now(device), 0
        while time.perf_counter() - start < seconds:
            for _ in range(_STEPS):
                one_step(run)
            count += _STEPS
            _now(device)
        return count / (_now(device) - start)


@contextmanager
def begun(config: TrialConfig, device: torch.device, threads: int, cache_dir: Path | None) -> Iterator[Run]:
    """A trial at its first step, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
        context = FolderContext(Path(folder), device, threads=threads)
        prepare_process(config, context)
        yield begin(config, context, build_learner(config, context, cache_dir=cache_dir))


def one_step(run: Run) -> None:
    """Take one step; the trial never reaches its last."""
    update(run)
    run.state.step = min(run.state.step + 1, run.learner.total_steps - 1)


def _checkpoint_bytes(run: Run) -> int:
    """What one takes; it is put together in memory, as by a trial."""
    buffer = io.BytesIO()
    torch.save(checkpoint_of(run), buffer)
    return buffer.tell()


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _on_gpu(device: torch.device) -> tuple[int, int]:
    """The most that this process has held, and what others leave to it."""
    if device.type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    beside = max(total - free - torch.cuda.memory_reserved(device), 0)
    context = min(beside, _CONTEXT)
    return torch.cuda.max_memory_reserved(device) + context, total - (beside - context)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

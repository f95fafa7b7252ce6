"""Choose the GPUs per worker, and measure trials that share a GPU.

The measurement runs before anything is written. The trials must fit into the GPU's memory together, and be faster than
one after the other. Ray uses the fraction of a GPU only to place trials; it limits neither memory nor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError
from trainables.option_names import option_problem, spell
from trainables.resolve import read_settings
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.probe_address import address_problems
from tune_dml.running.failures import classify
from tune_dml.running.trials.probe import measuring_processes, probe_settings, settings_by_shape

if TYPE_CHECKING:
    from trainables.config import Settings
    from tune_dml.planning.plan import Plan
    from tune_dml.planning.request import Resources, Session

_MEMORY_RESERVE = 0.05  # fraction of a GPU's memory that stays free, because of fragmentation
_MIN_SPEEDUP = 1.05  # smallest accepted `speedup`
_SECONDS = 4.0  # seconds over which steps are counted
_START_TIMEOUT = 300.0  # seconds to wait until all processes reach their first step
_GPU_TIMEOUT = 600.0  # seconds to wait for a free GPU of the cluster


@dataclass(frozen=True)
class _SharingMeasurement:
    """Measured memory and speed of several trials on one GPU."""

    trials: int
    bytes_each: int  # memory of the trial that needs most
    memory: int  # free on the GPU
    speedup: float | None = None  # ratio of steps per second to those of one alone; None if they do not fit

    def text(self) -> str:
        factor = "" if self.speedup is None else f", {self.speedup:.2f} times the steps of one alone"
        share, memory = self.bytes_each / 1e9, self.memory / 1e9
        return f"{self.trials} trials share a GPU: {share:.2f} GB each of {memory:.2f} GB{factor}"


def resolve_gpus(resources: Resources, address: str | None) -> Resources:
    """Set the GPUs per worker if the user did not: 1 if the machine or cluster has GPUs or may start some, otherwise 0.

    A cluster that does not answer counts as one without GPUs; `cluster.resource_problems` reports the reason.
    """
    if resources.gpus_per_worker is not None:
        return resources
    where, origin = cluster.address_of(address)
    try:
        has_gpus = not address_problems(where, origin) and cluster.capacity_at(where, origin).has_gpus
    except ConfigError:
        has_gpus = False
    return replace(resources, gpus_per_worker=1.0 if has_gpus else 0.0)


def resources_of(plan: Plan, requested: Resources, resolved: Resources) -> Resources:
    """Return the resources of a plan's trials: heads on stored features train on CPUs unless GPUs were requested.

    A head's step is many small operations. A GPU waits for each, and would train one head at a time (ADR 25).
    """
    if requested.gpus_per_worker is None and plan.dataset == "features":
        return replace(resolved, gpus_per_worker=0.0)
    return resolved


def measure_gpu_sharing(plan: Plan, resources: Resources, session: Session) -> tuple[str, ...]:
    """Measure trials that share a GPU, and return one line about them; nothing if each trial has its own GPU.

    Raise ConfigError if they do not fit into memory, sharing is not faster, or no GPU is free to measure.
    """
    share = resources.share
    trials = int(1 / share + 1e-9) if share else 1
    if trials < 2 or plan.space.program is not None:  # the memory of a program is unknown
        return ()
    planned_arms = {cell.arm for cell in plan.cells}
    candidates = [
        config.settings() for arm in plan.arms if arm.name not in planned_arms for config in arm.trial_configs
    ]
    shapes = settings_by_shape([*(cell.settings for cell in plan.cells), *candidates], plan.seeds[0], resources)
    cache = session.cache

    def measure() -> _SharingMeasurement:
        return _measure_sharing(list(shapes.values()), trials, resources.cpus_per_worker, cache)

    def refusal(rule: str, remedy: str) -> ConfigError:
        return ConfigError(option_problem("gpus_per_worker", rule, share, remedy))

    address, origin = cluster.address_of(session.address)
    try:
        measurement = measure() if address is None else cluster.run_on_free_gpu(address, origin, measure, _GPU_TIMEOUT)
    except ConfigError:
        raise
    except TimeoutError as error:
        rule = f"a GPU must be free to measure trials that share one; none was for {_GPU_TIMEOUT:g} s"
        raise refusal(rule, "Use 1, or wait until one is free.") from error
    except Exception as error:
        failure = classify(error)
        rule = f"a few steps must run before trials share a GPU ({failure.reason})"
        fewer_pictures = f"{spell('micro_batch')} lets a worker hold fewer pictures."
        raise refusal(rule, fewer_pictures if failure.kind == "out_of_memory" else "See the cause.") from error
    if measurement.speedup is None:
        rule = f"the trials that share a GPU must fit into its memory ({measurement.text()})"
        raise refusal(rule, f"Use a larger share, 1, or {spell('micro_batch')}.")
    if measurement.speedup < _MIN_SPEEDUP:
        rule = f"trials that share a GPU must train faster than one after the other ({measurement.text()})"
        raise refusal(rule, "Use 1: one trial keeps this GPU busy.")
    return (measurement.text(),)


def _measure_sharing(
    shapes: Sequence[Settings], trials: int, threads: int, cache_dir: Path | None
) -> _SharingMeasurement:
    """Measure the memory of each shape alone, then the speed of the slowest shape, alone and shared."""
    probes = [probe_settings(settings, threads, cache_dir) for settings in shapes]
    largest, memory = max(item.gpu_bytes for item in probes), min(item.gpu_room for item in probes)
    if trials * largest > (1 - _MEMORY_RESERVE) * memory:
        return _SharingMeasurement(trials, largest, memory)
    slowest = max(zip(probes, shapes, strict=True), key=lambda pair: pair[0].seconds)[1]
    alone, together = (_steps_per_second(slowest, count, threads, cache_dir) for count in (1, trials))
    return _SharingMeasurement(trials, largest, memory, together / alone)


def _steps_per_second(settings: Settings, trials: int, threads: int, cache_dir: Path | None) -> float:
    processes = get_context("spawn")
    pool = ProcessPoolExecutor(trials, processes, _set_barrier, (processes.Barrier(trials),))
    with measuring_processes(pool):
        counts = [pool.submit(_count_steps, dict(settings), _SECONDS, threads, cache_dir) for _ in range(trials)]
        return sum(count.result() for count in counts)


_barrier: Barrier  # the barrier at which the processes of the pool wait before they count steps


def _set_barrier(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - a pool passes a barrier to its processes only through a global
    _barrier = barrier


def _count_steps(settings: Settings, seconds: float, threads: int, cache_dir: Path | None) -> float:
    from trainables.probe import steps_per_second

    config = read_settings(settings)
    return steps_per_second(
        config, seconds, threads=threads, cache_dir=cache_dir, ready=lambda: _barrier.wait(_START_TIMEOUT)
    )

"""Choose the GPUs per worker, and measure trials that share a GPU.

The measurement comes before anything is written: the trials must fit into the GPU's memory, and gain by sharing. A fraction of
a GPU only places trials; it limits neither memory nor time.
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
from tune_dml.running.trials.probe import kinds_of, probed

if TYPE_CHECKING:
    from trainables.config import Settings
    from tune_dml.planning.plan import Plan
    from tune_dml.planning.request import Resources, Session

_SPARE = 0.05
"""Fraction of a GPU's memory that is not planned for, because of fragmentation."""
_GAIN = 1.05
"""Least ratio of steps per second: all trials at once over one alone."""
_SECONDS = 4.0
"""Seconds over which steps are counted."""
_MEETING = 300.0
"""Seconds that the processes have to reach their first step."""
_WAIT = 600.0
"""Seconds to wait for a free GPU of the cluster."""


@dataclass(frozen=True)
class _Shared:
    """Measurement of several trials on one GPU."""

    trials: int
    bytes_each: int
    """Memory of the largest trial."""
    room: int
    """Free memory of the GPU."""
    gain: float | None = None
    """Steps per second of all at once over those of one alone; None if they do not fit."""

    def text(self) -> str:
        """Return the measurement in one line."""
        gain = "" if self.gain is None else f", {self.gain:.2f} times the steps of one alone"
        return (
            f"{self.trials} trials share a GPU: {self.bytes_each / 1e9:.2f} GB each of {self.room / 1e9:.2f} GB{gain}"
        )


def resolve_gpus(resources: Resources, address: str | None) -> Resources:
    """Set the GPUs per worker if they were left open: 1 if machine or cluster has any, or may get any; otherwise 0.

    A cluster that does not answer counts as one without GPUs; `cluster.resource_problems` reports why it does not.
    """
    if resources.gpus_per_worker is not None:
        return resources
    where, origin = cluster.address_of(address)
    try:
        has_gpus = not address_problems(where, origin) and cluster.capacity_at(where, origin).has_gpus
    except ConfigError:
        has_gpus = False
    return replace(resources, gpus_per_worker=1.0 if has_gpus else 0.0)


def measure_gpu_sharing(plan: Plan, resources: Resources, session: Session) -> tuple[str, ...]:
    """Measure trials that share a GPU; return a line about them, or nothing if each has its own.

    Raises:
        ConfigError: They do not fit into memory, gain nothing, or no GPU is free to measure.
    """
    share = resources.share
    trials = int(1 / share + 1e-9) if share else 1
    if trials < 2 or plan.space.program is not None:  # the needs of a program are unknown
        return ()
    begun = {cell.arm for cell in plan.cells}
    proposed = [config.settings() for arm in plan.arms if arm.name not in begun for config in arm.trial_configs]
    kinds = kinds_of([*(cell.settings for cell in plan.cells), *proposed], plan.seeds[0], resources)
    cache = session.cache

    def measure() -> _Shared:
        return _measured(list(kinds.values()), trials, resources.cpus_per_worker, cache)

    address, origin = cluster.address_of(session.address)
    try:
        found = measure() if address is None else cluster.run_on_free_gpu(address, origin, measure, _WAIT)
    except ConfigError:
        raise
    except TimeoutError as error:
        rule = f"a GPU must be free to measure trials that share one; none was for {_WAIT:g} s"
        raise ConfigError(
            option_problem("gpus_per_worker", rule, share, "Use 1, or wait until one is free.")
        ) from error
    except Exception as error:
        failure = classify(error)
        rule = f"a few steps must run before trials share a GPU ({failure.reason})"
        remedy = (
            f"{spell('micro_batch')} lets a worker hold fewer pictures."
            if failure.kind == "out_of_memory"
            else "See the cause."
        )
        raise ConfigError(option_problem("gpus_per_worker", rule, share, remedy)) from error
    if found.gain is None:
        rule = f"the trials that share a GPU must fit into its memory ({found.text()})"
        raise ConfigError(
            option_problem("gpus_per_worker", rule, share, f"Use a larger share, 1, or {spell('micro_batch')}.")
        )
    if found.gain < _GAIN:
        rule = f"trials that share a GPU must train faster than one after the other ({found.text()})"
        raise ConfigError(option_problem("gpus_per_worker", rule, share, "Use 1: one trial keeps this GPU busy."))
    return (found.text(),)


def _measured(kinds: Sequence[Settings], trials: int, threads: int, cache_dir: Path | None) -> _Shared:
    """Measure the memory of each kind alone, then the steps of the slowest kind at once."""
    probes = [probed(settings, threads, cache_dir) for settings in kinds]
    each, room = max(item.gpu_bytes for item in probes), min(item.gpu_room for item in probes)
    if trials * each > (1 - _SPARE) * room:
        return _Shared(trials, each, room)
    slowest = max(zip(probes, kinds, strict=True), key=lambda pair: pair[0].seconds)[1]
    alone, together = (_steps_per_second(slowest, count, threads, cache_dir) for count in (1, trials))
    return _Shared(trials, each, room, together / alone)


def _steps_per_second(settings: Settings, trials: int, threads: int, cache_dir: Path | None) -> float:
    """Return the steps per second of this many processes together."""
    processes = get_context("spawn")
    with ProcessPoolExecutor(trials, processes, _meet, (processes.Barrier(trials),)) as pool:
        counts = [pool.submit(_count, dict(settings), _SECONDS, threads, cache_dir) for _ in range(trials)]
        return sum(count.result() for count in counts)


_meeting: Barrier
"""Barrier of the processes that count at once."""


def _meet(barrier: Barrier) -> None:
    global _meeting  # noqa: PLW0603 - what a pool hands to its processes
    _meeting = barrier


def _count(settings: Settings, seconds: float, threads: int, cache_dir: Path | None) -> float:
    from trainables.probe import steps_per_second

    config = read_settings(settings)
    return steps_per_second(
        config, seconds, threads=threads, cache_dir=cache_dir, ready=lambda: _meeting.wait(_MEETING)
    )

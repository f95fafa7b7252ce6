"""Choose a learning rate and a number of steps for new data from a short probe."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from trainables.config import TrialConfig
from trainables.probe import started_run, take_step
from trainables.resolve import Layer, resolve
from trainables.run import Run

_FIRST = 50
"""Steps after which learning rates are compared, if the time allows."""
_MIN_STEPS = 10  # steps, if the time is short
_WARM = 3  # number of warm-up steps, and of timed steps
_SHARE = 0.4  # share of the time for the comparison of rates
_MAX_DOUBLINGS = 6
_CLOSE = 1.0  # points of R@1 that half as many steps may cost
_FULL = 100.0 - _CLOSE
_MAX_GUESSED = 3  # largest number of doublings to guess
_METRIC = "val/recall_at_1"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TrialLength:
    """Learning rate and number of steps that a probe chose."""

    lr: float
    steps: int
    by_rate: Mapping[float, float]  # learning rate -> R@1 after `compared` steps, or fewer if the time ran out
    compared: int
    by_steps: Mapping[int, float]  # steps -> R@1 at the chosen rate; steps double
    finished: bool  # whether half as many steps cost less than a point

    @property
    def reason(self) -> str:
        """Explain both choices in one line."""
        rates = ", ".join(f"{value:.1f} at {rate:g}" for rate, value in self.by_rate.items())
        steps = ", ".join(f"{value:.1f} after {count}" for count, value in self.by_steps.items())
        return f"R@1 after {self.compared} steps: {rates}. At {self.lr:g}: {steps}; {self._outcome}."

    @property
    def _outcome(self) -> str:
        if max(self.by_steps.values()) > _FULL:
            return "no method can gain a point more: these pictures are too easy to compare methods by R@1"
        if self.finished:
            best = max(self.by_steps, key=lambda steps: self.by_steps[steps])
            fell = self.by_steps[best] - self.by_steps[max(self.by_steps)] > _CLOSE
            return "half as many steps cost less than a point" + (f", but {best} were the best" if fell else "")
        return f"the probe ended before R@1 settled, so {self.steps} steps are a guess"


class _Clock:
    """Measures the seconds since the start and reports them as progress."""

    def __init__(self, seconds: float, progress: Progress | None) -> None:
        self.seconds, self._progress, self._start = seconds, progress, time.perf_counter()

    def elapsed(self) -> float:
        elapsed = time.perf_counter() - self._start
        if self._progress is not None:
            self._progress(min(int(elapsed), math.ceil(self.seconds) - 1), math.ceil(self.seconds))
        return elapsed

    def allows(self, seconds: float = 0.0) -> bool:
        """Return whether `seconds` more are left."""
        return self.elapsed() + seconds < self.seconds


def probe_length(
    config: TrialConfig, rates: Sequence[float], *, seconds: float, progress: Progress | None = None
) -> TrialLength:
    """Train a few steps at each rate, then double the steps at the best rate until R@1 settles.

    Args:
        config: the trial; its learning rate and steps are replaced, its schedule must be constant.
        rates: learning rates to compare.
        seconds: time limit; the probe may take one step and one evaluation longer.
        progress: called with the seconds spent and the limit.

    Returns:
        Learning rate and steps. If the time runs out, the steps are a guess: each further doubling is assumed to gain
        half as much as the one before.
    """
    clock = _Clock(seconds, progress)
    first = _first_mark(config, seconds * _SHARE / len(rates))
    curves = {rate: _measure_curve(config, rate, [first], clock) for rate in rates}
    by_rate = {rate: curve[max(curve)] for rate, curve in curves.items()}
    lr = max(by_rate, key=lambda rate: by_rate[rate])
    by_steps = curves[lr]
    if by_steps[max(by_steps)] <= _FULL and clock.allows():
        longer = _measure_curve(config, lr, [first * 2**k for k in range(_MAX_DOUBLINGS + 1)], clock)
        by_steps = max(by_steps, longer, key=max)  # the longer run may have ended before `first`
    finished = _is_close(list(by_steps.values()))
    steps = max(by_steps) * (1 if finished else 2 ** _doublings(list(by_steps.values())))
    if progress is not None:
        progress(math.ceil(seconds), math.ceil(seconds))
    return TrialLength(lr, max(_FIRST, steps), by_rate, first, by_steps, finished)


def _first_mark(config: TrialConfig, seconds: float) -> int:
    """Return how many steps of a trial take `seconds`, at least `_MIN_STEPS` and at most `_FIRST`."""
    with _start_run(config, _FIRST) as run:
        for _ in range(_WARM):
            take_step(run)
        start = time.perf_counter()
        for _ in range(_WARM):
            take_step(run)
        step = (time.perf_counter() - start) / _WARM
    return min(_FIRST, max(_MIN_STEPS, int(seconds / step)))


def _measure_curve(config: TrialConfig, lr: float, marks: Sequence[int], clock: _Clock) -> dict[int, float]:
    """Return step -> R@1 at the marks, each twice the previous one, until R@1 settles or the time is up."""
    trial = resolve(Layer("trial", config.settings()), Layer("probe", {"optim.lr": lr})).config
    recalls: dict[int, float] = {}
    with _start_run(trial, 2 * marks[-1]) as run:
        start = clock.elapsed()
        for step in range(1, marks[-1] + 1):
            take_step(run)
            is_out_of_time = not clock.allows()
            if step == marks[len(recalls)] or (is_out_of_time and not recalls):
                recalls[step] = float(run.learner.validate().figures[_METRIC])
                # reaching the next mark takes as long again
                if _is_close(list(recalls.values())) or not clock.allows(clock.elapsed() - start):
                    break
            if is_out_of_time:
                break
    return recalls


def _start_run(config: TrialConfig, steps: int) -> AbstractContextManager[Run]:
    length = {"training.steps": steps, "training.eval_every": steps}
    trial = resolve(Layer("trial", config.settings()), Layer("probe", length)).config
    return started_run(trial, torch.device("cpu"), torch.get_num_threads(), None)


def _is_close(values: Sequence[float]) -> bool:
    """Return whether the last doubling gained less than a point, and the last two less than two points."""
    if values and values[-1] > _FULL:
        return True
    return (
        len(values) > 2 and max(values[-1], values[-2]) - values[-2] < _CLOSE and values[-1] - values[-3] < 2 * _CLOSE
    )


def _doublings(values: Sequence[float]) -> int:
    """Return the number of doublings until one gains less than a point, if each gains half of the one before."""
    if len(values) < 2:
        return _MAX_GUESSED
    gain, count = max(values[-1] - values[-2], values[-1] - values[0], _CLOSE), 1
    while (gain := gain / 2) >= _CLOSE and count < _MAX_GUESSED:
        count += 1
    return count
